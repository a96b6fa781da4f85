// Reference of attention: kernels/ops/attention.h, one head at a time.
#include "kernels/ops/attention.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/reference/scalar_math.h"

namespace ft::reference {
namespace {

constexpr int64_t kBlock = int64_t{2} * kLanes;

// q and k past head_dim count as +0, up to whole blocks.
float dot(const float* q, const bf16* k, int64_t head_dim) {
  float lanes[kLanes] = {};
  for (int64_t block = 0; block < head_dim; block += kBlock) {
    for (int64_t l = 0; l < kLanes; ++l) {
      for (int64_t d = block + 2 * l + 1; d >= block + 2 * l; --d) {
        const float a = d < head_dim ? q[d] : 0.0f;
        const float b = d < head_dim ? to_float(k[d]) : 0.0f;
        lanes[l] = fma(a, b, lanes[l]);
      }
    }
  }
  return tree_sum(lanes);
}

// What some positions of one head give: a split, a node of a group's tree, or groups joined so far.
struct Part {
  bool visible = false;  // false: none of its positions is
  float m = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  std::array<float, kMaxHeadDim> out = {};
};

void join(Part& a, const Part& b, int64_t head_dim) {
  if (!b.visible) return;
  if (!a.visible) {
    a = b;
    return;
  }
  const float m = max(a.m, b.m);
  const float wa = exp(sub(a.m, m));
  const float wb = exp(sub(b.m, m));
  a.m = m;
  a.sum = fma(b.sum, wb, mul(a.sum, wa));
  for (size_t d = 0; d < static_cast<size_t>(head_dim); ++d) a.out[d] = fma(b.out[d], wb, mul(a.out[d], wa));
}

int64_t row_of(const AttentionArgs& args, int64_t t) { return (args.ring > 0 ? t % args.ring : t) * args.kv_stride; }

Part split_of(const AttentionArgs& args, const float* q, int64_t split) {
  Part part;
  const int64_t first = std::max(split * kAttentionSplit, args.begin);
  const int64_t last = std::min((split + 1) * kAttentionSplit, args.length);
  if (first >= last) return part;
  part.visible = true;
  std::array<float, kAttentionSplit> score;
  for (int64_t t = first; t < last; ++t) {
    float& s = score[static_cast<size_t>(t % kAttentionSplit)];
    s = mul(dot(q, args.k + row_of(args, t), args.head_dim), args.scale);
    part.m = max(s, part.m);
  }
  float lanes[kLanes] = {};
  for (int64_t t = first; t < last; ++t) {
    const float e = exp(sub(score[static_cast<size_t>(t % kAttentionSplit)], part.m));
    lanes[t % kLanes] = add(lanes[t % kLanes], e);
    const bf16* v = args.v + row_of(args, t);
    for (int64_t d = 0; d < args.head_dim; ++d) {
      float& out = part.out[static_cast<size_t>(d)];
      out = fma(e, to_float(v[d]), out);
    }
  }
  part.sum = tree_sum(lanes);
  return part;
}

// Splits [first, first + count), count a power of two and first a multiple of it.
Part tree_of(const AttentionArgs& args, const float* q, int64_t first, int64_t count) {
  if (count == 1) return split_of(args, q, first);
  Part part = tree_of(args, q, first, count / 2);
  join(part, tree_of(args, q, first + count / 2, count / 2), args.head_dim);
  return part;
}

void attend_head(const AttentionArgs& args, const float* q_given, const float* sink, float* out) {
  float q[kMaxHeadDim];
  for (int64_t d = 0; d < args.head_dim; ++d) {
    q[d] = std::bit_cast<float>(std::bit_cast<uint32_t>(q_given[d]) & 0xffff0000u);
  }
  constexpr int64_t kGroupPositions = kAttentionGroup * kAttentionSplit;
  Part all;
  for (int64_t group = args.begin / kGroupPositions; group * kGroupPositions < args.length; ++group) {
    join(all, tree_of(args, q, group * kAttentionGroup, kAttentionGroup), args.head_dim);
  }
  if (sink != nullptr && all.visible) {
    Part part;
    part.visible = true;
    part.m = *sink;
    part.sum = 1.0f;
    join(all, part, args.head_dim);
  }
  for (int64_t d = 0; d < args.head_dim; ++d) {
    out[d] = all.visible ? div(all.out[static_cast<size_t>(d)], all.sum) : 0.0f;
  }
}

}  // namespace

void attention(const AttentionArgs& args) {
  for (int64_t h = 0; h < args.heads; ++h) {
    const float* sink = args.sinks != nullptr ? args.sinks + h : nullptr;
    attend_head(args, args.q + h * args.head_dim, sink, args.out + h * args.head_dim);
  }
}

}  // namespace ft::reference
