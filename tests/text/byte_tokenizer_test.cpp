// Checked against: its closed form (id = byte; other ids as "<id>"), over all bytes and the bounds of the vocabulary.
#include "engine/text/byte_tokenizer.h"

#include <doctest/doctest.h>

#include <array>

namespace {

using Ids = std::vector<int32_t>;

std::string token(const ft::Tokenizer& tokenizer, int32_t id) {
  return tokenizer.decode_bytes(std::array{id}, /*skip_special=*/true);
}

}  // namespace

TEST_CASE("a token for each byte of a text") {
  const auto tokenizer = ft::make_byte_tokenizer(ft::kByteTokens);
  CHECK(tokenizer->vocab_size() == 256);
  for (int32_t id = 0; id < 256; ++id) CHECK(token(*tokenizer, id) == std::string(1, static_cast<char>(id)));
  CHECK(tokenizer->encode("a \n\u00e9", true, true) == Ids{'a', ' ', '\n', 0xc3, 0xa9});
  CHECK(tokenizer->encode("", true, true).empty());
  CHECK(token(*tokenizer, 256).empty());
}

TEST_CASE("other ids are seen, and no text gives them") {
  const auto tokenizer = ft::make_byte_tokenizer(300);
  CHECK(tokenizer->vocab_size() == 300);
  CHECK(token(*tokenizer, 256) == "<256>");
  CHECK(token(*tokenizer, 299) == "<299>");
  CHECK(token(*tokenizer, 300).empty());
  CHECK(!tokenizer->is_special(299));
  CHECK(tokenizer->encode("<256>", true, true) == Ids{'<', '2', '5', '6', '>'});
  ft::Detokenizer stream(*tokenizer, true);
  CHECK(stream.add(0xc3).empty());
  CHECK(stream.add(0xa9) == "\u00e9");
  CHECK(stream.add(299) == "<299>");
}

TEST_CASE("the largest vocabularies") {
  CHECK(ft::make_byte_tokenizer(262144)->vocab_size() == 262144);
  CHECK(ft::make_byte_tokenizer(ft::kMaxByteVocab + 1)->vocab_size() == ft::kMaxByteVocab);
}
