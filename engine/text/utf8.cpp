#include "engine/text/utf8.h"

#include <cstdint>

namespace ft {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// What may follow a lead byte: how many bytes, and the range of the first of them (which excludes overlong forms,
// surrogates and code points that are too large).
struct Lead {
  int length;
  uint8_t second_low, second_high;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto first = static_cast<uint8_t>(text[at]);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {Utf8Kind::kWhole, 1, first};
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1, 0};
  char32_t code_point = first & (0xffu >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    if (at + static_cast<size_t>(i) >= text.size()) return {Utf8Kind::kTruncated, i, 0};
    const auto byte = static_cast<uint8_t>(text[at + static_cast<size_t>(i)]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xbf;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3fu);
  }
  return {Utf8Kind::kWhole, lead.length, code_point};
}

size_t valid_utf8_bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text, at);
    if (step.kind != Utf8Kind::kWhole) break;
    at += static_cast<size_t>(step.length);
  }
  return at;
}

size_t complete_utf8_bytes(std::string_view text) {
  // A truncated sequence is at most 3 bytes long; it starts at the last byte that is not a continuation byte.
  const size_t floor = text.size() > 3 ? text.size() - 3 : 0;
  for (size_t at = text.size(); at > floor; --at) {
    const auto byte = static_cast<uint8_t>(text[at - 1]);
    if (byte >= 0x80 && byte < 0xc0) continue;
    return utf8_step(text, at - 1).kind == Utf8Kind::kTruncated ? at - 1 : text.size();
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const auto length = static_cast<size_t>(step.length);
    result += step.kind == Utf8Kind::kWhole ? text.substr(at, length) : kReplacement;
    at += length;
  }
  return result;
}

void append_utf8(std::string& text, char32_t c) {
  const auto put = [&text](uint32_t byte) { text.push_back(static_cast<char>(static_cast<uint8_t>(byte))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

size_t utf8_length(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += (static_cast<uint8_t>(byte) & 0xc0u) != 0x80u;
  return count;
}

}  // namespace ft
