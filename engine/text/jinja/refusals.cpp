#include "engine/text/jinja/refusals.h"

#include <algorithm>
#include <iterator>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/lexer.h"

namespace ft::jinja {
namespace {

constexpr std::string_view kFunctions[] = {"cycler", "joiner", "lipsum", "super"};
// Of Python's str, list and dict. A key of that name is shadowed by the method there too.
constexpr std::string_view kMethods[] = {
    "casefold", "center",  "clear",      "encode",    "expandtabs", "format",       "format_map", "fromkeys",
    "isalnum",  "isalpha", "isascii",    "isdecimal", "islower",    "isidentifier", "isnumeric",  "isprintable",
    "istitle",  "isupper", "ljust",      "maketrans", "partition",  "popitem",      "remove",     "reverse",
    "rindex",   "rjust",   "rpartition", "sort",      "swapcase",   "translate",    "zfill"};
// Supported with what to look for, not with where to begin and end.
constexpr std::string_view kSearches[] = {"count", "endswith", "find", "index", "rfind", "startswith"};
constexpr std::string_view kLoopAttributes[] = {"cycle", "depth",  "depth0",   "first",    "index",    "index0",
                                                "last",  "length", "nextitem", "previtem", "revindex", "revindex0"};

template <size_t count>
bool holds(const std::string_view (&names)[count], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_name(const Expression& expression, std::string_view name) {
  return expression.kind == ExpressionKind::kName && expression.text == name;
}

// The index-th argument, when it is a text in the source.
const std::string* text_argument(const Expression& expression, size_t index) {
  if (index >= expression.arguments.size()) return nullptr;
  const Expression& argument = *expression.arguments[index];
  const bool is_text = argument.kind == ExpressionKind::kConstant && argument.constant.is(Kind::kString);
  return is_text ? &argument.constant.as_string() : nullptr;
}

}  // namespace

void refuse_unsupported_call(const Expression& call) {
  const Expression& callee = *call.operands.front();
  if (callee.kind == ExpressionKind::kName) {
    if (holds(kFunctions, callee.text)) refuse_template("function '" + callee.text + "'", call.line);
    if (callee.text == "loop") refuse_template("recursive loop", call.line);
  }
  if (callee.kind != ExpressionKind::kAttribute) return;
  if (holds(kMethods, callee.text)) refuse_template("method '" + callee.text + "'", call.line);
  if (holds(kSearches, callee.text) && call.arguments.size() + call.keywords.size() > 1) {
    refuse_template("method '" + callee.text + "' with a place to begin", call.line);
  }
}

void refuse_unsupported_attribute(const Expression& attribute) {
  const Expression& value = *attribute.operands.front();
  if (is_name(value, "self")) refuse_template("'self' (blocks)", attribute.line);
  if (is_name(value, "loop") && !holds(kLoopAttributes, attribute.text)) {
    refuse_template("'loop." + attribute.text + "'", attribute.line);
  }
}

void refuse_unsupported_filter(const Expression& filter) {
  const std::string_view name = filter.text;
  if (name == "map") {
    const std::string* inner = text_argument(filter, 0);
    if (inner != nullptr && find_filter(*inner) == nullptr) refuse_template("filter '" + *inner + "'", filter.line);
  }
  const bool by_attribute = name == "selectattr" || name == "rejectattr";
  if (!by_attribute && name != "select" && name != "reject") return;
  const std::string* test = text_argument(filter, by_attribute ? 1 : 0);
  if (test != nullptr && find_test(*test) == nullptr) refuse_template("test '" + *test + "'", filter.line);
}

void refuse_unsupported_binary(const Expression& binary) {
  const Expression& left = *binary.operands.front();
  const bool is_text = left.kind == ExpressionKind::kConstant && left.constant.is(Kind::kString);
  if (binary.op == BinaryOp::kModulo && is_text) refuse_template("'%' that formats a string", binary.line);
}

}  // namespace ft::jinja
