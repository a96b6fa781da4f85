#include "engine/text/jinja/parser.h"

#include <algorithm>

#include "engine/text/jinja/limits.h"

namespace ft::jinja {
namespace {

constexpr std::string_view kSupportedTags = "if, for, set, macro, call, filter, with, generation, break, continue, raw";

std::unique_ptr<Statement> make_statement(StatementKind kind, int line) {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

}  // namespace

int NameTable::id(const std::string& name) {
  const auto [place, inserted] = ids_.emplace(name, static_cast<int>(names_.size()));
  if (inserted) names_.push_back(name);
  return place->second;
}

int NameTable::find(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? -1 : found->second;
}

std::unique_ptr<const CompiledTemplate> parse_template(std::string_view source) {
  return Parser(tokenize(source)).run();
}

std::unique_ptr<const CompiledTemplate> Parser::run() {
  auto compiled = std::make_unique<CompiledTemplate>();
  names_.id("loop");
  names_.id("caller");
  names_.id("varargs");
  names_.id("kwargs");
  compiled->body = statements({});
  compiled->names = std::move(names_);
  return compiled;
}

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting) {
    --parser_.nesting_;
    refuse_template("nested deeper than " + std::to_string(kMaxNesting), parser_.current().line);
  }
}

const Token& Parser::take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::is_operator(std::string_view text) const {
  return current().kind == TokenKind::kOperator && current().text == text;
}

bool Parser::is_name(std::string_view text) const {
  return current().kind == TokenKind::kName && current().text == text;
}

bool Parser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  take();
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) unexpected(text);
}

void Parser::expect_block_end() {
  if (current().kind != TokenKind::kBlockEnd) unexpected("%}");
  take();
}

std::string Parser::expect_name() {
  if (current().kind != TokenKind::kName) unexpected("a name");
  return take().text;
}

void Parser::unexpected(std::string_view wanted) const {
  std::string message = "expected ";
  message.append(wanted);
  switch (current().kind) {
    case TokenKind::kEnd:
      message += ", found the end of the template";
      break;
    case TokenKind::kBlockEnd:
    case TokenKind::kVariableEnd:
      message += ", found the end of the tag";
      break;
    default:
      message.append(", found '").append(current().text.substr(0, 40)).append("'");
  }
  refuse_template(message, current().line);
}

Block Parser::statements(std::initializer_list<std::string_view> ends) {
  Block block;
  while (true) {
    const Token& token = current();
    if (token.kind == TokenKind::kEnd) {
      if (ends.size() != 0) unexpected(std::string("{% ").append(*(ends.end() - 1)).append(" %}"));
      return block;
    }
    if (token.kind == TokenKind::kData) {
      block.push_back(make_statement(StatementKind::kText, token.line));
      block.back()->text = take().text;
    } else if (token.kind == TokenKind::kVariableBegin) {
      block.push_back(make_statement(StatementKind::kOutput, token.line));
      take();
      block.back()->expression = tuple(true, false);
      if (current().kind != TokenKind::kVariableEnd) unexpected("}}");
      take();
    } else {
      take();  // {%
      if (std::any_of(ends.begin(), ends.end(), [this](std::string_view end) { return is_name(end); })) return block;
      tag(block);
    }
  }
}

void Parser::tag(Block& block) {
  const Nesting nesting(*this);
  const int line = current().line;
  const std::string name = expect_name();
  block.push_back(statement(name, line));
  expect_block_end();
}

