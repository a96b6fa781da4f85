#include <algorithm>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/parser.h"
#include "engine/text/jinja/refusals.h"

namespace ft::jinja {

ExpressionPtr Parser::binary(BinaryOp op, ExpressionPtr left, ExpressionPtr right, int line) {
  ExpressionPtr result = make(ExpressionKind::kBinary, line);
  result->op = op;
  adopt(*result, result->operands, std::move(left));
  adopt(*result, result->operands, std::move(right));
  refuse_unsupported_binary(*result);
  return result;
}

// An expression, or several with commas between, which make a tuple.
ExpressionPtr Parser::tuple(bool with_conditional, bool parenthesized) {
  const int line = current().line;
  ExpressionPtr result = make(ExpressionKind::kTuple, line);
  bool is_tuple = false;
  while (true) {
    const bool at_end =
        current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || is_operator(")");
    if (at_end) break;
    adopt(*result, result->operands, expression(with_conditional));
    if (!is_operator(",")) break;
    is_tuple = true;
    take();
  }
  if (is_tuple) return result;
  if (!result->operands.empty()) return std::move(result->operands.front());
  if (!parenthesized) unexpected("an expression");
  return result;
}

ExpressionPtr Parser::expression(bool with_conditional) {
  const Nesting nesting(*this);
  return with_conditional ? conditional() : disjunction();
}

ExpressionPtr Parser::conditional() {
  const int line = current().line;
  ExpressionPtr value = disjunction();
  while (skip_name("if")) {
    ExpressionPtr result = make(ExpressionKind::kConditional, line);
    adopt(*result, result->operands, std::move(value));
    adopt(*result, result->operands, disjunction());
    if (skip_name("else")) {
      const Nesting nesting(*this);
      adopt(*result, result->operands, conditional());
    }
    value = std::move(result);
  }
  return value;
}

ExpressionPtr Parser::disjunction() {
  const int line = current().line;
  ExpressionPtr left = conjunction();
  while (skip_name("or")) {
    ExpressionPtr result = make(ExpressionKind::kOr, line);
    adopt(*result, result->operands, std::move(left));
    adopt(*result, result->operands, conjunction());
    left = std::move(result);
  }
  return left;
}

ExpressionPtr Parser::conjunction() {
  const int line = current().line;
  ExpressionPtr left = negation();
  while (skip_name("and")) {
    ExpressionPtr result = make(ExpressionKind::kAnd, line);
    adopt(*result, result->operands, std::move(left));
    adopt(*result, result->operands, negation());
    left = std::move(result);
  }
  return left;
}

ExpressionPtr Parser::negation() {
  const int line = current().line;
  if (!skip_name("not")) return comparison();
  const Nesting nesting(*this);
  ExpressionPtr result = make(ExpressionKind::kNot, line);
  adopt(*result, result->operands, negation());
  return result;
}

ExpressionPtr Parser::comparison() {
  static constexpr std::pair<std::string_view, CompareOp> kOperators[] = {
      {"==", CompareOp::kEqual},     {"!=", CompareOp::kNotEqual}, {"<", CompareOp::kLess},
      {"<=", CompareOp::kLessEqual}, {">", CompareOp::kGreater},   {">=", CompareOp::kGreaterEqual}};
  const int line = current().line;
  ExpressionPtr first = sum();
  ExpressionPtr result;
  while (true) {
    std::optional<CompareOp> op;
    for (const auto& [text, candidate] : kOperators) {
      if (is_operator(text)) op = candidate;
    }
    if (is_name("in")) op = CompareOp::kIn;
    const bool not_in = is_name("not") && following().kind == TokenKind::kName && following().text == "in";
    if (not_in) {
      take();
      op = CompareOp::kNotIn;
    }
    if (!op.has_value()) break;
    take();
    if (result == nullptr) {
      result = make(ExpressionKind::kCompare, line);
      adopt(*result, result->operands, std::move(first));
    }
    result->compare_ops.push_back(*op);
    adopt(*result, result->operands, sum());
  }
  return result == nullptr ? std::move(first) : std::move(result);
}

ExpressionPtr Parser::sum() {
  const int line = current().line;
  ExpressionPtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const BinaryOp op = take().text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract;
    left = binary(op, std::move(left), concatenation(), line);
  }
  return left;
}

