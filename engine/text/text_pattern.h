// The "pattern" of a Split or Replace: {"String": ...} or {"Regex": ...}.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/regex.h"
#include "engine/text/tokenizer_json.h"

namespace ft {

class TextPattern {
 public:
  explicit TextPattern(const JsonNode& node);
  explicit TextPattern(std::string_view regex);

  // Finds matches in one text after another; belongs to one thread.
  class Finder {
   public:
    explicit Finder(const TextPattern& pattern);
    // Appends the matches from left to right; an empty match right after another match does not count.
    void find_all(std::string_view text, std::vector<TextSpan>& matches);

   private:
    const TextPattern& pattern_;
    std::unique_ptr<RegexMatcher> matcher_;
    std::string stand_ins_;
  };

 private:
  std::string literal_;  // when regex_ is null
  std::unique_ptr<Regex> regex_;
};

}  // namespace ft
