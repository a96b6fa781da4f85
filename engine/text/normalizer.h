// The "normalizer" of tokenizer.json: null, NFC, NFD, NFKC, NFKD, Replace, Prepend, and Sequence of these.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/text/tokenizer_json.h"

namespace ft {

inline constexpr size_t kMaxNormalizedBytes = 64u << 20;  // a Replace or NFKD can make a text longer

// Unicode canonical order of a text with long runs of combining marks, which ICU would sort in quadratic time. Marks in
// runs of more than kLongMarkRun are decomposed and sorted; the result is canonically equivalent to the text.
inline constexpr size_t kLongMarkRun = 32;
std::string sort_long_mark_runs(std::string_view text);

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // REQUIRES: valid UTF-8. Throws Error(kRequest) when the result is longer than kMaxNormalizedBytes.
  virtual std::string normalize(std::string text) const = 0;

  static std::unique_ptr<Normalizer> parse(const JsonNode& node);  // null for null
};

}  // namespace ft
