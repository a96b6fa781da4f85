#include "engine/text/jinja/lexer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/text_ops.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"

namespace ft::jinja {
namespace {

// Longest first.
constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// All line ends become \n, and one at the very end goes away (keep_trailing_newline is false).
std::string normalize_lines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    push(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  enum class Opening { kVariable, kBlock, kComment, kRaw };

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts(std::string_view prefix) const { return text_.substr(at_).starts_with(prefix); }

  void push(TokenKind kind, std::string text = {}) { tokens_.push_back({kind, line_, std::move(text), 0, 0}); }

  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
    line_starting_ = bytes > 0 ? text_[at_ - 1] == '\n' : line_starting_;
  }

  size_t space_bytes(size_t at) const { return text_.size() - at - strip(text_.substr(at), {}, Side::kLeft).size(); }

  // Bytes of {%- raw -%} at `at`, 0 when it is none.
  size_t raw_bytes(size_t at) const {
    size_t end = at + 2;
    if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
    end += space_bytes(end);
    if (!text_.substr(end).starts_with("raw")) return 0;
    end += 3;
    end += space_bytes(end);
    const std::string_view rest = text_.substr(end);
    if (rest.starts_with("-%}")) return end + 3 + space_bytes(end + 3) - at;
    return rest.starts_with("%}") ? end + 2 - at : 0;
  }

  // Text up to the next tag, and the tag's opening.
  void root() {
    size_t open = at_;
    while (true) {
      open = text_.find('{', open);
      if (open == std::string_view::npos || open + 1 >= text_.size()) {
        push(TokenKind::kData, std::string(text_.substr(at_)));
        advance(text_.size() - at_);
        return;
      }
      const char kind = text_[open + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++open;
    }
    const size_t raw = text_[open + 1] == '%' ? raw_bytes(open) : 0;
    const Opening opening = raw != 0                 ? Opening::kRaw
                            : text_[open + 1] == '%' ? Opening::kBlock
                            : text_[open + 1] == '{' ? Opening::kVariable
                                                     : Opening::kComment;
    const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    data_before_tag(open, sign, opening != Opening::kVariable);
    const size_t tag = sign == '-' || sign == '+' ? 3 : 2;
    switch (opening) {
      case Opening::kRaw:
        advance(raw);
        return raw_text();
      case Opening::kComment:
        advance(tag);
        return comment();
      case Opening::kBlock:
        push(TokenKind::kBlockBegin);
        advance(tag);
        return code(true);
      case Opening::kVariable:
        push(TokenKind::kVariableBegin);
        advance(tag);
        return code(false);
    }
  }

  // Emits the text before a tag, without the white space that the tag takes away.
  void data_before_tag(size_t open, char sign, bool may_strip_line) {
    std::string_view data = text_.substr(at_, open - at_);
    if (sign == '-') {
      data = strip(data, {}, Side::kRight);
    } else if (sign != '+' && may_strip_line) {
      const size_t newline = data.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starting_) && strip(data.substr(line_begin), {}, Side::kLeft).empty()) {
        data = data.substr(0, line_begin);
      }
    }
    if (!data.empty()) push(TokenKind::kData, std::string(data));
    const bool starting = line_starting_;
    advance(open - at_);
    line_starting_ = starting;
  }

  // Consumes the end of a block or comment: white space after "-%}", one newline after "%}".
  void close_tag(std::string_view closing) {
    if (peek() == '-') {
      advance(1 + closing.size());
      return advance(space_bytes(at_));
    }
    if (peek() == '+') return advance(1 + closing.size());
    advance(closing.size() + (peek(closing.size()) == '\n' ? 1 : 0));
  }

