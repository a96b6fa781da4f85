// UTF-8 as Unicode 15 defines it (table 3-7): no surrogates, no overlong forms, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ft {

enum class Utf8Kind {
  kWhole,      // a code point
  kInvalid,    // bytes that no continuation can make valid
  kTruncated,  // the beginning of a code point, cut off by the end of the text
};

// The sequence that starts at `at`. length is at least 1; for kInvalid it is the maximal subpart (Unicode 15, section
// 3.9), the unit that one U+FFFD replaces.
struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  int length = 1;
  char32_t code_point = 0;
};
Utf8Step utf8_step(std::string_view text, size_t at);  // REQUIRES: at < text.size()

// Offset of the first byte that is not part of valid UTF-8; text.size() when all of it is valid.
size_t valid_utf8_bytes(std::string_view text);
// Leading bytes that do not end inside a sequence: what can be shown before more bytes arrive.
size_t complete_utf8_bytes(std::string_view text);
std::string replace_invalid_utf8(std::string_view text);  // U+FFFD for each maximal subpart
void append_utf8(std::string& text, char32_t code_point);

// Code points of valid UTF-8.
size_t utf8_length(std::string_view text);

}  // namespace ft
