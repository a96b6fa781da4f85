// The alphabet of byte-level BPE (GPT-2): every byte is written as one printable code point.
//
// Bytes 33..126, 161..172 and 174..255 stand for themselves; the other 68 become U+0100, U+0101, ... in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ft {

inline constexpr char32_t kByteLevelCodePoints = 324;  // all code points of the alphabet are below

constexpr std::array<char32_t, 256> byte_level_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

void append_byte_level(std::string& text, std::string_view bytes);
// The bytes that `token` stands for; nothing when it has a code point outside the alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view token);

}  // namespace ft