  void comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) refuse_template("comment without end", line_);
    const char sign = end > at_ ? text_[end - 1] : '\0';
    advance((sign == '-' || sign == '+' ? end - 1 : end) - at_);
    close_tag("#}");
  }

  void raw_text() {
    for (size_t open = text_.find("{%", at_); open != std::string_view::npos; open = text_.find("{%", open + 1)) {
      size_t end = open + 2;
      const char sign = end < text_.size() ? text_[end] : '\0';
      if (sign == '-' || sign == '+') ++end;
      end += space_bytes(end);
      if (!text_.substr(end).starts_with("endraw")) continue;
      end += 6;
      end += space_bytes(end);
      const std::string_view rest = text_.substr(end);
      if (!rest.starts_with("%}") && !rest.starts_with("-%}") && !rest.starts_with("+%}")) continue;
      data_before_tag(open, sign, true);
      advance(end - at_);
      return close_tag("%}");
    }
    refuse_template("raw block without endraw", line_);
  }

  // Tokens inside a tag, up to its end.
  void code(bool is_block) {
    const int begin_line = line_;
    std::string brackets;  // that are open; a tag does not end inside them
    while (true) {
      if (at_ >= text_.size()) refuse_template("tag without end", begin_line);
      if (brackets.empty() && end_of_tag(is_block)) return;
      if (const size_t space = space_bytes(at_); space > 0) {
        advance(space);
      } else if (is_digit(peek())) {
        number();
      } else if (peek() == '\'' || peek() == '"') {
        string_literal();
      } else if (!name()) {
        operator_token(brackets);
      }
    }
  }

  bool end_of_tag(bool is_block) {
    if (is_block) {
      if (!starts("%}") && !starts("-%}") && !starts("+%}")) return false;
      push(TokenKind::kBlockEnd);
      close_tag("%}");
      return true;
    }
    if (starts("-}}")) {
      push(TokenKind::kVariableEnd);
      advance(3);
      advance(space_bytes(at_));
      return true;
    }
    if (!starts("}}")) return false;
    push(TokenKind::kVariableEnd);
    advance(2);
    return true;
  }

  void operator_token(std::string& brackets) {
    for (const std::string_view op : kOperators) {
      if (!starts(op)) continue;
      const char c = op.front();
      if (c == '(' || c == '[' || c == '{') {
        if (brackets.size() >= kMaxNesting) refuse_template("too many brackets inside each other", line_);
        brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (brackets.empty() || brackets.back() != c) refuse_template(std::string("unexpected '") + c + "'", line_);
        brackets.pop_back();
      }
      push(TokenKind::kOperator, std::string(op));
      return advance(op.size());
    }
    refuse_template("unexpected character '" +
                        std::string(text_.substr(at_, static_cast<size_t>(utf8_step(text_, at_).length))) + "'",
                    line_);
  }

  bool name() {
    size_t end = at_;
    while (end < text_.size()) {
      const Utf8Step step = utf8_step(text_, end);
      const char32_t c = step.code_point;
      const bool ascii = c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      if (!ascii && (c < 0x80 || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_ID_CONTINUE) == 0)) break;
      end += static_cast<size_t>(step.length);
    }
    if (end == at_) return false;
    push(TokenKind::kName, std::string(text_.substr(at_, end - at_)));
    advance(end - at_);
    return true;
  }

  // Digits with single underscores between them.
  size_t digits_end(size_t at) const {
    while (at < text_.size() &&
           (is_digit(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void number() {
    // After a dot it is an index (a.0.b), never a fraction.
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    const size_t whole = digits_end(at_);
    size_t end = whole;
    if (!after_dot && end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1]))
      end = digits_end(end + 1);
    if (!after_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (exponent < text_.size() && is_digit(text_[exponent])) end = digits_end(exponent);
    }
    std::string digits(text_.substr(at_, end - at_));
    std::erase(digits, '_');
    Token token{end == whole ? TokenKind::kInteger : TokenKind::kFloat, line_, digits, 0, 0};
    const char* last = digits.data() + digits.size();
    if (end == whole) {
      if (digits.size() > 1 && digits.front() == '0' && digits.find_first_not_of('0') != std::string::npos) {
        refuse_template("number with a leading zero: " + digits, line_);
      }
      if (digits == "0" && (peek(1) == 'x' || peek(1) == 'o' || peek(1) == 'b')) {
        refuse_template("hexadecimal, octal and binary numbers are not supported", line_);
      }
      if (std::from_chars(digits.data(), last, token.integer).ec != std::errc()) {
        refuse_template("number does not fit in 64 bits: " + digits, line_);
      }
    } else if (std::from_chars(digits.data(), last, token.real).ec != std::errc()) {
      refuse_template("number out of range: " + digits, line_);
    }
    tokens_.push_back(std::move(token));
    advance(end - at_);
  }

  void string_literal() {
    const char quote = peek();
    const int begin_line = line_;
    std::string value;
    size_t at = at_ + 1;
    while (true) {
      if (at >= text_.size()) refuse_template("string without end", begin_line);
      const char c = text_[at];
      if (c == quote) break;
      if (c == '\\') {
        at = escape(at, value);
      } else {
        value += c;
        ++at;
      }
    }
    tokens_.push_back({TokenKind::kString, begin_line, std::move(value), 0, 0});
    advance(at + 1 - at_);
  }

  // Appends what the escape at `at` stands for; returns the offset behind it. Unknown escapes stay as they are.
  size_t escape(size_t at, std::string& value) {
    const char c = at + 1 < text_.size() ? text_[at + 1] : '\0';
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t simple = kLetters.find(c); c != '\0' && simple != std::string_view::npos) {
      value += kValues[simple];
      return at + 2;
    }
    if (c == '\n') return at + 2;
    if (c >= '0' && c <= '7') {
      size_t end = at + 1;
      char32_t code = 0;
      while (end < text_.size() && end < at + 4 && text_[end] >= '0' && text_[end] <= '7') {
        code = code * 8 + static_cast<char32_t>(text_[end++] - '0');
      }
      append_utf8(value, code);
      return end;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') refuse_template("\\N in a string is not supported", line_);
    if (digits == 0) {
      value += '\\';
      return at + 1;
    }
    uint32_t code = 0;
    const char* first = text_.data() + at + 2;
    const bool enough = at + 2 + digits <= text_.size();
    const auto parsed = enough ? std::from_chars(first, first + digits, code, 16)
                               : std::from_chars_result{first, std::errc::invalid_argument};
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (parsed.ec != std::errc() || parsed.ptr != first + digits || surrogate || code > 0x10ffff) {
      refuse_template("escape in a string that is no code point", line_);
    }
    append_utf8(value, code);
    return at + 2 + digits;
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

void refuse_template(const std::string& what, int line) {
  std::string message = "chat template not supported: ";
  message.append(what).append(", line ").append(std::to_string(line));
  throw Error(ErrorKind::kFailed, {message, "", "", "pass a template that uses what is supported", ""});
}

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    throw Error(ErrorKind::kFailed, {"chat template too long", std::to_string(source.size()) + " bytes",
                                     "at most " + std::to_string(kMaxTemplateBytes), "", ""});
  }
  if (valid_utf8_bytes(source) != source.size()) {
    throw Error(ErrorKind::kFailed, {"chat template is not UTF-8", "", "", "", ""});
  }
  return Lexer(source).run();
}

}  // namespace ft::jinja
