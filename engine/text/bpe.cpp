#include "engine/text/bpe.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "engine/text/byte_level.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

std::string byte_token(unsigned byte) {
  return std::string("<0x") + kHexDigits[byte >> 4] + kHexDigits[byte & 15u] + ">";
}

// The two tokens of a merge: "left right", or ["left", "right"] for tokens that contain spaces.
std::pair<std::string, std::string> merge_parts(const JsonNode& merge) {
  if (merge.value.is_array()) {
    if (merge.size() != 2) merge.refuse("merge is not a pair", std::to_string(merge.size()) + " entries", "2");
    return {merge.at(size_t{0}).text(), merge.at(size_t{1}).text()};
  }
  const std::string text = merge.text();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.refuse("merge is not two tokens", text, "two tokens with one space between");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

// Order of a min-heap: std::push_heap keeps the largest in front.
bool later(const BpeModel::Candidate& a, const BpeModel::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

void MergeTable::reserve(size_t merges) { slots_.resize(std::bit_ceil(std::max<size_t>(merges, 1) * 2)); }

uint64_t MergeTable::key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t MergeTable::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = mix64(key) & mask;
  while (slots_[slot].key != key && slots_[slot].key != kEmpty) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  Slot& slot = slots_[slot_of(key)];
  if (slot.key == kEmpty) {
    ++count_;
    FT_CHECK(count_ * 2 <= slots_.size());
  }
  slot = {key, merge};
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.key == kEmpty ? nullptr : &slot.merge;
}

BpeModel::BpeModel(const JsonNode& node) {
  // Old files leave the type out; the members then say that it is BPE.
  const std::string type = node.text_or("type", "BPE");
  if (type != "BPE") node.at("type").refuse("tokenizer model not supported", type, "BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::string text = node.text_or(key, ""); !text.empty())
      node.at(key).refuse("not supported", text, "empty");
  }
  if (node.has("dropout") && node.at("dropout").value != 0.0) {
    node.at("dropout").refuse("not supported", node.at("dropout").value.dump(), "null, 0");
  }
  fuse_unknown_ = node.flag_or("fuse_unk", false);
  ignore_merges_ = node.flag_or("ignore_merges", false);
  read_vocabulary(node.at("vocab"));
  read_merges(node.at("merges"));
  if (node.has("unk_token")) {
    unknown_id_ = id_of(node.at("unk_token").text());
    if (unknown_id_ < 0) node.at("unk_token").refuse("not in the vocabulary", node.at("unk_token").text(), "");
  }
  if (node.flag_or("byte_fallback", false)) {
    for (unsigned byte = 0; byte < 256; ++byte) byte_ids_.push_back(id_of(byte_token(byte)));
  }
}

void BpeModel::read_vocabulary(const JsonNode& vocab) {
  if (!vocab.value.is_object()) vocab.refuse("not an object", vocab.value.type_name(), "an object of token: id");
  const auto check = [&vocab](const std::string& token, const Json& id) {
    return static_cast<size_t>(JsonNode{id, vocab.path + "['" + token + "']"}.integer(0, kMaxTokenId));
  };
  size_t count = 0;
  for (const auto& [token, id] : vocab.value.items()) {
    const bool small = id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(kMaxTokenId);
    count = std::max(count, (small ? id.get<size_t>() : check(token, id)) + 1);
  }
  tokens_.resize(count);
  ids_.reserve(vocab.value.size());
  for (const auto& [token, value] : vocab.value.items()) {
    const auto id = value.get<int32_t>();
    std::string& slot = tokens_[static_cast<size_t>(id)];
    if (token.empty()) continue;  // can be neither found nor seen
    if (!slot.empty()) {
      vocab.refuse("two tokens have the id " + std::to_string(id), "'" + slot + "' and '" + token + "'", "");
    }
    slot = token;
    ids_.emplace(slot, id);
  }
  ids_of_low_code_points_.assign(kByteLevelCodePoints, -1);
  for (char32_t c = 0; c < kByteLevelCodePoints; ++c) {
    std::string token;
    append_utf8(token, c);
    ids_of_low_code_points_[c] = id_of(token);
  }
}

void BpeModel::read_merges(const JsonNode& merges) {
  const size_t count = merges.size();
  merges_.reserve(count);
  std::string merged;
  for (size_t rank = 0; rank < count; ++rank) {
    const JsonNode merge{merges.value[rank], merges.path};
    const auto locate = [&] { return JsonNode{merge.value, merges.path + "[" + std::to_string(rank) + "]"}; };
    const bool pair =
        merge.value.is_array() && merge.value.size() == 2 && merge.value[0].is_string() && merge.value[1].is_string();
    std::pair<std::string, std::string> split;
    if (!pair) split = merge_parts(locate());
    const std::string& left = pair ? merge.value[0].get_ref<const std::string&>() : split.first;
    const std::string& right = pair ? merge.value[1].get_ref<const std::string&>() : split.second;
    merged.assign(left).append(right);
    const int32_t left_id = id_of(left), right_id = id_of(right), merged_id = id_of(merged);
    if (left_id < 0) locate().refuse("merge of a token that is not in the vocabulary", left, "");
    if (right_id < 0) locate().refuse("merge of a token that is not in the vocabulary", right, "");
    if (merged_id < 0) locate().refuse("merge into a token that is not in the vocabulary", merged, "");
    merges_.set(left_id, right_id, {static_cast<uint32_t>(rank), merged_id});
  }
}

int32_t BpeModel::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

void BpeModel::add_symbols(std::string_view piece, std::vector<Symbol>& symbols) const {
  const auto add = [&symbols](int32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1, false});
  };
  bool unknown_pending = false;  // an unknown token that further unknown code points may join
  for (size_t at = 0; at < piece.size();) {
    const Utf8Step step = utf8_step(piece, at);
    const std::string_view text = piece.substr(at, static_cast<size_t>(step.length));
    at += text.size();
    const int32_t id = step.code_point < kByteLevelCodePoints ? ids_of_low_code_points_[step.code_point] : id_of(text);
    if (id >= 0) {
      if (unknown_pending) add(unknown_id_);
      unknown_pending = false;
      add(id);
      continue;
    }
    const auto byte_id = [this](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
    if (!byte_ids_.empty() && std::all_of(text.begin(), text.end(), [&](char byte) { return byte_id(byte) >= 0; })) {
      for (const char byte : text) add(byte_id(byte));
      continue;
    }
    if (unknown_id_ < 0) continue;
    if (unknown_pending && !fuse_unknown_) add(unknown_id_);
    unknown_pending = true;
  }
  if (unknown_pending) add(unknown_id_);
  if (!symbols.empty()) symbols.back().next = -1;
}

