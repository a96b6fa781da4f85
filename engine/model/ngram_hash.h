// Which rows of an embedding table stand for the n-grams that end at a token: hashed embeddings of orders 2 to `size`,
// several heads an order, each head with a part of the table of its own. Everything follows from the configuration.
// Source: Hugging Face transformers 5.17, models/qwen4_exp; splitmix64 is Steele, Lea, Flood (2014).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ft {

inline constexpr int kMaxNgramSize = 16;         // at most kMaxConvDilation of kernels/ops/delta_net.h
inline constexpr int64_t kMaxNgramHeads = 4096;  // of all tables together
inline constexpr int64_t kMaxNgramTableBase = int64_t{1} << 31;

struct NgramSettings {
  int64_t vocab = 0;
  int size = 0;               // 2 .. kMaxNgramSize
  int64_t heads = 0;          // an order
  int64_t table_base = 0;     // no head's part of the table has fewer rows
  int64_t rows_multiple = 1;  // of the whole table
  int64_t seed = 0;
  int32_t separator = 0;  // a token that ends a segment: n-grams do not reach over it
};

class NgramHash {
 public:
  // The tables of a model, in order. Parts have prime sizes, which run on from one table to the next.
  // REQUIRES no more than kMaxNgramHeads heads of them together.
  static std::vector<NgramHash> tables(const NgramSettings& settings, int64_t count);

  int size() const { return settings_.size; }
  int64_t heads() const { return static_cast<int64_t>(primes_.size()); }  // all orders
  int64_t rows() const;                                                   // of the table, padding included
  std::span<const int64_t> multipliers() const { return multipliers_; }   // (size)
  std::span<const int64_t> primes() const { return primes_; }             // (heads)
  std::span<const int64_t> offsets() const { return offsets_; }           // (heads)

  // window[s] = the token s steps back, which exists for s <= before. Puts the separator where a segment, or the
  // sequence, does not reach.
  void separate(std::span<int32_t> window, int64_t before) const;
  // Of a separated window: (size) ids, the token itself first.
  int64_t row(std::span<const int32_t> window, int64_t head) const;

 private:
  // The index-th table; its parts are the first primes from `least` on.
  NgramHash(const NgramSettings& settings, int64_t index, int64_t least);

  NgramSettings settings_;
  std::vector<int64_t> multipliers_, primes_, offsets_;
};

}  // namespace ft
