#include "engine/model/ngram_hash.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;
constexpr uint64_t kSeedStep = 10007;  // between tables

uint64_t splitmix64(uint64_t value) {
  value += kGamma;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

bool is_prime(int64_t value) {
  if (value < 4) return value >= 2;
  if (value % 2 == 0) return false;
  for (int64_t divisor = 3; divisor * divisor <= value; divisor += 2) {
    if (value % divisor == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<NgramHash> NgramHash::tables(const NgramSettings& settings, int64_t count) {
  FT_CHECK(settings.size >= 2 && settings.size <= kMaxNgramSize && settings.vocab > 0 && settings.heads > 0);
  FT_CHECK(count * (settings.size - 1) * settings.heads <= kMaxNgramHeads);
  std::vector<NgramHash> result;
  for (int64_t index = 0; index < count; ++index) {
    const int64_t least = index == 0 ? settings.table_base : result.back().primes_.back() + 1;
    result.push_back(NgramHash(settings, index, least));
  }
  return result;
}

NgramHash::NgramHash(const NgramSettings& settings, int64_t index, int64_t least) : settings_(settings) {
  // An id times a multiplier stays below 2^63.
  const auto half =
      static_cast<uint64_t>(std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / settings.vocab / 2));
  const uint64_t seed = static_cast<uint64_t>(settings.seed) + kSeedStep * static_cast<uint64_t>(index);
  for (int i = 1; i <= settings.size; ++i) {
    multipliers_.push_back(static_cast<int64_t>(2 * (splitmix64(seed + kGamma * static_cast<uint64_t>(i)) % half) + 1));
  }
  int64_t offset = 0, candidate = std::max<int64_t>(least, 2);
  for (int64_t head = 0; head < (settings.size - 1) * settings.heads; ++head, ++candidate) {
    while (!is_prime(candidate)) ++candidate;
    primes_.push_back(candidate);
    offsets_.push_back(offset);
    offset += candidate;
  }
}

int64_t NgramHash::rows() const {
  const int64_t used = offsets_.back() + primes_.back(), multiple = settings_.rows_multiple;
  return (used + multiple - 1) / multiple * multiple;
}

void NgramHash::separate(std::span<int32_t> window, int64_t before) const {
  bool reached = true;
  for (size_t s = 1; s < window.size(); ++s) {
    reached = reached && static_cast<int64_t>(s) <= before && window[s] != settings_.separator;
    if (!reached) window[s] = settings_.separator;
  }
}

int64_t NgramHash::row(std::span<const int32_t> window, int64_t head) const {
  const auto index = static_cast<size_t>(head);
  const size_t order = 2 + index / static_cast<size_t>(settings_.heads);
  int64_t hash = 0;
  for (size_t s = 0; s < order; ++s) hash ^= window[s] * multipliers_[s];
  return hash % primes_[index] + offsets_[index];
}

}  // namespace ft
