#include "engine/text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "engine/text/bpe.h"
#include "engine/text/utf8.h"

namespace ft {
namespace {

bool is_space(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE) != 0; }

// \w of the Rust regex crate: Alphabetic, marks, decimal digits, connectors, joiners.
bool is_word(char32_t c) {
  const auto point = static_cast<UChar32>(c);
  return u_hasBinaryProperty(point, UCHAR_ALPHABETIC) != 0 || u_hasBinaryProperty(point, UCHAR_JOIN_CONTROL) != 0 ||
         (U_GET_GC_MASK(point) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

char32_t code_point_before(std::string_view text, size_t at, size_t& begin) {
  begin = at - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0u) == 0x80u) --begin;
  return utf8_step(text, begin).code_point;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  size_t before = 0;
  if (begin > 0 && is_word(code_point_before(text, begin, before))) return false;
  return end >= text.size() || !is_word(utf8_step(text, end).code_point);
}

size_t skip_space_left(std::string_view text, size_t at, size_t floor) {
  size_t before = 0;
  while (at > floor && is_space(code_point_before(text, at, before))) at = before;
  return std::max(at, floor);
}

size_t skip_space_right(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text, at);
    if (!is_space(step.code_point)) break;
    at += static_cast<size_t>(step.length);
  }
  return at;
}

AddedToken read_token(const JsonNode& node) {
  AddedToken token;
  token.id = static_cast<int32_t>(node.at("id").integer(0, kMaxTokenId));
  token.content = node.at("content").text();
  token.special = node.flag_or("special", false);
  token.normalized = node.flag_or("normalized", !token.special);
  token.single_word = node.flag_or("single_word", false);
  token.lstrip = node.flag_or("lstrip", false);
  token.rstrip = node.flag_or("rstrip", false);
  if (token.content.size() > kMaxAddedTokenBytes) {
    node.at("content").refuse("added token too long", std::to_string(token.content.size()) + " bytes",
                              "at most " + std::to_string(kMaxAddedTokenBytes));
  }
  return token;
}

}  // namespace

void TokenFinder::add(std::string_view content, const AddedToken& token) {
  if (content.empty()) return;
  tokens_.emplace(std::string(content), token);
  std::vector<size_t>& lengths = lengths_[static_cast<uint8_t>(content.front())];
  const auto place = std::lower_bound(lengths.begin(), lengths.end(), content.size(), std::greater<>());
  if (place == lengths.end() || *place != content.size()) lengths.insert(place, content.size());
}

const AddedToken* TokenFinder::longest_at(std::string_view text, size_t at, size_t& bytes) const {
  for (const size_t length : lengths_[static_cast<uint8_t>(text[at])]) {
    if (length > text.size() - at) continue;
    const auto found = tokens_.find(text.substr(at, length));
    if (found == tokens_.end()) continue;
    bytes = length;
    return &found->second;
  }
  return nullptr;
}

std::vector<TokenOrText> TokenFinder::split(std::string_view text) const {
  std::vector<TokenOrText> parts;
  size_t done = 0;  // end of what is in `parts`
  for (size_t at = 0; at < text.size();) {
    size_t bytes = 0;
    const AddedToken* token = longest_at(text, at, bytes);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + bytes;
    at = end;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip) begin = skip_space_left(text, begin, done);
    if (token->rstrip) end = at = skip_space_right(text, end);
    if (begin > done) parts.push_back({-1, done, begin});
    parts.push_back({token->id, begin, end});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, done, text.size()});
  return parts;
}

AddedTokens::AddedTokens(const JsonNode& list, const Normalizer* normalizer) {
  if (list.is_null()) return;
  if (list.size() > kMaxAddedTokens) {
    list.refuse("too many added tokens", std::to_string(list.size()), "at most " + std::to_string(kMaxAddedTokens));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const AddedToken token = read_token(list.at(i));
    tokens_.push_back(token);
    const std::string searched =
        token.normalized && normalizer != nullptr ? normalizer->normalize(token.content) : token.content;
    (token.normalized ? normalized_all_ : raw_all_).add(searched, token);
    if (!token.special) (token.normalized ? normalized_ordinary_ : raw_ordinary_).add(searched, token);
  }
}

}  // namespace ft
