#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace ft {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string Detokenizer::add(int32_t id) {
  pending_ += tokenizer_.decode_bytes({&id, 1}, skip_special_);
  const size_t complete = complete_utf8_bytes(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string Detokenizer::finish() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace ft
