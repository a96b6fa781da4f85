#include "engine/text/text_pattern.h"

#include "engine/text/utf8.h"
#include "kernels/base/error.h"

namespace ft {

TextPattern::TextPattern(const JsonNode& node) {
  if (node.has("String")) {
    literal_ = node.at("String").text();
    if (literal_.empty()) node.at("String").refuse("empty pattern", "", "a string of one or more characters");
  } else if (node.has("Regex")) {
    const JsonNode regex = node.at("Regex");
    try {
      regex_ = std::make_unique<Regex>(regex.text());
    } catch (const Error& error) {
      regex.refuse(error.parts().what, error.parts().value, error.parts().allowed);
    }
  } else {
    node.refuse("pattern not supported", "", "String, Regex");
  }
}

TextPattern::TextPattern(std::string_view regex) : regex_(std::make_unique<Regex>(regex)) {}

TextPattern::Finder::Finder(const TextPattern& pattern) : pattern_(pattern) {
  if (pattern.regex_ != nullptr) matcher_ = std::make_unique<RegexMatcher>(*pattern.regex_);
}

void TextPattern::Finder::find_all(std::string_view text, std::vector<TextSpan>& matches) {
  if (matcher_ == nullptr) {
    const size_t length = pattern_.literal_.size();
    for (size_t at = text.find(pattern_.literal_); at != std::string_view::npos;
         at = text.find(pattern_.literal_, at + length)) {
      matches.push_back({at, at + length});
    }
    return;
  }
  TextSpan match;
  size_t from = 0;
  size_t last_end = std::string_view::npos;
  while (from <= text.size() && matcher_->find(text, from, match)) {
    from = match.end;
    if (match.begin == match.end && match.begin == last_end) {
      if (from == text.size()) break;
      from += static_cast<size_t>(utf8_step(text, from).length);
      continue;
    }
    last_end = match.end;
    matches.push_back(match);
  }
}

}  // namespace ft