std::unique_ptr<Statement> Parser::statement(const std::string& name, int line) {
  if (name == "if") return if_statement(line);
  if (name == "for") return for_statement(line);
  if (name == "set") return set_statement(line);
  if (name == "macro") return macro_statement(line);
  if (name == "call") return call_statement(line);
  if (name == "filter") return filter_statement(line);
  if (name == "with") return with_statement(line);
  if (name == "generation") {  // marks the assistant's text for training
    auto scope = make_statement(StatementKind::kScope, line);
    scope->body = body({"endgeneration"});
    take();
    return scope;
  }
  if (name == "break" || name == "continue") {
    if (loop_depth_ == 0) refuse_template("'" + name + "' outside of a loop", line);
    return make_statement(name == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
  }
  refuse_template(std::string("tag '").append(name).append("' (supported: ").append(kSupportedTags).append(")"), line);
}

Block Parser::body(std::initializer_list<std::string_view> ends) {
  skip_operator(":");
  expect_block_end();
  return statements(ends);
}

std::unique_ptr<Statement> Parser::if_statement(int line) {
  auto statement = make_statement(StatementKind::kIf, line);
  while (true) {
    Branch branch;
    branch.condition = tuple(false, false);
    branch.body = body({"elif", "else", "endif"});
    statement->branches.push_back(std::move(branch));
    const std::string end = take().text;
    if (end == "elif") continue;
    if (end == "else") {
      statement->branches.push_back({nullptr, body({"endif"})});
      take();
    }
    return statement;
  }
}

std::unique_ptr<Statement> Parser::for_statement(int line) {
  auto statement = make_statement(StatementKind::kFor, line);
  statement->targets.push_back(target(false));
  if (!skip_name("in")) unexpected("in");
  statement->expression = tuple(false, false);
  if (skip_name("if")) statement->condition = expression();
  if (is_name("recursive")) refuse_template("recursive loop", line);
  ++loop_depth_;
  statement->body = body({"endfor", "else"});
  --loop_depth_;
  if (take().text == "else") {
    statement->else_body = body({"endfor"});
    take();
  }
  return statement;
}

std::unique_ptr<Statement> Parser::set_statement(int line) {
  auto statement = make_statement(StatementKind::kSet, line);
  statement->targets.push_back(target(true));
  if (skip_operator("=")) {
    statement->expression = tuple(true, false);
    return statement;
  }
  statement->kind = StatementKind::kSetBlock;
  while (is_operator("|")) {
    take();
    statement->expression = filter(std::move(statement->expression));
  }
  statement->body = body({"endset"});
  take();
  return statement;
}

void Parser::parameters(MacroDefinition& macro) {
  expect_operator("(");
  while (!is_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    Parameter parameter;
    parameter.name = expect_name();
    parameter.name_id = names_.id(parameter.name);
    if (skip_operator("=")) {
      parameter.fallback = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().fallback != nullptr) {
      refuse_template("parameter without a default after one with a default", current().line);
    }
    macro.parameters.push_back(std::move(parameter));
  }
  take();
}

void Parser::macro_body(MacroDefinition& macro, std::string_view end) {
  macros_.push_back(&macro);
  const int outer_loops = std::exchange(loop_depth_, 0);
  macro.body = body({end});
  loop_depth_ = outer_loops;
  macros_.pop_back();
  take();
}

std::unique_ptr<Statement> Parser::macro_statement(int line) {
  auto statement = make_statement(StatementKind::kMacro, line);
  statement->macro = std::make_unique<MacroDefinition>();
  statement->macro->name = expect_name();
  names_.id(statement->macro->name);
  parameters(*statement->macro);
  macro_body(*statement->macro, "endmacro");
  return statement;
}

std::unique_ptr<Statement> Parser::call_statement(int line) {
  auto statement = make_statement(StatementKind::kCallBlock, line);
  statement->macro = std::make_unique<MacroDefinition>();
  statement->macro->name = "caller";
  if (is_operator("(")) parameters(*statement->macro);
  statement->expression = expression();
  if (statement->expression->kind != ExpressionKind::kCall) refuse_template("call block without a call", line);
  macro_body(*statement->macro, "endcall");
  return statement;
}

std::unique_ptr<Statement> Parser::filter_statement(int line) {
  auto statement = make_statement(StatementKind::kFilterBlock, line);
  do {
    statement->expression = filter(std::move(statement->expression));
  } while (skip_operator("|"));
  statement->body = body({"endfilter"});
  take();
  return statement;
}

std::unique_ptr<Statement> Parser::with_statement(int line) {
  auto statement = make_statement(StatementKind::kWith, line);
  while (current().kind != TokenKind::kBlockEnd) {
    if (!statement->targets.empty()) expect_operator(",");
    statement->targets.push_back(target(false));
    expect_operator("=");
    statement->values.push_back(expression());
  }
  statement->body = body({"endwith"});
  take();
  return statement;
}

Target Parser::single_target(bool may_be_attribute) {
  const Nesting nesting(*this);
  Target result;
  result.line = current().line;
  if (skip_operator("(")) {
    result = target(false);
    expect_operator(")");
    return result;
  }
  const std::string name = expect_name();
  for (const std::string_view word : {"true", "false", "none", "True", "False", "None"}) {
    if (name == word) refuse_template("assignment to '" + name + "'", result.line);
  }
  result.name_id = names_.id(name);
  if (may_be_attribute && skip_operator(".")) result.attribute = expect_name();
  return result;
}

Target Parser::target(bool may_be_attribute) {
  Target first = single_target(may_be_attribute);
  if (!is_operator(",")) return first;
  Target result;
  result.unpacks = true;
  result.line = first.line;
  result.parts.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().kind != TokenKind::kName && !is_operator("(")) break;
    if (is_name("in")) break;
    result.parts.push_back(single_target(may_be_attribute));
  }
  return result;
}

ExpressionPtr Parser::make(ExpressionKind kind, int line) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

ExpressionPtr Parser::constant(Value value, int line) const {
  ExpressionPtr expression = make(ExpressionKind::kConstant, line);
  expression->constant = std::move(value);
  return expression;
}

void Parser::adopt(Expression& parent, std::vector<ExpressionPtr>& list, ExpressionPtr operand) const {
  if (operand != nullptr) {
    parent.depth = std::max(parent.depth, operand->depth + 1);
    if (parent.depth > kMaxNesting) {
      refuse_template("expression nested deeper than " + std::to_string(kMaxNesting), parent.line);
    }
  }
  list.push_back(std::move(operand));
}

}  // namespace ft::jinja