ExpressionPtr Parser::concatenation() {
  const int line = current().line;
  ExpressionPtr first = product();
  if (!is_operator("~")) return first;
  ExpressionPtr result = make(ExpressionKind::kConcatenate, line);
  adopt(*result, result->operands, std::move(first));
  while (skip_operator("~")) adopt(*result, result->operands, product());
  return result;
}

ExpressionPtr Parser::product() {
  const int line = current().line;
  ExpressionPtr left = power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const std::string text = take().text;
    const BinaryOp op = text == "*"    ? BinaryOp::kMultiply
                        : text == "/"  ? BinaryOp::kDivide
                        : text == "//" ? BinaryOp::kFloorDivide
                                       : BinaryOp::kModulo;
    left = binary(op, std::move(left), power(), line);
  }
  return left;
}

ExpressionPtr Parser::power() {
  const int line = current().line;
  ExpressionPtr left = unary();
  while (skip_operator("**")) left = binary(BinaryOp::kPower, std::move(left), unary(), line);
  return left;
}

ExpressionPtr Parser::unary(bool with_filter) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExpressionPtr value;
  if (is_operator("-") || is_operator("+")) {
    const bool negative = take().text == "-";
    value = make(negative ? ExpressionKind::kNegate : ExpressionKind::kPositive, line);
    adopt(*value, value->operands, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filters(std::move(value)) : std::move(value);
}

ExpressionPtr Parser::name_or_constant() {
  const Token token = take();
  if (token.text == "true" || token.text == "True") return constant(Value::boolean(true), token.line);
  if (token.text == "false" || token.text == "False") return constant(Value::boolean(false), token.line);
  if (token.text == "none" || token.text == "None") return constant(Value::none(), token.line);
  ExpressionPtr result = make(ExpressionKind::kName, token.line);
  result->text = token.text;
  result->name_id = names_.id(token.text);
  if (!macros_.empty()) {
    MacroDefinition& macro = *macros_.back();
    macro.uses_caller |= token.text == "caller";
    macro.uses_varargs |= token.text == "varargs";
    macro.uses_kwargs |= token.text == "kwargs";
  }
  return result;
}

ExpressionPtr Parser::primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kName:
      return name_or_constant();
    case TokenKind::kString: {
      const int line = token.line;
      std::string text;
      while (current().kind == TokenKind::kString) text += take().text;
      return constant(Value::string(std::move(text)), line);
    }
    case TokenKind::kInteger:
      return constant(Value::integer(token.integer), take().line);
    case TokenKind::kFloat:
      return constant(Value::real(token.real), take().line);
    default:
      break;
  }
  if (is_operator("[")) return list();
  if (is_operator("{")) return dict();
  if (!skip_operator("(")) unexpected("an expression");
  ExpressionPtr result = tuple(true, true);
  expect_operator(")");
  return result;
}

ExpressionPtr Parser::list() {
  ExpressionPtr result = make(ExpressionKind::kList, take().line);
  while (!is_operator("]")) {
    if (!result->operands.empty()) expect_operator(",");
    if (is_operator("]")) break;
    adopt(*result, result->operands, expression());
  }
  expect_operator("]");
  return result;
}

ExpressionPtr Parser::dict() {
  ExpressionPtr result = make(ExpressionKind::kDict, take().line);
  while (!is_operator("}")) {
    if (!result->operands.empty()) expect_operator(",");
    if (is_operator("}")) break;
    adopt(*result, result->operands, expression());
    expect_operator(":");
    adopt(*result, result->operands, expression());
  }
  expect_operator("}");
  return result;
}

