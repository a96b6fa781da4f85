// Decoding of the small floating-point codes, one code at a time: the definition every table and kernel is tested
// against. Sources: OCP Microscaling Formats (MX) v1.0 for E2M1 and E8M0; OCP 8-bit Floating Point (OFP8) for E4M3.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace ft {

// fp4: sign, 2 exponent bits, 1 mantissa bit. Code 8 is -0.
constexpr float decode_e2m1(uint8_t code) {
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitudes[code & 7u];
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

// fp8: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity; 0x7f and 0xff are NaN; largest 448.
constexpr float decode_e4m3(uint8_t code) {
  const uint32_t exponent = (code >> 3) & 15u;
  const uint32_t mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
  return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

// Power-of-two scale 2^(code - 127). 0 is 2^-127, an fp32 denormal; 255 is NaN.
constexpr float decode_e8m0(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

}  // namespace ft
