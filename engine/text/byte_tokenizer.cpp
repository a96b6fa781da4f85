#include "engine/text/byte_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/byte_level.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft {

std::unique_ptr<Tokenizer> make_byte_tokenizer(int64_t vocab) {
  FT_CHECK(vocab >= kByteTokens);
  Json tokens = Json::object();
  for (int64_t id = 0; id < kByteTokens; ++id) {
    std::string letter;
    append_byte_level(letter, std::string(1, static_cast<char>(id)));
    tokens[letter] = id;
  }
  for (int64_t id = kByteTokens; id < std::min(vocab, kMaxByteVocab); ++id) tokens["<" + std::to_string(id) + ">"] = id;
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json whole = {{"model", {{"type", "BPE"}, {"vocab", std::move(tokens)}, {"merges", Json::array()}}},
                      {"pre_tokenizer", byte_level},
                      {"decoder", byte_level}};
  return Tokenizer::parse(whole.dump(), "byte tokenizer");
}

}  // namespace ft
