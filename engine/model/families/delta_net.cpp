#include "engine/model/families/delta_net.h"

#include "engine/model/families/config_shapes.h"

namespace ft {
namespace {

std::vector<std::string> with(const std::vector<std::string>& prefixes, std::string_view name) {
  std::vector<std::string> names;
  names.reserve(prefixes.size());
  for (const std::string& prefix : prefixes) names.push_back(prefix + std::string(name));
  return names;
}

}  // namespace

DeltaNetShape read_delta_net(const ConfigReader& reader, const DeltaNetShape& absent) {
  DeltaNetShape shape;
  shape.taps = reader.integer("linear_conv_kernel_dim", 1, kMaxConvTaps, absent.taps);
  shape.key_heads = reader.integer("linear_num_key_heads", 1, kMaxHeads, absent.key_heads);
  shape.value_heads = reader.integer("linear_num_value_heads", 1, kMaxHeads, absent.value_heads);
  if (shape.value_heads % shape.key_heads != 0) {
    reader.refuse("linear_num_value_heads", "a multiple of linear_num_key_heads, " + std::to_string(shape.key_heads));
  }
  shape.key_dim = reader.integer("linear_key_head_dim", 1, kMaxDeltaKeyDim, absent.key_dim);
  shape.value_dim = reader.integer("linear_value_head_dim", 1, kMaxDeltaValueDim, absent.value_dim);
  if (shape.value_width() > kMaxHeadsWidth) {
    reader.refuse("linear_num_value_heads", "at most " + std::to_string(kMaxHeadsWidth / shape.value_dim) +
                                                " with a linear_value_head_dim of " + std::to_string(shape.value_dim));
  }
  return shape;
}

DeltaNetWeights declare_delta_net(WeightList& list, const std::vector<std::string>& prefixes,
                                  const DeltaNetShape& shape, int64_t hidden) {
  DeltaNetWeights weights;
  weights.mixed = list.matrix(with(prefixes, "in_proj_qkv"), shape.channels(), hidden);
  weights.gate = list.matrix(with(prefixes, "in_proj_z"), shape.value_width(), hidden);
  weights.write = list.matrix(with(prefixes, "in_proj_b"), shape.value_heads, hidden, /*keep_bf16=*/true);
  weights.decay = list.matrix(with(prefixes, "in_proj_a"), shape.value_heads, hidden, /*keep_bf16=*/true);
  weights.out = list.matrix(with(prefixes, "out_proj"), hidden, shape.value_width());
  // Synthetic: a mean over the taps, and about half of the state kept from one token to the next.
  const auto taps = static_cast<float>(shape.taps);
  weights.conv = list.vector(with(prefixes, "conv1d.weight"), shape.channels() * shape.taps,
                             {.shape = {shape.channels(), 1, shape.taps}, .transpose = true, .synthetic = 1 / taps});
  weights.decay_log = list.vector(with(prefixes, "A_log"), shape.value_heads, {.synthetic = 0});
  weights.decay_bias = list.vector(with(prefixes, "dt_bias"), shape.value_heads, {.synthetic = 0});
  weights.norm = list.vector(with(prefixes, "norm.weight"), shape.value_dim);
  return weights;
}

int64_t delta_net_width(const DeltaNetShape& shape, Slot slot) {
  switch (slot) {
    case Slot::kDeltaMixed:
      return shape.channels();
    case Slot::kDeltaGate:
    case Slot::kAttention:
      return shape.value_width();
    case Slot::kDeltaWrite:
    case Slot::kDeltaDecay:
      return shape.value_heads;
    default:
      return 0;
  }
}

void apply_delta_net(Backend& backend, const DeltaNetWeights& weights, const DeltaNetShape& shape, int state_layer,
                     const BlockSite& site, float norm_eps, GateKind gate) {
  backend.linear(site.from, site.norm,
                 {{weights.mixed, {}, Slot::kDeltaMixed},
                  {weights.gate, {}, Slot::kDeltaGate},
                  {weights.write, {}, Slot::kDeltaWrite},
                  {weights.decay, {}, Slot::kDeltaDecay}});
  DeltaNetSpec spec;
  spec.state_layer = state_layer;
  spec.shape = shape;
  spec.conv = weights.conv;
  spec.decay_log = weights.decay_log;
  spec.decay_bias = weights.decay_bias;
  spec.norm = {weights.norm, norm_eps};
  spec.gate = gate;
  backend.delta_net(spec);
  end_block(backend, site, weights.out);
}

}  // namespace ft
