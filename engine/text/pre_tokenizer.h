// The "pre_tokenizer" of tokenizer.json: null, Split, ByteLevel, and Sequence of these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/text/text_pattern.h"
#include "engine/text/tokenizer_json.h"

namespace ft {

// A text cut into pieces that BPE sees one by one. Pieces are in order, not empty, and lie inside `text`.
struct PieceList {
  std::string text;
  std::vector<TextSpan> pieces;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PieceList& list) const = 0;

  static std::unique_ptr<PreTokenizer> parse(const JsonNode& node);  // null for null
};

// What becomes of the matches of a Split.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Pieces of [0, length) for the sorted, disjoint `matches`; `invert` exchanges matches and the text between them. Empty
// pieces are left out.
std::vector<TextSpan> split_at_matches(size_t length, const std::vector<TextSpan>& matches, SplitBehavior behavior,
                                       bool invert);

}  // namespace ft
