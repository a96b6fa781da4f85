#include "engine/text/pre_tokenizer.h"

#include <algorithm>
#include <optional>

#include "engine/text/byte_level.h"

namespace ft {
namespace {

constexpr size_t kMaxStepsInSequence = 32;

// GPT-2's pattern, which ByteLevel uses unless use_regex is false.
constexpr std::string_view kByteLevelRegex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Splits every piece of `list` at the matches of `pattern`, which sees the piece alone.
void split_pieces(PieceList& list, const TextPattern& pattern, SplitBehavior behavior, bool invert) {
  TextPattern::Finder finder(pattern);
  std::vector<TextSpan> pieces, matches;
  const std::string_view text = list.text;
  for (const TextSpan& piece : list.pieces) {
    matches.clear();
    const size_t length = piece.end - piece.begin;
    finder.find_all(text.substr(piece.begin, length), matches);
    for (const TextSpan& part : split_at_matches(length, matches, behavior, invert)) {
      pieces.push_back({piece.begin + part.begin, piece.begin + part.end});
    }
  }
  list.pieces = std::move(pieces);
}

SplitBehavior parse_behavior(const JsonNode& node) {
  const std::string name = node.text();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.refuse("split behavior not supported", name,
              "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

class Split : public PreTokenizer {
 public:
  explicit Split(const JsonNode& node)
      : pattern_(node.at("pattern")),
        behavior_(parse_behavior(node.at("behavior"))),
        invert_(node.flag_or("invert", false)) {}
  void apply(PieceList& list) const override { split_pieces(list, pattern_, behavior_, invert_); }

 private:
  TextPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(const JsonNode& node) : add_prefix_space_(node.flag_or("add_prefix_space", true)) {
    if (node.flag_or("use_regex", true)) regex_.emplace(kByteLevelRegex);
  }

  void apply(PieceList& list) const override {
    if (add_prefix_space_) prefix_spaces(list);
    if (regex_.has_value()) split_pieces(list, *regex_, SplitBehavior::kIsolated, false);
    std::string text;
    text.reserve(list.text.size() + list.text.size() / 2);
    for (TextSpan& piece : list.pieces) {
      const size_t begin = text.size();
      append_byte_level(text, std::string_view(list.text).substr(piece.begin, piece.end - piece.begin));
      piece = {begin, text.size()};
    }
    list.text = std::move(text);
  }

 private:
  static void prefix_spaces(PieceList& list) {
    std::string text;
    text.reserve(list.text.size() + list.pieces.size());
    for (TextSpan& piece : list.pieces) {
      const size_t begin = text.size();
      if (list.text[piece.begin] != ' ') text.push_back(' ');
      text.append(list.text, piece.begin, piece.end - piece.begin);
      piece = {begin, text.size()};
    }
    list.text = std::move(text);
  }

  bool add_prefix_space_;
  std::optional<TextPattern> regex_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(const JsonNode& list) {
    if (list.size() > kMaxStepsInSequence) {
      list.refuse("too many steps", std::to_string(list.size()), "at most " + std::to_string(kMaxStepsInSequence));
    }
    for (size_t i = 0; i < list.size(); ++i) steps_.push_back(PreTokenizer::parse(list.at(i)));
  }
  void apply(PieceList& list) const override {
    for (const auto& step : steps_) {
      if (step != nullptr) step->apply(list);
    }
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

struct Part {
  TextSpan span;
  bool is_match;
};

// Joins each part to the one before it when `join(previous is match, this is match)` says so.
template <typename Join>
std::vector<TextSpan> join_parts(const std::vector<Part>& parts, const Join& join) {
  std::vector<TextSpan> spans;
  bool previous_match = false;
  for (const Part& part : parts) {
    if (!spans.empty() && join(previous_match, part.is_match)) {
      spans.back().begin = std::min(spans.back().begin, part.span.begin);
      spans.back().end = std::max(spans.back().end, part.span.end);
    } else {
      spans.push_back(part.span);
    }
    previous_match = part.is_match;
  }
  return spans;
}

}  // namespace

std::vector<TextSpan> split_at_matches(size_t length, const std::vector<TextSpan>& matches, SplitBehavior behavior,
                                       bool invert) {
  std::vector<Part> parts;
  size_t done = 0;
  for (const TextSpan& match : matches) {
    if (match.begin != done) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  }
  if (done != length) parts.push_back({{done, length}, invert});

  std::vector<TextSpan> spans;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      spans = join_parts(parts, [](bool, bool) { return false; });
      break;
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      spans = join_parts(parts, [](bool, bool) { return false; });
      break;
    case SplitBehavior::kContiguous:
      spans = join_parts(parts, [](bool previous, bool current) { return previous == current; });
      break;
    case SplitBehavior::kMergedWithPrevious:
      spans = join_parts(parts, [](bool previous, bool current) { return current && !previous; });
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(parts.begin(), parts.end());
      spans = join_parts(parts, [](bool previous, bool current) { return current && !previous; });
      std::reverse(spans.begin(), spans.end());
      break;
  }
  std::erase_if(spans, [](const TextSpan& span) { return span.begin == span.end; });
  return spans;
}

std::unique_ptr<PreTokenizer> PreTokenizer::parse(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  const std::string type = node.at("type").text();
  if (type == "Split") return std::make_unique<Split>(node);
  if (type == "ByteLevel") return std::make_unique<ByteLevel>(node);
  if (type == "Sequence") return std::make_unique<PreTokenizerSequence>(node.at("pretokenizers"));
  node.refuse("pre-tokenizer not supported", type, "Split, ByteLevel, Sequence");
}

}  // namespace ft
