// The "model" of tokenizer.json: byte pair encoding (Sennrich et al. 2016) as Hugging Face's tokenizers run it.
//
// A piece starts as one symbol per code point. The adjacent pair whose merge has the lowest rank is merged, leftmost on
// ties, until no pair has a merge. A heap of candidate pairs over a linked list of symbols makes that O(n log n).
// Immutable: any thread may use it, each with a Scratch of its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/tokenizer_json.h"

namespace ft {

inline constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;  // largest published vocabulary: 2^18 and a few

// (left id, right id) -> rank and merged id. Open addressing: 2 loads per lookup where a node-based map needs 4.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = -1;
  };
  void reserve(size_t merges);
  void set(int32_t left, int32_t right, Merge merge);
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // no pair of ids: ids are not negative
  static uint64_t key_of(int32_t left, int32_t right);
  size_t slot_of(uint64_t key) const;
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

class BpeModel {
 public:
  explicit BpeModel(const JsonNode& node);

  struct Symbol {
    int32_t id;
    int32_t previous, next;  // -1: none
    bool merged_away;
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;  // of the left symbol
    int32_t merged_id;
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of one piece. Code points without a token become <0xHH> tokens, the unknown token, or nothing.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

  int32_t id_of(std::string_view token) const;  // -1 when absent
  // Tokens by id; ids in gaps of the vocabulary have an empty one.
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  void read_vocabulary(const JsonNode& vocab);
  void read_merges(const JsonNode& merges);
  void add_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  void push_candidate(Scratch& scratch, int32_t position) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views into tokens_
  std::vector<int32_t> ids_of_low_code_points_;        // the alphabet of byte-level models, found without hashing
  std::vector<int32_t> byte_ids_;                      // of <0x00> .. <0xFF>; empty: no byte fallback
  MergeTable merges_;
  int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace ft
