// The "decoder" of tokenizer.json: ByteLevel, Replace, ByteFallback, Fuse, and Sequence of these.
//
// All of them work on one token at a time, so the bytes of every token are found once, at load. (Hugging Face's
// ByteFallback writes one U+FFFD per byte of a run that is not UTF-8; here the run stays bytes, and decode() replaces
// maximal subparts as it does for byte-level models.)
#pragma once

#include <memory>
#include <string>

#include "engine/text/tokenizer_json.h"

namespace ft {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  virtual std::string bytes_of(std::string token) const = 0;

  static std::unique_ptr<TokenDecoder> parse(const JsonNode& node);
};

}  // namespace ft