void BpeModel::push_candidate(Scratch& scratch, int32_t position) const {
  const Symbol& left = scratch.symbols[static_cast<size_t>(position)];
  if (left.next < 0) return;
  const MergeTable::Merge* merge = merges_.find(left.id, scratch.symbols[static_cast<size_t>(left.next)].id);
  if (merge == nullptr) return;
  scratch.heap.push_back({merge->rank, position, merge->id});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void BpeModel::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const int32_t id = id_of(piece); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  add_symbols(piece, symbols);
  for (size_t i = 0; i + 1 < symbols.size(); ++i) push_candidate(scratch, static_cast<int32_t>(i));
  while (!scratch.heap.empty()) {
    const Candidate best = scratch.heap.front();
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    scratch.heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.position)];
    if (left.merged_away || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    // A candidate is stale when one of its symbols has changed since; the pair that stands there now has its own entry.
    const MergeTable::Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->id != best.merged_id) continue;
    left.id = best.merged_id;
    left.next = right.next;
    right.merged_away = true;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.position;
    if (left.previous >= 0) push_candidate(scratch, left.previous);
    push_candidate(scratch, best.position);
  }
  for (const Symbol& symbol : symbols) {
    if (!symbol.merged_away) ids.push_back(symbol.id);
  }
}

}  // namespace ft