ExpressionPtr Parser::postfix(ExpressionPtr value) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      value = subscript(std::move(value));
    } else if (is_operator("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::filters(ExpressionPtr value) {
  while (true) {
    if (skip_operator("|")) {
      value = filter(std::move(value));
    } else if (is_name("is")) {
      value = test(std::move(value));
    } else if (is_operator("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::filter(ExpressionPtr value) {
  ExpressionPtr result = make(ExpressionKind::kFilter, current().line);
  result->text = expect_name();
  result->filter = find_filter(result->text);
  if (result->filter == nullptr) refuse_template("filter '" + result->text + "'", result->line);
  if (value != nullptr) adopt(*result, result->operands, std::move(value));
  if (is_operator("(")) arguments(*result);
  refuse_unsupported_filter(*result);
  return result;
}

ExpressionPtr Parser::test(ExpressionPtr value) {
  ExpressionPtr result = make(ExpressionKind::kTest, take().line);
  const bool negated = skip_name("not");
  result->text = expect_name();
  result->test = find_test(result->text);
  if (result->test == nullptr) refuse_template("test '" + result->text + "'", result->line);
  adopt(*result, result->operands, std::move(value));
  const TokenKind kind = current().kind;
  const bool is_word = kind == TokenKind::kName && !is_name("else") && !is_name("or") && !is_name("and");
  if (is_operator("(")) {
    arguments(*result);
  } else if (is_word || kind == TokenKind::kString || kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
             is_operator("[") || is_operator("{")) {
    if (is_name("is")) refuse_template("'is' after 'is'", result->line);
    adopt(*result, result->arguments, postfix(primary()));
  }
  if (!negated) return result;
  ExpressionPtr inverse = make(ExpressionKind::kNot, result->line);
  adopt(*inverse, inverse->operands, std::move(result));
  return inverse;
}

ExpressionPtr Parser::subscript(ExpressionPtr value) {
  const int line = current().line;
  if (skip_operator(".")) {
    ExpressionPtr result;
    if (current().kind == TokenKind::kInteger) {
      result = make(ExpressionKind::kItem, line);
      adopt(*result, result->operands, std::move(value));
      const Token index = take();
      adopt(*result, result->operands, constant(Value::integer(index.integer), index.line));
      return result;
    }
    result = make(ExpressionKind::kAttribute, line);
    adopt(*result, result->operands, std::move(value));
    result->text = expect_name();
    refuse_unsupported_attribute(*result);
    return result;
  }
  take();  // [
  if (is_operator("]")) unexpected("an index");
  std::vector<ExpressionPtr> parts(1);
  while (true) {
    if (skip_operator(":")) {
      if (parts.size() == 3) unexpected("]");
      parts.emplace_back();
    } else if (is_operator("]")) {
      break;
    } else {
      if (parts.back() != nullptr) unexpected("]");
      parts.back() = expression();
    }
  }
  take();  // ]
  ExpressionPtr result = make(parts.size() == 1 ? ExpressionKind::kItem : ExpressionKind::kSlice, line);
  adopt(*result, result->operands, std::move(value));
  if (parts.size() > 1) parts.resize(3);
  for (ExpressionPtr& part : parts) adopt(*result, result->operands, std::move(part));
  return result;
}

ExpressionPtr Parser::call(ExpressionPtr value) {
  ExpressionPtr result = make(ExpressionKind::kCall, current().line);
  adopt(*result, result->operands, std::move(value));
  arguments(*result);
  refuse_unsupported_call(*result);
  return result;
}

void Parser::arguments(Expression& call) {
  const Nesting nesting(*this);
  expect_operator("(");
  bool comma = false;
  while (!is_operator(")")) {
    if (comma) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    comma = true;
    if (is_operator("*") || is_operator("**")) refuse_template("* and ** in a call", current().line);
    if (current().kind == TokenKind::kName && following().kind == TokenKind::kOperator && following().text == "=") {
      Keyword keyword;
      keyword.name = take().text;
      take();
      std::vector<ExpressionPtr> value;
      adopt(call, value, expression());
      keyword.value = std::move(value.front());
      call.keywords.push_back(std::move(keyword));
    } else {
      if (!call.keywords.empty()) refuse_template("positional after keyword argument", current().line);
      adopt(call, call.arguments, expression());
    }
  }
  take();
}

}  // namespace ft::jinja
