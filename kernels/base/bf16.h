// bf16: the upper half of an IEEE binary32. Conversions are exact one way and round-to-nearest-even the other.
#pragma once

#include <bit>
#include <cstdint>

namespace ft {

struct bf16 {
  uint16_t bits = 0;
  friend constexpr bool operator==(bf16, bf16) = default;
};
static_assert(sizeof(bf16) == 2);

constexpr float to_float(bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

// Round to nearest even; NaN stays a NaN (quieted); denormals are rounded, not flushed (callers that need the serve
// mode's flush run under FlushDenormals or flush before).
constexpr bf16 to_bf16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

constexpr float round_to_bf16(float value) { return to_float(to_bf16(value)); }

}  // namespace ft
