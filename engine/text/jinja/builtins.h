// Filters, tests, methods and functions that templates can use.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/value.h"

namespace ft::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// Arguments matched to the parameters of a Python signature. Refers to the arguments: they must outlive it.
class BoundArguments {
 public:
  // Throws Failure when there are too many, an unknown keyword, or one is given twice.
  BoundArguments(std::string_view function, const Arguments& arguments,
                 std::initializer_list<std::string_view> parameters);

  BoundArguments(std::string_view, Arguments&&, std::initializer_list<std::string_view>) = delete;

  bool has(size_t index) const { return values_[index] != nullptr; }
  const Value& at(size_t index) const;  // Failure when it was not given
  Value value(size_t index, const Value& fallback) const { return has(index) ? *values_[index] : fallback; }
  std::string text(size_t index) const;  // Failure when it is no string
  int64_t integer(size_t index) const;   // Failure when it is no integer
  int64_t integer_or(size_t index, int64_t fallback) const { return has(index) ? integer(index) : fallback; }
  bool flag_or(size_t index, bool fallback) const;

 private:
  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

// Something that can be called: a macro, a method bound to its value, a global function.
struct FunctionObject : Object {
  virtual Value call(Interpreter& interpreter, const Arguments& arguments) = 0;
};

Filter find_filter(std::string_view name);  // null: not supported
Filter find_sequence_filter(std::string_view name);
Test find_test(std::string_view name);  // null: not supported

// The method `name` of `self`, bound; undefined when the type has none. Dicts: get, items, keys, ...; strings: split,
// ...
Value find_method(const Value& self, std::string_view name);
// range, dict, namespace, raise_exception, strftime_now; undefined for other names.
Value find_global(std::string_view name);

// Used by filters that walk values by attribute: "a.b.0".
Value attribute_path(Interpreter& interpreter, const Value& value, const Value& path);

}  // namespace ft::jinja
