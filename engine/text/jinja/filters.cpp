#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/printing.h"
#include "engine/text/jinja/text_ops.h"
#include "kernels/base/error.h"

namespace ft::jinja {
namespace {

constexpr int64_t kMaxIndent = 1000;

std::string text_of(Interpreter& interpreter, const Value& value) { return to_text(value, interpreter.budget()); }

template <std::string (*change)(std::string_view)>
Value text_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("filter", arguments, {});
  return Value::string(change(text_of(interpreter, value)));
}

Value trim_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  const std::string text = text_of(interpreter, value);
  if (!bound.has(0) || bound.at(0).is(Kind::kNone)) return Value::string(std::string(strip(text, {}, Side::kBoth)));
  return Value::string(std::string(strip(text, bound.text(0), Side::kBoth)));
}

Value replace_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"});
  const std::string text = text_of(interpreter, value);
  const std::string from = text_of(interpreter, bound.at(0)), to = text_of(interpreter, bound.at(1));
  const int64_t limit = bound.has(2) && !bound.at(2).is(Kind::kNone) ? bound.integer(2) : -1;
  // As if every byte were replaced: an upper bound that needs no search.
  interpreter.budget().charge_bytes(
      to.size() <= from.size() ? text.size() : text.size() + (text.size() + 1) * to.size() / (from.size() + 1));
  return Value::string(replace(text, from, to, limit));
}

Value string_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("string", arguments, {});
  return value.is(Kind::kString) ? value : Value::string(text_of(interpreter, value));
}

Value safe_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("safe", arguments, {});
  return Value::markup(text_of(interpreter, value));
}

Value escape_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("escape", arguments, {});
  return value.is_markup() ? value : Value::markup(escape_html(text_of(interpreter, value)));
}

Value tojson_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag_or(0, false);
  style.sort_keys = bound.flag_or(3, false);
  if (bound.has(1) && !bound.at(1).is(Kind::kNone)) {
    style.pretty = true;
    style.item_separator.pop_back();  // "," instead of ", ", as json.dumps does with an indent
    if (bound.at(1).is(Kind::kString)) {
      style.indent = bound.text(1);
    } else {
      const int64_t width = bound.integer(1);
      if (width > kMaxIndent) fail("tojson indent is larger than " + std::to_string(kMaxIndent));
      style.indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (bound.has(2) && !bound.at(2).is(Kind::kNone)) {
    const std::vector<Value> separators = iterate(bound.at(2), interpreter.budget());
    if (separators.size() != 2 || !separators[0].is(Kind::kString) || !separators[1].is(Kind::kString)) {
      fail("tojson separators must be two strings");
    }
    style.item_separator = separators[0].as_string();
    style.key_separator = separators[1].as_string();
  }
  return Value::string(to_json_text(value, style, interpreter.budget()));
}

Value from_json_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("from_json", arguments, {});
  require_defined(value);
  if (!value.is(Kind::kString)) fail("from_json needs a string, not a " + type_name(value));
  interpreter.budget().charge_entries(value.as_string().size());
  try {
    return Value::from_json(parse_ordered_json(value.as_string(), "from_json"));
  } catch (const Error& error) {
    fail(error.what());
  }
}

Value default_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  const bool use_default = value.is(Kind::kUndefined) || (bound.flag_or(1, false) && !truthy(value));
  return use_default ? bound.value(0, Value::string("")) : value;
}

Value indent_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  std::string indentation(4, ' ');
  if (bound.has(0) && bound.at(0).is(Kind::kString)) {
    indentation = bound.text(0);
  } else if (bound.has(0)) {
    if (bound.integer(0) > kMaxIndent) fail("indent is larger than " + std::to_string(kMaxIndent));
    indentation.assign(static_cast<size_t>(std::max<int64_t>(bound.integer(0), 0)), ' ');
  }
  std::string text = text_of(interpreter, value);
  text += '\n';
  const std::vector<std::string_view> lines = split_lines(text, false);
  interpreter.budget().charge_bytes(text.size() + lines.size() * indentation.size());
  std::string result;
  if (bound.flag_or(1, false)) result = indentation;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i > 0 && (!lines[i].empty() || bound.flag_or(2, false))) result += indentation;
    result += lines[i];
  }
  return Value::string(std::move(result));
}

