#include <algorithm>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/printing.h"
#include "engine/text/jinja/text_ops.h"
#include "engine/text/utf8.h"

namespace ft::jinja {
namespace {

using Method = Value (*)(Interpreter& interpreter, const Value& self, const Arguments& arguments);

class BoundMethod : public FunctionObject {
 public:
  BoundMethod(Value self, Method method) : self_(std::move(self)), method_(method) {}
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    if (self_.is(Kind::kString)) interpreter.budget().charge_bytes(self_.as_string().size());
    return method_(interpreter, self_, arguments);
  }

 private:
  Value self_;
  Method method_;
};

Value texts(const std::vector<std::string_view>& parts, Budget& budget) {
  budget.charge_entries(parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(Value::string(std::string(part)));
  return Value::list(std::move(items));
}

std::optional<std::string> optional_text(const BoundArguments& bound, size_t index) {
  if (!bound.has(index) || bound.at(index).is(Kind::kNone)) return {};
  return bound.text(index);
}

// --- str ---

template <Side side>
Value strip_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("strip", arguments, {"chars"});
  const std::optional<std::string> characters = optional_text(bound, 0);
  const auto set = characters.has_value() ? std::optional<std::string_view>(*characters) : std::nullopt;
  return Value::string(std::string(strip(self.as_string(), set, side)));
}

template <bool from_right>
Value split_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("split", arguments, {"sep", "maxsplit"});
  const std::optional<std::string> separator = optional_text(bound, 0);
  if (separator.has_value() && separator->empty()) fail("empty separator");
  const auto view = separator.has_value() ? std::optional<std::string_view>(*separator) : std::nullopt;
  const int64_t limit = bound.integer_or(1, -1);
  return texts(from_right ? split_from_right(self.as_string(), view, limit) : split(self.as_string(), view, limit),
               interpreter.budget());
}

Value splitlines_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("splitlines", arguments, {"keepends"});
  return texts(split_lines(self.as_string(), bound.flag_or(0, false)), interpreter.budget());
}

template <bool at_end>
Value affix_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound(at_end ? "endswith" : "startswith", arguments, {"affix"});
  const auto matches = [&](const Value& affix) {
    if (!affix.is(Kind::kString)) fail("startswith and endswith need strings, not a " + type_name(affix));
    return at_end ? self.as_string().ends_with(affix.as_string()) : self.as_string().starts_with(affix.as_string());
  };
  require_defined(bound.at(0));
  if (!bound.at(0).is(Kind::kTuple)) return Value::boolean(matches(bound.at(0)));
  const std::vector<Value> affixes = iterate(bound.at(0), interpreter.budget());
  return Value::boolean(std::any_of(affixes.begin(), affixes.end(), matches));
}

template <std::string (*change)(std::string_view)>
Value case_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("case", arguments, {});
  return Value::string(change(self.as_string()));
}

Value replace_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"});
  bound.text(0);
  bound.text(1);
  return find_filter("replace")(interpreter, self, arguments);
}

Value join_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"iterable"});
  const std::vector<Value> items = iterate(bound.at(0), interpreter.budget());
  for (const Value& item : items) {
    if (!item.is(Kind::kString)) fail("join needs strings, not a " + type_name(item));
  }
  return find_filter("join")(interpreter, Value::list(items), {{self}, {}});
}

// Offset in code points, -1 when there is none.
template <bool from_right>
Value find_text_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("find", arguments, {"sub"});
  const std::string& text = self.as_string();
  const size_t at = from_right ? text.rfind(bound.text(0)) : text.find(bound.text(0));
  if (at == std::string::npos) return Value::integer(-1);
  return Value::integer(static_cast<int64_t>(utf8_length(std::string_view(text).substr(0, at))));
}

Value index_text_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  Value found = find_text_method<false>(interpreter, self, arguments);
  if (found.as_int() < 0) fail("substring not found");
  return found;
}

Value count_text_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("count", arguments, {"sub"});
  const std::string part = bound.text(0);
  if (part.empty()) return Value::integer(length(self) + 1);
  return Value::integer(static_cast<int64_t>(split(self.as_string(), part, -1).size()) - 1);
}

template <bool at_end>
Value remove_affix_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("removeprefix or removesuffix", arguments, {"affix"});
  std::string_view text = self.as_string();
  const std::string affix = bound.text(0);
  if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
  return Value::string(std::string(text));
}

Value isdigit_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("isdigit", arguments, {});
  const std::string& text = self.as_string();
  if (valid_utf8_bytes(text) != text.size() || utf8_length(text) != text.size()) {
    fail("isdigit of a string that is not ASCII is not supported");
  }
  return Value::boolean(!text.empty() && text.find_first_not_of("0123456789") == std::string::npos);
}

Value isspace_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("isspace", arguments, {});
  return Value::boolean(!self.as_string().empty() && strip(self.as_string(), {}, Side::kLeft).empty());
}

// --- dict ---

Value get_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("get", arguments, {"key", "default"});
  const Value* found = self.as_dict().find(bound.at(0));
  return found != nullptr ? *found : bound.value(1, Value::none());
}

Value items_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return Value::list(iterate(find_filter("items")(interpreter, self, arguments), interpreter.budget()));
}

Value keys_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("keys", arguments, {});
  return Value::list(iterate(self, interpreter.budget()));
}

