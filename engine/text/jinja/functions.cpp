#include <algorithm>
#include <ctime>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/printing.h"

namespace ft::jinja {
namespace {

using Function = Value (*)(Interpreter& interpreter, const Arguments& arguments);

class GlobalFunction : public FunctionObject {
 public:
  explicit GlobalFunction(Function function) : function_(function) {}
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return function_(interpreter, arguments);
  }

 private:
  Function function_;
};

Value range_function(Interpreter& interpreter, const Arguments& arguments) {
  const BoundArguments bound("range", arguments, {"start", "stop", "step"});
  const bool one = !bound.has(1);
  const int64_t start = one ? 0 : bound.integer(0);
  const int64_t stop = one ? bound.integer(0) : bound.integer(1);
  const int64_t step = bound.integer_or(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  // Counted in double: the difference of two 64-bit integers may not fit in one.
  const double span = (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
  if (span > static_cast<double>(kMaxRange)) fail("range is longer than " + std::to_string(kMaxRange));
  std::vector<Value> items;
  for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  interpreter.budget().charge_entries(items.size());
  return Value::list(std::move(items));
}

// dict and namespace: entries of a mapping or of pairs, then keywords.
std::shared_ptr<DictObject> entries_of(std::string_view function, Interpreter& interpreter,
                                       const Arguments& arguments) {
  auto dict = std::make_shared<DictObject>();
  if (arguments.positional.size() > 1) fail(std::string(function) + " takes one mapping at most");
  for (const Value& source : arguments.positional) {
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.as_dict().entries) dict->set(key, value);
      continue;
    }
    for (const Value& pair : iterate(source, interpreter.budget())) {
      const std::vector<Value> parts = iterate(pair, interpreter.budget());
      if (parts.size() != 2 || !parts[0].is(Kind::kString))
        fail(std::string(function) + " needs pairs with string keys");
      dict->set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.keywords) dict->set(Value::string(name), value);
  interpreter.budget().charge_entries(dict->entries.size());
  return dict;
}

Value dict_function(Interpreter& interpreter, const Arguments& arguments) {
  return Value::dict(entries_of("dict", interpreter, arguments));
}

Value namespace_function(Interpreter& interpreter, const Arguments& arguments) {
  return Value::object(Kind::kNamespace, entries_of("namespace", interpreter, arguments));
}

Value raise_exception_function(Interpreter& interpreter, const Arguments& arguments) {
  const BoundArguments bound("raise_exception", arguments, {"message"});
  throw Failure{to_text(bound.at(0), interpreter.budget()), true};
}

Value strftime_now_function(Interpreter& interpreter, const Arguments& arguments) {
  constexpr size_t kMaxFormatBytes = 200;
  const BoundArguments bound("strftime_now", arguments, {"format"});
  const std::string format = bound.text(0);
  if (format.size() > kMaxFormatBytes) fail("strftime_now format is longer than 200 bytes");
  const auto seconds = static_cast<std::time_t>(interpreter.now_unix_seconds());
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) fail("the current time has no local form");
  if (format.empty()) return Value::string("");
  char buffer[4096];  // a conversion gives 16 bytes of text for each of format, at most
  return Value::string(std::string(buffer, std::strftime(buffer, sizeof(buffer), format.c_str(), &local)));
}

constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"range", range_function},
    {"dict", dict_function},
    {"namespace", namespace_function},
    {"raise_exception", raise_exception_function},
    {"strftime_now", strftime_now_function},
};

}  // namespace

Value find_global(std::string_view name) {
  for (const auto& [candidate, function] : kFunctions) {
    if (candidate == name) return Value::object(Kind::kFunction, std::make_shared<GlobalFunction>(function));
  }
  return {};
}

BoundArguments::BoundArguments(std::string_view function, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters)
    : function_(function), parameters_(parameters), values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters.size()) {
    fail(function_ + " takes at most " + std::to_string(parameters.size()) + " arguments");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end()) fail(function_ + " has no parameter '" + name + "'");
    const Value*& slot = values_[static_cast<size_t>(found - parameters_.begin())];
    if (slot != nullptr) fail(function_ + " got '" + name + "' twice");
    slot = &value;
  }
}

const Value& BoundArguments::at(size_t index) const {
  if (!has(index)) fail(function_ + " needs the argument '" + std::string(parameters_[index]) + "'");
  return *values_[index];
}

std::string BoundArguments::text(size_t index) const {
  const Value& value = at(index);
  require_defined(value);
  if (!value.is(Kind::kString)) {
    fail(function_ + " needs a string as '" + std::string(parameters_[index]) + "', not a " + type_name(value));
  }
  return value.as_string();
}

int64_t BoundArguments::integer(size_t index) const {
  const Value& value = at(index);
  require_defined(value);
  if (!value.is_integral()) {
    fail(function_ + " needs an integer as '" + std::string(parameters_[index]) + "', not a " + type_name(value));
  }
  return value.as_int();
}

bool BoundArguments::flag_or(size_t index, bool fallback) const {
  return has(index) ? truthy(*values_[index]) : fallback;
}

}  // namespace ft::jinja
