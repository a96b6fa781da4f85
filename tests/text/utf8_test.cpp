// Checked against: every code point encoded by hand, every sequence of two bytes and ICU's decoder for longer ones.
#include "engine/text/utf8.h"

#include <doctest/doctest.h>
#include <unicode/utf8.h>

#include "engine/text/byte_level.h"
#include "kernels/base/random.h"

TEST_CASE("all code points and no surrogates") {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    ft::append_utf8(text, c);
    const ft::Utf8Step step = ft::utf8_step(text, 0);
    if (c >= 0xd800 && c <= 0xdfff) {
      REQUIRE(step.kind == ft::Utf8Kind::kInvalid);
    } else {
      REQUIRE(step.kind == ft::Utf8Kind::kWhole);
      REQUIRE(step.code_point == c);
      REQUIRE(static_cast<size_t>(step.length) == text.size());
    }
  }
}

TEST_CASE("random bytes: what is valid and what is replaced, as ICU decodes") {
  ft::Random random(5);
  for (int n = 0; n < 200'000; ++n) {
    std::string bytes;
    for (uint64_t i = 0, count = random.below(7); i < count; ++i) {
      const uint8_t leads[] = {0xe0, 0xed, 0xf0, 0xf4, 0xc1, 0xc2, 0x80, 0x9f, 0xa0, 0xbf, 0x8f, 0x90};
      const uint64_t pick = random.below(24);
      bytes += static_cast<char>(pick < 12 ? leads[pick] : static_cast<uint8_t>(random.below(256)));
    }
    std::string replaced;
    bool valid = true;
    int32_t at = 0;
    const auto length = static_cast<int32_t>(bytes.size());
    while (at < length) {
      UChar32 c = 0;
      U8_NEXT(reinterpret_cast<const uint8_t*>(bytes.data()), at, length, c);
      valid = valid && c >= 0;
      ft::append_utf8(replaced, c < 0 ? 0xfffd : static_cast<char32_t>(c));
    }
    REQUIRE((ft::valid_utf8_bytes(bytes) == bytes.size()) == valid);
    REQUIRE(ft::replace_invalid_utf8(bytes) == replaced);
    const size_t complete = ft::complete_utf8_bytes(bytes);
    REQUIRE(bytes.size() - complete <= 3);
    // What is held back is one truncated sequence, so both halves decode as the whole does.
    if (complete < bytes.size()) {
      REQUIRE(ft::utf8_step(bytes, complete).kind == ft::Utf8Kind::kTruncated);
      REQUIRE(ft::utf8_step(bytes, complete).length == static_cast<int>(bytes.size() - complete));
    }
    REQUIRE(ft::replace_invalid_utf8(bytes.substr(0, complete)) + ft::replace_invalid_utf8(bytes.substr(complete)) == replaced);
  }
}

TEST_CASE("the byte-level alphabet: 256 printable code points, there and back") {
  const auto alphabet = ft::byte_level_alphabet();
  CHECK(alphabet[' '] == 0x120);
  CHECK(alphabet['\n'] == 0x10a);
  CHECK(alphabet['!'] == '!');
  CHECK(alphabet[0xad] == 0x143);
  std::string bytes, text;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  ft::append_byte_level(text, bytes);
  CHECK(ft::utf8_length(text) == 256);
  CHECK(ft::bytes_of_byte_level(text) == bytes);
  CHECK_FALSE(ft::bytes_of_byte_level("a b").has_value());  // a space is not in the alphabet
}
