// The arithmetic of attention to compressed entries in serve numerics: the kernels', queries, rows and entries in bf16,
// or, with the authors' arithmetic, on the grids of kernels/ops/cache_grid.h.
#pragma once

#include <vector>

#include "engine/runtime/compressed_attention.h"
#include "kernels/host/flush_denormals.h"
#include "kernels/ops/cache_grid.h"
#include "kernels/registry.h"

namespace ft {

class HostCompressedMath {
 public:
  using Element = bf16;
  using Guard = FlushDenormals;

  HostCompressedMath(const KernelTable& kernels, int64_t widest_dim, DeepseekArithmetic arithmetic)
      : kernels_(&kernels),
        authors_(arithmetic == DeepseekArithmetic::kAuthors),
        ones_(static_cast<size_t>(widest_dim), 1.0f) {}

  static bf16 store(float x) { return to_bf16(x); }
  static void round_query(float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] = round_to_bf16(x[i]);
  }
  void round_row(float* x, int64_t dim, int64_t rotated) const {
    if (authors_) round_cached_row(x, dim, rotated);
  }
  void round_index(float* x, int64_t dim) const {
    if (authors_) round_index_vector(x, dim);
  }
  void norm(float* x, int64_t rows, int64_t dim, float eps) const {
    kernels_->rmsnorm({x, dim, x, dim, rows, dim, ones_.data(), eps});
  }
  void norm_entry(float* x, const float* weight, int64_t dim, float eps) const {
    kernels_->rmsnorm({x, dim, x, dim, 1, dim, weight, eps});
  }
  void rotate(const RotatePairsArgs& args) const { kernels_->rotate_pairs(args); }
  void compress(const CompressArgs& args) const { kernels_->compress(args); }
  void score(const float* q, const float* weight, int64_t heads, int64_t dim, const bf16* keys, int64_t count,
             float* scores) const {
    kernels_->index_scores({q, weight, heads, dim, keys, count, scores});
  }
  void attend(const Attended<bf16>& attended, int) const {
    AttentionArgs args;
    args.q = attended.q;
    args.k = args.v = attended.rows;
    args.kv_stride = args.head_dim = attended.dim;
    args.length = attended.count;
    args.scale = attended.scale;
    args.sinks = attended.sinks;
    args.heads = attended.heads;
    args.out = attended.out;
    kernels_->attention(args);
  }

 private:
  const KernelTable* kernels_;
  bool authors_;
  std::vector<float> ones_;
};

}  // namespace ft
