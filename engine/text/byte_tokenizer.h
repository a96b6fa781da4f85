// A tokenizer for models without one, whose answers mean nothing anyway (synthetic weights): so that a server of a
// config.json alone takes text and streams what it generates, as any client expects it.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/text/tokenizer.h"

namespace ft {

inline constexpr int64_t kByteTokens = 256;                 // the smallest vocabulary
inline constexpr int64_t kMaxByteVocab = int64_t{1} << 20;  // largest published vocabulary: 2^18 and a few

// Ids 0 to 255 are the bytes; every other id, which no text is encoded to, reads "<id>", so that each generated token
// is seen. No id is special; ids from kMaxByteVocab on are left out. REQUIRES kByteTokens <= vocab.
std::unique_ptr<Tokenizer> make_byte_tokenizer(int64_t vocab);

}  // namespace ft
