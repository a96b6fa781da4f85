// What config.json says of a model of qwen4_exp. Names of settings are the checkpoint's.
#pragma once

#include <vector>

#include "engine/model/families/config_shapes.h"
#include "engine/model/ngram_hash.h"
#include "engine/model/rope.h"
#include "kernels/base/json.h"
#include "kernels/ops/delta_net.h"
#include "kernels/ops/rows.h"

namespace ft {

// Embeddings of n-grams, in a few layers.
struct NgramLayers {
  std::vector<int> layers;  // ascending; empty: there are none, and nothing else here counts
  NgramSettings hash;
  int64_t width = 0;  // all heads of a token
  int64_t taps = 0;
  int64_t parts = 1;  // of a table in the checkpoint

  int64_t head_width() const { return width / ((hash.size - 1) * hash.heads); }
};

struct Qwen4ExpConfig {
  ModelGeometry geometry;
  std::vector<bool> is_attention;  // per layer; the others are delta nets
  HeadShape heads;
  DeltaNetShape delta;
  GateKind delta_gate = GateKind::kSilu;
  int64_t shared_intermediate = 0;
  bool renormalize = true;
  float norm_eps = 0;
  bool tied = false;
  bool attention_bias = false;
  int streams = 0;
  int64_t stream_rank = 0;
  RopeSettings rope;
  NgramLayers ngrams;

  int64_t stream_width() const { return streams * geometry.hidden; }
  int64_t nets() const { return static_cast<int64_t>(is_attention.size() - geometry.kv.size()); }
  // Where in the recurrent state an n-gram layer's history and last tokens begin, after all delta nets.
  int64_t ngram_floats() const;
  int64_t ngram_begin(int64_t index) const { return nets() * delta.layer_floats() + index * ngram_floats(); }
  int64_t ngram_tokens_begin(int64_t index) const;
};

// Throws Error naming the key, its value and what is allowed.
Qwen4ExpConfig read_qwen4_exp_config(const Json& json);

}  // namespace ft