// int("12"): an optional sign and digits, with white space around.
std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip(text, {}, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  if (error == std::errc() && stop == end && !text.starts_with("+-")) return number;
  return {};
}

std::optional<double> parse_real(std::string_view text) {
  text = strip(text, {}, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end) return number;
  return {};
}

std::optional<int64_t> truncate(double number) {
  if (!(number > -9.2e18 && number < 9.2e18)) return {};
  return static_cast<int64_t>(number);
}

Value int_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("int", arguments, {"default", "base"});
  const Value fallback = bound.value(0, Value::integer(0));
  require_defined(value);
  if (value.is_integral()) return Value::integer(value.as_int());
  std::optional<int64_t> number;
  if (value.is(Kind::kFloat)) number = truncate(value.as_number());
  if (value.is(Kind::kString)) {
    const int64_t base = bound.integer_or(1, 10);
    if (base < 2 || base > 36) fail("int base must be 2 to 36");
    number = parse_integer(value.as_string(), static_cast<int>(base));
    const std::optional<double> real = number.has_value() ? std::nullopt : parse_real(value.as_string());
    if (real.has_value()) number = truncate(*real);
  }
  return number.has_value() ? Value::integer(*number) : fallback;
}

Value float_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("float", arguments, {"default"});
  require_defined(value);
  if (value.is_number()) return Value::real(value.as_number());
  const std::optional<double> number = value.is(Kind::kString) ? parse_real(value.as_string()) : std::nullopt;
  return number.has_value() ? Value::real(*number) : bound.value(0, Value::real(0));
}

Value abs_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("abs", arguments, {});
  require_defined(value);
  if (!value.is_number()) fail("abs needs a number, not a " + type_name(value));
  if (value.is(Kind::kFloat)) return Value::real(std::fabs(value.as_number()));
  return value.as_int() < 0 ? negate(value) : Value::integer(value.as_int());
}

Value round_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer_or(0, 0);
  const std::string method = bound.has(1) ? bound.text(1) : "common";
  if (method != "common" && method != "ceil" && method != "floor") fail("round method must be common, ceil or floor");
  require_defined(value);
  if (!value.is_number()) fail("round needs a number, not a " + type_name(value));
  if (precision < 0 || precision > 300) fail("round precision must be 0 to 300");
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = value.as_number() * scale;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (value.is_integral()) return Value::integer(value.as_int());
  if (!std::isfinite(value.as_number())) return value;
  char buffer[700];  // 309 digits before the point, 300 behind
  const int length = std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), value.as_number());
  double rounded = 0;
  std::from_chars(buffer, buffer + length, rounded);
  return Value::real(rounded);
}

Value length_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("length", arguments, {});
  if (value.is(Kind::kString)) interpreter.budget().charge_bytes(value.as_string().size());
  return Value::integer(length(value));
}

Value attr_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("attr", arguments, {"name"});
  if (value.is(Kind::kDict)) return find_method(value, bound.text(0));  // attributes only, no entries
  return interpreter.attribute(value, bound.text(0));
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", abs_filter},
    {"attr", attr_filter},
    {"capitalize", text_filter<capitalize>},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"float", float_filter},
    {"from_json", from_json_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"length", length_filter},
    {"lower", text_filter<lower>},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", safe_filter},
    {"string", string_filter},
    {"title", text_filter<title>},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"upper", text_filter<upper>},
};

}  // namespace

Filter find_filter(std::string_view name) {
  for (const auto& [candidate, filter] : kFilters) {
    if (candidate == name) return filter;
  }
  return find_sequence_filter(name);
}

}  // namespace ft::jinja
