// Template source to a CompiledTemplate. Grammar and precedence are jinja2's.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/lexer.h"

namespace ft::jinja {

// Throws Error naming the construct and its line.
std::unique_ptr<const CompiledTemplate> parse_template(std::string_view source);

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  std::unique_ptr<const CompiledTemplate> run();

 private:
  // Statements (parser.cpp).
  Block statements(std::initializer_list<std::string_view> ends);
  void tag(Block& block);
  std::unique_ptr<Statement> statement(const std::string& name, int line);
  Block body(std::initializer_list<std::string_view> ends);  // of a block: up to the tag that ends it
  std::unique_ptr<Statement> if_statement(int line);
  std::unique_ptr<Statement> for_statement(int line);
  std::unique_ptr<Statement> set_statement(int line);
  std::unique_ptr<Statement> macro_statement(int line);
  std::unique_ptr<Statement> call_statement(int line);
  std::unique_ptr<Statement> filter_statement(int line);
  std::unique_ptr<Statement> with_statement(int line);
  void parameters(MacroDefinition& macro);
  void macro_body(MacroDefinition& macro, std::string_view end);
  Target target(bool may_be_attribute);
  Target single_target(bool may_be_attribute);

  // Expressions (parser_expressions.cpp).
  ExpressionPtr tuple(bool with_conditional, bool parenthesized);
  ExpressionPtr expression(bool with_conditional = true);
  ExpressionPtr conditional();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr filters(ExpressionPtr value);
  ExpressionPtr filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr value);
  void arguments(Expression& call);
  ExpressionPtr binary(BinaryOp op, ExpressionPtr left, ExpressionPtr right, int line);

  // Nodes (parser.cpp).
  ExpressionPtr make(ExpressionKind kind, int line) const;
  ExpressionPtr constant(Value value, int line) const;
  // Puts `operand` under `parent`; bounds the depth of the tree.
  void adopt(Expression& parent, std::vector<ExpressionPtr>& list, ExpressionPtr operand) const;

  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take();  // the current token; stays valid
  bool is_operator(std::string_view text) const;
  bool is_name(std::string_view text) const;
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_block_end();
  std::string expect_name();
  [[noreturn]] void unexpected(std::string_view wanted) const;

  // Counts blocks and expressions that are open, so that a source cannot exhaust the stack.
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loop_depth_ = 0;  // for statements around, inside the current macro
  NameTable names_;
  std::vector<MacroDefinition*> macros_;  // around
};

}  // namespace ft::jinja
