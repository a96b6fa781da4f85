// Values of a template: Python's, as far as templates see them.
//
// A Value is 32 bytes; strings, lists and dicts are shared, never copied. Strings are UTF-8; lengths and indices count
// code points. Integers are 64 bits (an overflow is an error, not a big number). A rendering owns its values; nothing
// is shared between threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/json.h"

namespace ft::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kGenerator,  // entries that can be read once: what map, select and their like give
  kDict,
  kNamespace,
  kFunction,  // macros, bound methods, global functions
  kLoop,      // the `loop` of a for
};

struct Object {
  virtual ~Object() = default;
};
struct ListObject;
struct DictObject;

class Value {
 public:
  Value() = default;                            // undefined without a name
  static Value undefined(std::string message);  // what using it says: "'x' is undefined"
  static Value none();
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  static Value string(std::string text);
  static Value markup(std::string text);  // a string that `safe` or `escape` marked
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value generator(std::vector<Value> items);  // always true, without length or index, empty when it was read
  static Value dict(std::shared_ptr<DictObject> dict);
  static Value object(Kind kind, std::shared_ptr<Object> object);  // kNamespace (a DictObject), kFunction, kLoop
  static Value from_json(const OrderedJson& json);                 // REQUIRES: depth bounded by the JSON limits

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // Python: bool is an int
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_markup() const { return markup_; }

  // Each requires the kind that it names.
  bool as_bool() const { return integer_ != 0; }
  int64_t as_int() const { return integer_; }  // kInt, kBool
  double as_number() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  const std::string& as_string() const;          // kString
  const std::string& undefined_message() const;  // kUndefined
  std::vector<Value>& items() const;             // kList, kTuple, kGenerator: those not read yet
  DictObject& as_dict() const;                   // kDict, kNamespace
  const std::shared_ptr<Object>& as_object() const { return object_; }

 private:
  Kind kind_ = Kind::kUndefined;
  bool markup_ = false;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject : Object {
  std::string text;
};

// Frees what it owns alone without recursion: a template can nest values as deep as it has steps.
struct ListObject : Object {
  std::vector<Value> items;
  ~ListObject() override;
};

// Keys in order of insertion. 1, 1.0 and true are the same key, as in Python.
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;
  ~DictObject() override;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
  bool erase(const Value& key);
  void clear();

 private:
  size_t position(const Value& key) const;  // entries.size() when absent
  size_t position(std::string_view key) const;
  void index_all();
  std::unordered_map<std::string, size_t> index_;  // of string keys, once there are many
};

}  // namespace ft::jinja
