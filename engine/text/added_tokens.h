// The "added_tokens" of tokenizer.json: strings that are found in a text before anything else, longest first at the
// leftmost place.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/normalizer.h"
#include "engine/text/tokenizer_json.h"

namespace ft {

inline constexpr size_t kMaxAddedTokens = 100'000;
inline constexpr size_t kMaxAddedTokenBytes = 1024;  // bounds the work per byte of text

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool normalized = false;  // searched in normalized text, after the others
  bool single_word = false, lstrip = false, rstrip = false;
};

// A part of a text: a token, or text between tokens (id -1).
struct TokenOrText {
  int32_t id = -1;
  size_t begin = 0, end = 0;
};

// Finds a fixed set of tokens. Immutable.
class TokenFinder {
 public:
  void add(std::string_view content, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }
  // Parts of `text` in order, none of them empty text.
  std::vector<TokenOrText> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t& bytes) const;

  std::map<std::string, AddedToken, std::less<>> tokens_;  // by the bytes that are searched
  std::array<std::vector<size_t>, 256> lengths_;           // in use, by first byte, longest first
};

class AddedTokens {
 public:
  // Reads the array; a token that the vocabulary also has must have the same id there. normalizer: null for none.
  AddedTokens(const JsonNode& list, const Normalizer* normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // with_special: also tokens marked special.
  const TokenFinder& raw(bool with_special) const { return with_special ? raw_all_ : raw_ordinary_; }
  const TokenFinder& normalized(bool with_special) const {
    return with_special ? normalized_all_ : normalized_ordinary_;
  }

 private:
  std::vector<AddedToken> tokens_;
  TokenFinder raw_all_, raw_ordinary_, normalized_all_, normalized_ordinary_;
};

}  // namespace ft
