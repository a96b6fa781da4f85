#include "engine/text/byte_level.h"

#include "engine/text/utf8.h"

namespace ft {
namespace {

constexpr std::array<char32_t, 256> kAlphabet = byte_level_alphabet();

constexpr std::array<int16_t, kByteLevelCodePoints> invert_alphabet() {
  std::array<int16_t, kByteLevelCodePoints> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[kAlphabet[static_cast<size_t>(byte)]] = byte;
  return bytes;
}
constexpr std::array<int16_t, kByteLevelCodePoints> kBytes = invert_alphabet();

}  // namespace

void append_byte_level(std::string& text, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(text, kAlphabet[static_cast<uint8_t>(byte)]);
}

std::optional<std::string> bytes_of_byte_level(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = utf8_step(token, at);
    if (step.kind != Utf8Kind::kWhole || step.code_point >= kBytes.size() || kBytes[step.code_point] < 0) return {};
    bytes.push_back(static_cast<char>(kBytes[step.code_point]));
    at += static_cast<size_t>(step.length);
  }
  return bytes;
}

}  // namespace ft
