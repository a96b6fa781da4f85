// Regular expressions of tokenizer.json, matched as Hugging Face's tokenizers match them (Oniguruma, Ruby syntax), with
// PCRE2 and its JIT.
//
// The two libraries read some constructs differently. translate_regex rewrites those that have an equivalent (\s, \w,
// \v, \uHHHH, script names, {,n}) and refuses the others; what is left means the same in both. A Regex is immutable:
// any thread may use it. A Matcher belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ft {

inline constexpr size_t kMaxRegexBytes = 16 << 10;

// Throws Error that names the construct and its offset.
std::string translate_regex(std::string_view pattern);

class Regex {
 public:
  explicit Regex(std::string_view pattern);  // throws Error naming the pattern, the construct, the offset
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

 private:
  friend class RegexMatcher;
  struct State;
  std::unique_ptr<State> state_;
};

struct TextSpan {
  size_t begin = 0, end = 0;  // bytes
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex);
  ~RegexMatcher();
  RegexMatcher(const RegexMatcher&) = delete;
  RegexMatcher& operator=(const RegexMatcher&) = delete;

  // First match that starts at or after `from`. Work is bounded: a text on which the pattern backtracks without end is
  // an Error(kRequest). REQUIRES: text is valid UTF-8, from is on a code point.
  bool find(std::string_view text, size_t from, TextSpan& match);

 private:
  const Regex& regex_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
