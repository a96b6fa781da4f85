// The arithmetic of an index of blocks in serve numerics: the kernels', queries and entries in bf16.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/runtime/block_index.h"
#include "kernels/registry.h"

namespace ft {

class HostBlockMath {
 public:
  using Element = bf16;

  HostBlockMath(const KernelTable& kernels, const ModelGeometry& geometry) : kernels_(&kernels) {
    int64_t ratio = 0;
    for (const CompressedLayer& layer : geometry.compressed) ratio = std::max(ratio, layer.blocks ? layer.ratio : 0);
    if (ratio > 0) weights_.assign(static_cast<size_t>(ratio), 1.0f / static_cast<float>(ratio));
  }

  static bf16 store(float x) { return to_bf16(x); }
  static void round_query(float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] = round_to_bf16(x[i]);
  }
  // All layers have blocks of one size.
  void average(const float* const* rows, int64_t count, int64_t dim, float* out) const {
    kernels_->merge({rows, weights_.data(), count, dim, out});
  }
  void norm_rotate(float* x, int64_t dim, const float* weight, float eps, const float* cos, const float* sin,
                   int64_t half) const {
    kernels_->head_norm_rope({x, 1, dim, weight, eps, cos, sin, half});
  }
  void score(const float* q, const float* weight, int64_t heads, int64_t dim, const bf16* keys, int64_t count,
             float* scores) const {
    kernels_->index_scores({q, weight, heads, dim, keys, count, scores});
  }

 private:
  const KernelTable* kernels_;
  std::vector<float> weights_;  // (ratio)
};

}  // namespace ft
