#include "engine/model/families/config_shapes.h"

#include <algorithm>
#include <string>

#include "engine/engine_config.h"
#include "engine/model/rope.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/rows.h"

namespace ft {

void read_model_shape(const ConfigReader& reader, const ModelShape& absent, ModelGeometry& geometry) {
  geometry.layers = static_cast<int>(reader.integer("num_hidden_layers", 1, kMaxLayers, absent.layers));
  geometry.hidden = reader.integer("hidden_size", 1, kMaxHidden, absent.hidden);
  geometry.vocab = reader.integer("vocab_size", 1, kMaxVocab, absent.vocab);
  geometry.max_positions = reader.integer("max_position_embeddings", 1, kMaxModelPositions, absent.max_positions);
}

HeadShape read_heads(const ConfigReader& reader, int64_t hidden, const HeadShape& absent, const HeadKeys& keys) {
  HeadShape shape;
  shape.heads = static_cast<int>(reader.integer("num_attention_heads", 1, kMaxHeads, absent.heads));
  shape.kv_heads = reader.integer(keys.kv_heads, 1, shape.heads, absent.kv_heads);
  if (shape.heads % shape.kv_heads != 0) {
    reader.refuse(keys.kv_heads, "a divisor of num_attention_heads, " + std::to_string(shape.heads));
  }
  const bool implied = absent.head_dim == 0;
  if (implied && !reader.has(keys.head_dim) && hidden % shape.heads != 0) {
    reader.refuse(keys.head_dim, "a value, since hidden_size is not a multiple of num_attention_heads");
  }
  const int64_t otherwise = implied ? hidden / shape.heads : absent.head_dim;
  shape.head_dim = reader.has(keys.head_dim) ? reader.integer(keys.head_dim, 2, kMaxHeadDim) : otherwise;
  if (shape.head_dim < 2 || shape.head_dim > kMaxHeadDim || shape.head_dim % 2 != 0) {
    std::string allowed = "an even number from 2 to " + std::to_string(kMaxHeadDim);
    if (implied) {
      allowed += " (absent: hidden_size / num_attention_heads, here " + std::to_string(otherwise) + ")";
    }
    reader.refuse(keys.head_dim, allowed);
  }
  if (shape.query_width() > kMaxHeadsWidth) {
    reader.refuse("num_attention_heads", "at most " + std::to_string(kMaxHeadsWidth / shape.head_dim) +
                                             " with a head_dim of " + std::to_string(shape.head_dim));
  }
  return shape;
}

void read_expert_shape(const ConfigReader& reader, const ExpertGeometry& absent, ModelGeometry& geometry,
                       const ExpertKeys& keys) {
  ExpertGeometry& expert = geometry.expert;
  expert.hidden = geometry.hidden;
  expert.intermediate = reader.integer(keys.intermediate, 1, kMaxExpertIntermediate, absent.intermediate);
  expert.experts =
      static_cast<int>(reader.integer_aliased(keys.experts, keys.experts_alias, 1, kMaxExperts, absent.experts));
  expert.top_k =
      static_cast<int>(reader.integer(keys.top_k, 1, std::min<int64_t>(kMaxTopK, expert.experts), absent.top_k));
  if (expert.top_k > expert.experts) {  // what is assumed without the key
    reader.refuse(keys.top_k, "a value, since there are only " + std::to_string(expert.experts) + " experts");
  }
}

std::vector<int> read_layer_types(const ConfigReader& reader, int layers,
                                  std::initializer_list<std::string_view> names) {
  std::vector<int> types;
  if (!reader.has("layer_types")) return types;
  const std::vector<std::string> given = reader.texts("layer_types", kMaxLayers);
  std::string allowed;
  for (const std::string_view name : names) (allowed += allowed.empty() ? "" : ", ") += name;
  const std::string wanted = std::to_string(layers) + " of " + allowed;
  if (given.size() != static_cast<size_t>(layers)) reader.refuse("layer_types", wanted + ", one per layer");
  for (const std::string& type : given) {
    const auto* const at = std::find(names.begin(), names.end(), type);
    if (at == names.end()) reader.refuse("layer_types", wanted + ", not '" + type + "'");
    types.push_back(static_cast<int>(at - names.begin()));
  }
  return types;
}

}  // namespace ft
