#include "engine/text/text_pattern.h"

#include <algorithm>

#include "engine/text/unicode_newer.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// Replaces newer code points by their stand-ins. Returns false, and leaves `result` alone, when there are none.
bool replace_newer_code_points(std::string_view text, std::string& result) {
  static_assert(kNewerCodePoints.front().first >= 0x800);  // so all of them start with a byte from 0xe0 on
  bool replaced = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xe0) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    const auto range = std::lower_bound(kNewerCodePoints.begin(), kNewerCodePoints.end(), step.code_point,
                                        [](const NewerCodePoints& r, char32_t c) { return r.last < c; });
    if (range != kNewerCodePoints.end() && range->first <= step.code_point) {
      if (!replaced) result = text;
      replaced = true;
      std::string stand_in;
      append_utf8(stand_in, range->stand_in);
      result.replace(at, stand_in.size(), stand_in);
    }
    at += static_cast<size_t>(step.length);
  }
  return replaced;
}

}  // namespace

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
  if (replace_newer_code_points(text, stand_ins_)) text = stand_ins_;
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
