#include "engine/text/tokenizer.h"

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/normalizer.h"
#include "engine/text/post_processor.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/token_decoder.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

const Json& null_json() {
  static const Json null;
  return null;
}

// A member that may be absent.
JsonNode optional_member(const JsonNode& root, const char* key) {
  return root.has(key) ? root.at(key) : JsonNode{null_json(), root.path + "." + key};
}

void check_text(std::string_view text) {
  if (text.size() > kMaxEncodeBytes) {
    throw Error(ErrorKind::kCapacity, {"text too long", std::to_string(text.size()) + " bytes",
                                       "at most " + std::to_string(kMaxEncodeBytes), "shorten the text", ""});
  }
  const size_t valid = valid_utf8_bytes(text);
  if (valid == text.size()) return;
  throw Error(ErrorKind::kRequest,
              {"text is not valid UTF-8",
               "byte " + std::to_string(static_cast<uint8_t>(text[valid])) + " at offset " + std::to_string(valid), "",
               "send UTF-8", ""});
}

}  // namespace

struct Tokenizer::State {
  explicit State(const JsonNode& root)
      : normalizer(Normalizer::parse(optional_member(root, "normalizer"))),
        pre_tokenizer(PreTokenizer::parse(optional_member(root, "pre_tokenizer"))),
        model(root.at("model")),
        added(optional_member(root, "added_tokens"), normalizer.get()),
        added_ids(parse_post_processor(optional_member(root, "post_processor"))) {
    read_token_bytes(root);
  }

  struct TokenBytes {
    std::string bytes;
    bool special = false;
  };

  void read_token_bytes(const JsonNode& root);
  void encode_words(std::string text, BpeModel::Scratch& scratch, std::vector<int32_t>& ids) const;

  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  BpeModel model;
  AddedTokens added;
  AddedIds added_ids;
  std::vector<TokenBytes> tokens;  // by id
  std::unordered_map<std::string, int32_t> added_id;
};

void Tokenizer::State::read_token_bytes(const JsonNode& root) {
  const std::unique_ptr<TokenDecoder> decoder = TokenDecoder::parse(optional_member(root, "decoder"));
  size_t count = model.tokens().size();
  for (const AddedToken& token : added.tokens()) count = std::max(count, static_cast<size_t>(token.id) + 1);
  for (const std::vector<int32_t>* ids : {&added_ids.before, &added_ids.after}) {
    for (const int32_t id : *ids) {
      if (static_cast<size_t>(id) >= count)
        root.at("post_processor").refuse("id without a token", std::to_string(id), "");
    }
  }
  tokens.resize(count);
  for (size_t id = 0; id < model.tokens().size(); ++id) tokens[id].bytes = decoder->bytes_of(model.tokens()[id]);
  for (size_t i = 0; i < added.tokens().size(); ++i) {
    const AddedToken& token = added.tokens()[i];
    const JsonNode node = root.at("added_tokens").at(i);
    const int32_t vocabulary_id = model.id_of(token.content);
    if (vocabulary_id >= 0 && vocabulary_id != token.id) {
      node.refuse("added token has another id in the vocabulary", std::to_string(vocabulary_id),
                  std::to_string(token.id));
    }
    if (!added_id.emplace(token.content, token.id).second) node.refuse("added token listed twice", token.content, "");
    TokenBytes& slot = tokens[static_cast<size_t>(token.id)];
    slot = {decoder->bytes_of(token.content), token.special};
  }
}

void Tokenizer::State::encode_words(std::string text, BpeModel::Scratch& scratch, std::vector<int32_t>& ids) const {
  PieceList list{std::move(text), {}};
  if (list.text.empty()) return;
  list.pieces.push_back({0, list.text.size()});
  if (pre_tokenizer != nullptr) pre_tokenizer->apply(list);
  const std::string_view view = list.text;
  for (const TextSpan& piece : list.pieces)
    model.encode(view.substr(piece.begin, piece.end - piece.begin), scratch, ids);
}

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& path) {
  return parse(read_text_file(path, kMaxTokenizerFileBytes), path);
}

std::unique_ptr<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view source) {
  const Json json = parse_json(tokenizer_json, source);
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  tokenizer->state_ = std::make_unique<State>(JsonNode{json, std::string(source) + ": $"});
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool allow_special, bool add_special_ids) const {
  check_text(text);
  const State& state = *state_;
  BpeModel::Scratch scratch;
  std::vector<int32_t> ids;
  if (add_special_ids) ids = state.added_ids.before;
  for (const TokenOrText& part : state.added.raw(allow_special).split(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    std::string words(text.substr(part.begin, part.end - part.begin));
    if (state.normalizer != nullptr) words = state.normalizer->normalize(std::move(words));
    const TokenFinder& finder = state.added.normalized(allow_special);
    if (finder.empty()) {
      state.encode_words(std::move(words), scratch, ids);
      continue;
    }
    for (const TokenOrText& inner : finder.split(words)) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
      } else {
        state.encode_words(words.substr(inner.begin, inner.end - inner.begin), scratch, ids);
      }
    }
  }
  if (add_special_ids) ids.insert(ids.end(), state.added_ids.after.begin(), state.added_ids.after.end());
  return ids;
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= state_->tokens.size()) continue;
    const State::TokenBytes& token = state_->tokens[static_cast<size_t>(id)];
    if (!(skip_special && token.special)) bytes += token.bytes;
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  return replace_invalid_utf8(decode_bytes(ids, skip_special));
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(state_->tokens.size()); }

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->tokens[static_cast<size_t>(id)].special;
}

int32_t Tokenizer::id_of(std::string_view token) const {
  const auto found = state_->added_id.find(std::string(token));
  return found != state_->added_id.end() ? found->second : state_->model.id_of(token);
}

}  // namespace ft
