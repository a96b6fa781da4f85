// Template source to tokens, as jinja2 does with trim_blocks, lstrip_blocks and without line statements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ft::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, unescaped string, operator
  int64_t integer = 0;
  double real = 0;
};

// Throws Error naming the line.
std::vector<Token> tokenize(std::string_view source);

// "chat template: what, line N" for the lexer and the parser.
[[noreturn]] void refuse_template(const std::string& what, int line);

}  // namespace ft::jinja
