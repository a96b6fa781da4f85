#include "engine/text/token_decoder.h"

#include <optional>
#include <vector>

#include "engine/text/byte_level.h"
#include "engine/text/text_pattern.h"

namespace ft {
namespace {

constexpr size_t kMaxStepsInSequence = 32;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

class ByteLevelDecoder : public TokenDecoder {
 public:
  std::string bytes_of(std::string token) const override {
    std::optional<std::string> bytes = bytes_of_byte_level(token);
    return bytes.has_value() ? std::move(*bytes) : token;
  }
};

class ReplaceDecoder : public TokenDecoder {
 public:
  explicit ReplaceDecoder(const JsonNode& node) : pattern_(node.at("pattern")), content_(node.at("content").text()) {}

  std::string bytes_of(std::string token) const override {
    std::vector<TextSpan> matches;
    TextPattern::Finder(pattern_).find_all(token, matches);
    std::string result;
    size_t done = 0;
    for (const TextSpan& match : matches) {
      result.append(token, done, match.begin - done).append(content_);
      done = match.end;
    }
    return result.append(token, done);
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class ByteFallbackDecoder : public TokenDecoder {
 public:
  std::string bytes_of(std::string token) const override {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return token;
    const int high = hex_value(token[3]), low = hex_value(token[4]);
    if (high < 0 || low < 0) return token;
    return std::string(1, static_cast<char>(high * 16 + low));
  }
};

class FuseDecoder : public TokenDecoder {  // joins tokens, which is what decoding does anyway
 public:
  std::string bytes_of(std::string token) const override { return token; }
};

class DecoderSequence : public TokenDecoder {
 public:
  explicit DecoderSequence(const JsonNode& list) {
    if (list.size() > kMaxStepsInSequence) {
      list.refuse("too many steps", std::to_string(list.size()), "at most " + std::to_string(kMaxStepsInSequence));
    }
    for (size_t i = 0; i < list.size(); ++i) steps_.push_back(TokenDecoder::parse(list.at(i)));
  }
  std::string bytes_of(std::string token) const override {
    for (const auto& step : steps_) token = step->bytes_of(std::move(token));
    return token;
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> steps_;
};

}  // namespace

std::unique_ptr<TokenDecoder> TokenDecoder::parse(const JsonNode& node) {
  const std::string allowed = "ByteLevel, Replace, ByteFallback, Fuse, Sequence";
  if (node.is_null()) node.refuse("decoder not supported", "null", allowed);
  const std::string type = node.at("type").text();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(node);
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Sequence") return std::make_unique<DecoderSequence>(node.at("decoders"));
  node.refuse("decoder not supported", type, allowed);
}

}  // namespace ft
