// Reference of attention: kernels/ops/attention.h, one head at a time.
#include "kernels/ops/attention.h"

#include <algorithm>
#include <limits>

#include "kernels/reference/scalar_math.h"

namespace ft::reference {
namespace {

constexpr int64_t kBlock = 2 * kLanes;

// q and k past head_dim count as +0, up to whole blocks.
float dot(const float* q, const bf16* k, int64_t head_dim) {
  float lanes[kLanes] = {};
  for (int64_t block = 0; block < head_dim; block += kBlock) {
    for (int l = 0; l < kLanes; ++l) {
      for (int64_t d = block + 2 * l + 1; d >= block + 2 * l; --d) {
        const float a = d < head_dim ? q[d] : 0.0f;
        const float b = d < head_dim ? to_float(k[d]) : 0.0f;
        lanes[l] = fma(a, b, lanes[l]);
      }
    }
  }
  return tree_sum(lanes);
}

void attend_head(const AttentionArgs& args, const float* q_given, float* out) {
  float q[kMaxHeadDim];
  for (int64_t d = 0; d < args.head_dim; ++d) {
    q[d] = std::bit_cast<float>(std::bit_cast<uint32_t>(q_given[d]) & 0xffff0000u);
  }
  std::fill(out, out + args.head_dim, 0.0f);
  if (args.begin >= args.length) return;

  float m = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  float score[kAttentionChunk];
  for (int64_t chunk = args.begin / kAttentionChunk * kAttentionChunk; chunk < args.length; chunk += kAttentionChunk) {
    const int64_t first = std::max(chunk, args.begin);
    const int64_t last = std::min(chunk + kAttentionChunk, args.length);
    float larger = m;
    for (int64_t t = first; t < last; ++t) {
      score[t - chunk] = mul(dot(q, args.k + t * args.kv_stride, args.head_dim), args.scale);
      larger = max(score[t - chunk], larger);
    }
    const float c = exp(sub(m, larger));
    m = larger;
    float lanes[kLanes] = {};
    for (int64_t d = 0; d < args.head_dim; ++d) out[d] = mul(out[d], c);
    for (int64_t t = first; t < last; ++t) {
      const float e = exp(sub(score[t - chunk], m));
      lanes[t % kLanes] = add(lanes[t % kLanes], e);
      const bf16* v = args.v + t * args.kv_stride;
      for (int64_t d = 0; d < args.head_dim; ++d) out[d] = fma(e, to_float(v[d]), out[d]);
    }
    sum = fma(sum, c, tree_sum(lanes));
  }
  for (int64_t d = 0; d < args.head_dim; ++d) out[d] = div(out[d], sum);
}

}  // namespace

void attention(const AttentionArgs& args) {
  for (int64_t h = 0; h < args.heads; ++h) {
    attend_head(args, args.q + h * args.head_dim, args.out + h * args.head_dim);
  }
}

}  // namespace ft::reference
