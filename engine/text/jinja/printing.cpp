#include "engine/text/jinja/printing.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/text/jinja/text_ops.h"
#include "engine/text/utf8.h"

namespace ft::jinja {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

void append_hex(std::string& out, uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHexDigits[value >> shift & 15u];
}

void check_depth(int depth) {
  if (depth > kMaxValueDepth) fail("values are nested deeper than " + std::to_string(kMaxValueDepth));
}

std::string quoted(std::string_view text) {
  const bool double_quotes = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const char32_t c = step.code_point;
    const std::string_view bytes = text.substr(at, static_cast<size_t>(step.length));
    at += bytes.size();
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.append("\\").append(bytes);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_python_printable(c)) {
      out += bytes;
    } else if (c < 0x100) {
      out += "\\x";
      append_hex(out, c, 2);
    } else if (c < 0x10000) {
      out += "\\u";
      append_hex(out, c, 4);
    } else {
      out += "\\U";
      append_hex(out, c, 8);
    }
  }
  out += quote;
  return out;
}

class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}
  std::string out;

  void repr(const Value& value, int depth) {
    check_depth(depth);
    budget_.charge(1);
    switch (value.kind()) {
      case Kind::kUndefined:
        out += "Undefined";
        return;
      case Kind::kNone:
        out += "None";
        return;
      case Kind::kBool:
        out += value.as_bool() ? "True" : "False";
        return;
      case Kind::kInt:
        out += std::to_string(value.as_int());
        return;
      case Kind::kFloat:
        out += float_text(value.as_number());
        return;
      case Kind::kString:
        put(value.is_markup() ? "Markup(" + quoted(value.as_string()) + ")" : quoted(value.as_string()));
        return;
      case Kind::kList:
      case Kind::kTuple:
        return sequence(value, depth);
      case Kind::kDict:
      case Kind::kNamespace:
        return mapping(value, depth);
      case Kind::kGenerator:
      case Kind::kFunction:
      case Kind::kLoop:
        fail("a " + type_name(value) + " cannot be printed");
    }
  }

 private:
  void put(const std::string& text) {
    budget_.charge_bytes(out.size() + text.size() > kMaxOutputBytes ? kMaxOutputBytes + 1 : text.size());
    out += text;
  }

  void sequence(const Value& value, int depth) {
    const bool is_tuple = value.is(Kind::kTuple);
    out += is_tuple ? '(' : '[';
    bool first = true;
    for (const Value& item : value.items()) {
      if (!first) out += ", ";
      first = false;
      repr(item, depth + 1);
    }
    if (is_tuple && value.items().size() == 1) out += ',';
    out += is_tuple ? ')' : ']';
  }

  void mapping(const Value& value, int depth) {
    const bool is_namespace = value.is(Kind::kNamespace);
    out += is_namespace ? "<Namespace {" : "{";
    bool first = true;
    for (const auto& [key, item] : value.as_dict().entries) {
      if (!first) out += ", ";
      first = false;
      repr(key, depth + 1);
      out += ": ";
      repr(item, depth + 1);
    }
    out += is_namespace ? "}>" : "}";
  }

  Budget& budget_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}
  std::string out;

  void write(const Value& value, int depth) {
    check_depth(depth);
    budget_.charge(1);
    switch (value.kind()) {
      case Kind::kNone:
        out += "null";
        return;
      case Kind::kBool:
        out += value.as_bool() ? "true" : "false";
        return;
      case Kind::kInt:
        out += std::to_string(value.as_int());
        return;
      case Kind::kFloat:
        out += json_float(value.as_number());
        return;
      case Kind::kString:
        return string(value.as_string());
      case Kind::kList:
      case Kind::kTuple:
        return array(value, depth);
      case Kind::kDict:
        return object(value, depth);
      default:
        fail("Object of type " + type_name(value) + " is not JSON serializable");
    }
  }

 private:
  static std::string json_float(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void line(int depth) {
    if (!style_.pretty) return;
    budget_.charge_bytes(style_.indent.size() * static_cast<size_t>(depth));
    out += '\n';
    for (int i = 0; i < depth; ++i) out += style_.indent;
  }

  void string(std::string_view text) {
    budget_.charge_bytes(out.size() + text.size() > kMaxOutputBytes ? kMaxOutputBytes + 1 : text.size());
    out += '"';
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = utf8_step(text, at);
      const std::string_view bytes = text.substr(at, static_cast<size_t>(step.length));
      at += bytes.size();
      character(step.code_point, bytes);
    }
    out += '"';
  }

  void character(char32_t c, std::string_view bytes) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const size_t escape = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
    if (escape != std::string_view::npos) {
      out += '\\';
      out += kLetters[escape];
    } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7e && c < 0x10000)) {
      out += "\\u";
      append_hex(out, c, 4);
    } else if (style_.ensure_ascii && c >= 0x10000) {
      out += "\\u";
      append_hex(out, 0xd800 + ((c - 0x10000) >> 10), 4);
      out += "\\u";
      append_hex(out, 0xdc00 + ((c - 0x10000) & 0x3ff), 4);
    } else {
      out += bytes;
    }
  }

  void array(const Value& value, int depth) {
    out += '[';
    bool first = true;
    for (const Value& item : value.items()) {
      if (!first) out += style_.item_separator;
      first = false;
      line(depth + 1);
      write(item, depth + 1);
    }
    if (!first) line(depth);
    out += ']';
  }

  void key(const Value& value) {
    switch (value.kind()) {
      case Kind::kString:
        return string(value.as_string());
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        out += '"';
        write(value, 0);
        out += '"';
        return;
      default:
        fail("keys must be str, int, float, bool or None, not " + type_name(value));
    }
  }

  void object(const Value& value, int depth) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : value.as_dict().entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      for (const auto* entry : entries) {
        if (!entry->first.is(Kind::kString)) fail("sort_keys needs string keys");
      }
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return a->first.as_string() < b->first.as_string(); });
    }
    out += '{';
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out += style_.item_separator;
      first = false;
      line(depth + 1);
      key(entry->first);
      out += style_.key_separator;
      write(entry->second, depth + 1);
    }
    if (!first) line(depth);
    out += '}';
  }

  const JsonStyle& style_;
  Budget& budget_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto scientific = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string text(buffer, scientific.ptr);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string result(buffer, fixed.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kGenerator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "object";
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is(Kind::kString)) {
    budget.charge_bytes(value.as_string().size());
    return value.as_string();
  }
  if (value.is(Kind::kUndefined)) return {};
  return to_repr(value, budget);
}

std::string to_repr(const Value& value, Budget& budget) {
  Printer printer(budget);
  printer.repr(value, 0);
  return std::move(printer.out);
}

std::string to_json_text(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace ft::jinja
