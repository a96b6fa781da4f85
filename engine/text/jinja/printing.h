// How values become text: Python's str and repr, and json.dumps.
#pragma once

#include <cstdint>
#include <string>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/value.h"

namespace ft::jinja {

std::string float_text(double value);       // repr(float): the shortest digits that give the value back
std::string type_name(const Value& value);  // Python's: "str", "int", "NoneType"

std::string to_text(const Value& value, Budget& budget);  // str(value); undefined is empty
std::string to_repr(const Value& value, Budget& budget);

// json.dumps of values that JSON has; anything else is a Failure.
struct JsonStyle {
  bool ensure_ascii = false;  // non-ASCII as \uXXXX
  bool sort_keys = false;
  bool pretty = false;  // one entry a line, indented
  std::string indent;   // of one level
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json_text(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace ft::jinja