Value values_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("values", arguments, {});
  interpreter.budget().charge_entries(self.as_dict().entries.size());
  std::vector<Value> items;
  for (const auto& entry : self.as_dict().entries) items.push_back(entry.second);
  return Value::list(std::move(items));
}

Value pop_key_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("pop", arguments, {"key", "default"});
  const Value* found = self.as_dict().find(bound.at(0));
  if (found == nullptr && !bound.has(1)) fail("pop: no such key: " + to_repr(bound.at(0), interpreter.budget()));
  Value value = found != nullptr ? *found : bound.at(1);
  interpreter.budget().charge_entries(self.as_dict().entries.size());
  self.as_dict().erase(bound.at(0));
  return value;
}

Value update_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  interpreter.will_change(self);
  const Value source = interpreter.call(find_global("dict"), arguments);
  for (const auto& [key, value] : source.as_dict().entries) self.as_dict().set(key, value);
  return Value::none();
}

Value setdefault_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("setdefault", arguments, {"key", "default"});
  const Value* found = self.as_dict().find(bound.at(0));
  if (found != nullptr) return *found;
  if (!bound.at(0).is(Kind::kString)) fail("setdefault needs a string key");
  interpreter.will_change(self);
  Value value = bound.value(1, Value::none());
  self.as_dict().set(bound.at(0), value);
  return value;
}

Value copy_dict_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("copy", arguments, {});
  return interpreter.call(find_global("dict"), {{self}, {}});
}

// --- list ---

Value append_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("append", arguments, {"object"});
  const Value& value = bound.at(0);
  interpreter.will_change(self);
  self.items().push_back(value);
  return Value::none();
}

Value extend_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("extend", arguments, {"iterable"});
  const std::vector<Value> more = iterate(bound.at(0), interpreter.budget());
  interpreter.will_change(self);
  self.items().insert(self.items().end(), more.begin(), more.end());
  return Value::none();
}

Value insert_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("insert", arguments, {"index", "object"});
  const int64_t count = length(self);
  const int64_t index =
      bound.integer(0) < 0 ? std::max<int64_t>(bound.integer(0) + count, 0) : std::min(bound.integer(0), count);
  const Value& value = bound.at(1);
  interpreter.will_change(self);
  interpreter.budget().charge_entries(static_cast<size_t>(count));
  self.items().insert(self.items().begin() + static_cast<std::ptrdiff_t>(index), value);
  return Value::none();
}

Value pop_item_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("pop", arguments, {"index"});
  const int64_t count = length(self);
  const int64_t given = bound.integer_or(0, -1);
  const int64_t index = given < 0 ? given + count : given;
  if (index < 0 || index >= count) fail("pop index out of range");
  interpreter.budget().charge(count - index);
  Value value = self.items()[static_cast<size_t>(index)];
  self.items().erase(self.items().begin() + static_cast<std::ptrdiff_t>(index));
  return value;
}

Value index_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("index", arguments, {"value"});
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (equal(self.items()[i], bound.at(0), interpreter.budget())) return Value::integer(static_cast<int64_t>(i));
  }
  fail("the value is not in the list");
}

Value count_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("count", arguments, {"value"});
  int64_t count = 0;
  for (const Value& item : self.items()) count += equal(item, bound.at(0), interpreter.budget()) ? 1 : 0;
  return Value::integer(count);
}

Value copy_list_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const BoundArguments bound("copy", arguments, {});
  return Value::list(iterate(self, interpreter.budget()));
}

struct NamedMethod {
  std::string_view name;
  Method method;
};

constexpr NamedMethod kStringMethods[] = {
    {"strip", strip_method<Side::kBoth>},
    {"lstrip", strip_method<Side::kLeft>},
    {"rstrip", strip_method<Side::kRight>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"upper", case_method<upper>},
    {"lower", case_method<lower>},
    {"capitalize", case_method<capitalize>},
    {"replace", replace_method},
    {"join", join_method},
    {"find", find_text_method<false>},
    {"rfind", find_text_method<true>},
    {"count", count_text_method},
    {"index", index_text_method},
    {"title", case_method<title_by_letters>},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"isdigit", isdigit_method},
    {"isspace", isspace_method},
};
constexpr NamedMethod kDictMethods[] = {
    {"get", get_method},
    {"items", items_method},
    {"keys", keys_method},
    {"values", values_method},
    {"pop", pop_key_method},
    {"update", update_method},
    {"setdefault", setdefault_method},
    {"copy", copy_dict_method},
};
constexpr NamedMethod kListMethods[] = {
    {"append", append_method}, {"extend", extend_method}, {"insert", insert_method},  {"pop", pop_item_method},
    {"index", index_method},   {"count", count_method},   {"copy", copy_list_method},
};
constexpr NamedMethod kTupleMethods[] = {{"index", index_method}, {"count", count_method}};

template <size_t count>
Value bind(const NamedMethod (&methods)[count], const Value& self, std::string_view name) {
  for (const NamedMethod& candidate : methods) {
    if (candidate.name == name)
      return Value::object(Kind::kFunction, std::make_shared<BoundMethod>(self, candidate.method));
  }
  return {};
}

}  // namespace

Value find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString:
      return bind(kStringMethods, self, name);
    case Kind::kDict:
      return bind(kDictMethods, self, name);
    case Kind::kList:
      return bind(kListMethods, self, name);
    case Kind::kTuple:
      return bind(kTupleMethods, self, name);
    default:
      return {};
  }
}

}  // namespace ft::jinja
