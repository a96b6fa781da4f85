#include <array>
#include <cstdint>

#include "engine/text/regex.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// Unicode White_Space. PCRE2's own \s also takes U+180E, which stopped being a space in Unicode 6.3.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{N}\p{Pc})";  // PCRE2's own \w has no marks

// PCRE2 reads a bare script name as Script_Extensions, Oniguruma as Script.
constexpr std::array<std::string_view, 12> kScripts = {"Han",    "Hiragana", "Katakana", "Hangul",
                                                       "Latin",  "Cyrillic", "Greek",    "Arabic",
                                                       "Hebrew", "Thai",     "Common",   "Devanagari"};
constexpr std::string_view kCategories =
    " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cn Co Cs ";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) outside_class();
    return std::move(out_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool starts(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  [[noreturn]] void refuse(std::string_view construct) const {
    throw Error(ErrorKind::kFailed,
                {"regular expression not supported: '" + std::string(construct) + "' at byte " + std::to_string(at_),
                 std::string(pattern_), "", "", ""});
  }

  void copy(size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  void outside_class() {
    switch (peek()) {
      case '\\':
        escape(false);
        break;
      case '[':
        character_class();
        break;
      case '(':
        group();
        break;
      case '{':
        interval();
        break;
      default:
        copy(1);
    }
  }

  // Groups that both libraries read alike. (?i) alone reaches to the end of its group, across alternatives in one
  // library only; at the start of the pattern the two agree.
  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    for (const std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (starts(opening)) return copy(opening.size());
    }
    if (at_ == 0 && starts("(?i)")) return copy(4);
    refuse(pattern_.substr(at_, 4));
  }

  // {n}, {n,}, {n,m} and Ruby's {,m}. A + or ? after an interval is possessive or lazy in one library, and another
  // quantifier in the other.
  void interval() {
    size_t end = at_ + 1;
    while (end < pattern_.size() && (is_digit(pattern_[end]) || pattern_[end] == ',')) ++end;
    if (end == pattern_.size() || pattern_[end] != '}' || end == at_ + 1) refuse("{");
    const std::string_view inside = pattern_.substr(at_ + 1, end - at_ - 1);
    if (inside == "," || inside.find(',') != inside.rfind(',')) refuse("{");
    if (end + 1 < pattern_.size() && (pattern_[end + 1] == '+' || pattern_[end + 1] == '?')) refuse("}+ or }?");
    out_ += inside.front() == ',' ? "{0" : "{";
    out_.append(inside).append("}");
    at_ = end + 1;
  }

  void character_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') refuse("[]");
    while (true) {
      if (at_ >= pattern_.size()) refuse("[ without ]");
      if (starts("&&")) refuse("&&");
      if (peek() == '[') refuse("[ inside [");
      if (peek() == ']') return copy(1);
      if (peek() == '\\') {
        escape(true);
      } else {
        copy(1);
      }
    }
  }

  void put_class(std::string_view content, bool negated, bool in_class) {
    if (!in_class) out_ += negated ? "[^" : "[";
    out_ += content;
    if (!in_class) out_ += ']';
    at_ += 2;
  }

  void escape(bool in_class) {
    const char c = peek(1);
    switch (c) {
      case 's':
        return put_class(kSpace, false, in_class);
      case 'S':
        return put_class(in_class ? kNotSpace : kSpace, true, in_class);
      case 'w':
        return put_class(kWord, false, in_class);
      case 'W':
        if (in_class) refuse("\\W inside [");
        return put_class(kWord, true, false);
      case 'p':
      case 'P':
        return property();
      case 'x':
        return hexadecimal();
      case 'u':
        return unicode_escape();
      case 'v':  // the vertical tab in Ruby; all vertical space in PCRE2
        out_ += "\\x{b}";
        at_ += 2;
        return;
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
        return copy(2);
      case 'A':
      case 'z':
        if (in_class) refuse(pattern_.substr(at_, 2));
        return copy(2);
      default:
        if (c == '\0' || is_letter(c) || is_digit(c) || static_cast<uint8_t>(c) >= 0x80) {
          refuse(pattern_.substr(at_, 2));
        }
        return copy(2);
    }
  }

  void property() {
    const size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse(pattern_.substr(at_, 3));
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string_view prefix;
    const std::string listed = std::string(" ").append(name).append(" ");
    if (kCategories.find(listed) == std::string_view::npos) {
      for (const std::string_view script : kScripts) {
        if (script == name) prefix = "sc:";
      }
      if (prefix.empty()) refuse(pattern_.substr(at_, end + 1 - at_));
    }
    out_ += negated ? "\\P{" : "\\p{";
    out_ += prefix;
    out_ += name;
    out_ += '}';
    at_ = end + 1;
  }

  void put_code_point(size_t digits_at, size_t count, size_t length) {
    if (count == 0 || count > 6) refuse(pattern_.substr(at_, 2));
    for (size_t i = 0; i < count; ++i) {
      if (digits_at + i >= pattern_.size() || !is_hex(pattern_[digits_at + i])) refuse(pattern_.substr(at_, 2));
    }
    out_.append("\\x{").append(pattern_.substr(digits_at, count)).append("}");
    at_ += length;
  }

  void hexadecimal() {
    if (peek(2) != '{') {
      // \xHH above 7f is a raw byte in Oniguruma.
      if (!is_digit(peek(2)) || peek(2) > '7') refuse("\\x");
      return put_code_point(at_ + 2, 2, 4);
    }
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse("\\x{");
    put_code_point(at_ + 3, end - at_ - 3, end + 1 - at_);
  }

  void unicode_escape() { put_code_point(at_ + 2, 4, 6); }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_regex(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace ft
