// What the configurations of several families have in common: the limits of a model's numbers, and the reading of
// shapes, heads, experts and layer types. All throw Error naming the key, its value and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "engine/model/config_reader.h"
#include "engine/model/geometry.h"

namespace ft {

// No product of these reaches 2^62: the largest is all expert weights in bf16, 2^10 * 2^12 * 3 * 2^17 * 2^17 * 2 bytes.
inline constexpr int64_t kMaxHidden = int64_t{1} << 17;
inline constexpr int64_t kMaxExpertIntermediate = int64_t{1} << 17;
inline constexpr int64_t kMaxDenseIntermediate = kMaxMatrixCols;
inline constexpr int64_t kMaxVocab = kMaxMatrixRows;
inline constexpr int64_t kMaxHeadsWidth = kMaxMatrixCols;  // num_attention_heads * head_dim
inline constexpr int64_t kMaxHeads = 1024;

// num_hidden_layers, hidden_size, vocab_size and max_position_embeddings, with what transformers assumes without them.
struct ModelShape {
  int64_t layers = 0, hidden = 0, vocab = 0, max_positions = 0;
};
void read_model_shape(const ConfigReader& reader, const ModelShape& absent, ModelGeometry& geometry);

struct HeadShape {
  int heads = 0;
  int64_t kv_heads = 0, head_dim = 0;

  int64_t query_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  bool operator==(const HeadShape&) const = default;
};
struct HeadKeys {
  std::string_view kv_heads = "num_key_value_heads", head_dim = "head_dim";
};
// absent.head_dim 0: hidden_size / num_attention_heads.
HeadShape read_heads(const ConfigReader& reader, int64_t hidden, const HeadShape& absent, const HeadKeys& keys = {});

struct ExpertKeys {
  std::string_view intermediate = "moe_intermediate_size";
  std::string_view experts = "num_experts", experts_alias = "num_local_experts";
  std::string_view top_k = "num_experts_per_tok";
};
// Everything of geometry.expert but its form; geometry.hidden is set before. absent: intermediate, experts, top_k.
void read_expert_shape(const ConfigReader& reader, const ExpertGeometry& absent, ModelGeometry& geometry,
                       const ExpertKeys& keys = {});

// layer_types: of each layer, which of `names` it is. Empty when not given.
std::vector<int> read_layer_types(const ConfigReader& reader, int layers,
                                  std::initializer_list<std::string_view> names);

}  // namespace ft
