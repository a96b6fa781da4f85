// Attention: kernels/ops/attention.h, and what comes before it (head norm and rotation of kernels/ops/rows.h, rounding,
// appending to the cache).
//
// For every shape and any number of tokens; attention_decode.cu is the fast one of a decode step. A block is one token
// and one query head. Splits of 64 positions go through three stages that run side by side on three neighbouring
// splits: eight warps compute scores, half a warp to a position and four positions of each in flight; one warp makes a
// split's maximum, exponentials and sums, and the weights with which it joins the splits before it; four warps add
// values, a thread to a dimension, in order of positions, and join. One barrier of the whole block ends a round:
// racecheck follows it, where it does not a named one.
#include <limits>

#include "kernels/cuda/head_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/attention.h"

namespace ft::cuda {
namespace {

constexpr int kSplit = kAttentionSplit;
constexpr int kHeadDimLimit = kMaxHeadDim;
constexpr int kValueThreads = 128;
constexpr int kScoreThreads = 256;
constexpr int kThreads = kValueThreads + kScoreThreads + kWarp;
constexpr int kStages = 3;
constexpr int kPositionsAtOnce = kScoreThreads / kLanes;  // 16
constexpr int kRounds = kSplit / kPositionsAtOnce;        // 4
constexpr int kDimsPerThread = kHeadDimLimit / kValueThreads;
constexpr int kDimsPerBlock = 2 * kLanes;
static_assert(kSplit == 2 * kWarp && kRounds * kPositionsAtOnce == kSplit);
constexpr int kTreeLevels = 4;
constexpr int kPlaces = kTreeLevels + 1;  // one a level of a group's tree, one for the groups joined so far
static_assert(kAttentionGroup == 1 << kTreeLevels);

// ---- preparation

constexpr int kHeadsPerBlock = 4;

// A warp is a unit: unit < heads a query head, else a key head with its value.
__global__ __launch_bounds__(kWarp* kHeadsPerBlock) void prepare_kernel(const AttentionPrepareArgs args) {
  __shared__ float heads[kHeadsPerBlock][kHeadDimLimit];
  const auto lane = static_cast<int>(threadIdx.x);
  const int unit = static_cast<int>(blockIdx.x) * kHeadsPerBlock + static_cast<int>(threadIdx.y);
  if (unit >= args.heads + args.kv_heads) return;
  const int64_t token = blockIdx.y;
  const int64_t position = args.position[token];
  const auto head_dim = static_cast<int>(args.head_dim);
  const bool query = unit < args.heads;
  const int64_t offset = (query ? unit : unit - args.heads) * args.head_dim;
  float* q = args.q + token * args.q_stride + unit * query_stride(args.gated, args.head_dim);
  const float* from = query ? q : args.k + token * args.kv_stride + offset;
  float* x = heads[threadIdx.y];
  const auto load = [&](const float* row) {
    for (int d = lane; d < head_dim; d += kWarp) x[d] = row[d];
    __syncwarp();
  };
  load(from);
  const int64_t angles = position * args.rotary_half;
  const HeadRotation rotation{head_dim, static_cast<int>(args.rotary_half), args.norm_eps, args.cos + angles,
                              args.sin + angles};
  const float* norm = query ? args.q_norm : args.k_norm;
  norm_and_rotate(x, rotation, norm != nullptr, norm, lane);
  if (query) {
    for (int d = lane; d < head_dim; d += kWarp) q[d] = low_bf16(bf16_bits(x[d]));
    return;
  }
  bf16* keys =
      args.kv.data +
      (args.sequence[token] * args.kv.positions + kv_row(args.kv, position)) * kv_stride(args.kv_heads, args.head_dim) +
      offset;
  const auto store = [&](bf16* to) {
    for (int d = lane; d < head_dim; d += kWarp) to[d].bits = static_cast<uint16_t>(bf16_bits(x[d]));
    __syncwarp();
  };
  store(keys);
  load(args.value_is_key ? from : args.v + token * args.kv_stride + offset);
  norm_and_rotate(x, {head_dim, 0, args.norm_eps, nullptr, nullptr}, args.v_norm, nullptr, lane);
  store(keys + args.kv_heads * args.head_dim);
}

// ---- attention

// Weights of the joins that follow a split, by place; bit p of `mask`: there is one with what waits at place p.
struct Joins {
  uint32_t mask = 0;
  float left[kPlaces], right[kPlaces];
};

// What the stages hand over: a stage works on its own of the three.
struct Split {
  float e[kSplit];  // scores, then exponentials
  Joins joins;
};

// How a group's tree is walked split by split: join(place) for what waits to the left, then keep(place) for the result.
template <class Join, class Keep>
__device__ __forceinline__ void carry(int64_t split, Join join, Keep keep) {
  bool done = false;
#pragma unroll
  for (int place = 0; place < kPlaces; ++place) {
    const bool joins = place == kTreeLevels || (split >> place & 1) != 0;
    if (!done && joins) join(place);
    if (!done && (!joins || place == kTreeLevels)) {
      keep(place);
      done = true;
    }
  }
}

struct Walk {
  const bf16* keys = nullptr;
  const bf16* values = nullptr;
  int64_t stride = 0;
  int64_t begin = 0, length = 0;  // visible positions
  int64_t ring = 0;
  int head_dim = 0;

  // Rows of a split follow each other.
  __device__ __forceinline__ int64_t offset(int64_t start) const { return (ring == 0 ? start : start % ring) * stride; }
};

// Dimensions d and d + 1 of a row, +0 past head_dim. kPairs: rows are aligned for pairs and head_dim is even.
template <bool kPairs>
__device__ __forceinline__ uint32_t load_pair(const bf16* row, int d, int head_dim) {
  if (d >= head_dim) return 0u;
  if constexpr (kPairs) {
    return *reinterpret_cast<const uint32_t*>(row + d);
  } else {
    const uint32_t odd = d + 1 < head_dim ? row[d + 1].bits : 0u;
    return row[d].bits | odd << 16;
  }
}

// Scores of the split's positions, kPositionsAtOnce at a time, by the score threads. q is in shared memory, zero past
// head_dim up to whole blocks.
template <bool kPairs>
__device__ __forceinline__ void score_split(const Walk& walk, int64_t start, const float* q, float scale, int thread,
                                            float* scores) {
  const int lane = thread % kLanes;
  const int first = thread / kLanes;
  const bf16* keys = walk.keys + walk.offset(start);
  float sums[kRounds] = {};
#pragma unroll 4
  for (int d = 2 * lane; d - 2 * lane < walk.head_dim; d += kDimsPerBlock) {
    uint32_t pairs[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int64_t t = start + first + i * kPositionsAtOnce;
      const bool visible = t >= walk.begin && t < walk.length;
      pairs[i] = visible ? load_pair<kPairs>(keys + (t - start) * walk.stride, d, walk.head_dim) : 0u;
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      sums[i] = f32::fma(q[d + 1], high_bf16(pairs[i]), sums[i]);
      sums[i] = f32::fma(q[d], low_bf16(pairs[i]), sums[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const float score = f32::mul(f32::tree_sum(sums[i]), scale);
    if (lane == 0) scores[first + i * kPositionsAtOnce] = score;
  }
}

// Maxima and sums of a head's parts; the same in all lanes of the warp that keeps them.
struct Softmax {
  float m[kPlaces], sum[kPlaces];
  uint32_t waiting = 0;  // places that hold a part

  // (m, sum) = join(what waits at `place`, (m, sum)), its weights to `out`.
  __device__ __forceinline__ void join(int place, float& m_right, float& sum_right, Joins& out) {
    const float larger = f32::max(m[place], m_right);
    const float wa = f32::exp(f32::sub(m[place], larger));
    const float wb = f32::exp(f32::sub(m_right, larger));
    m_right = larger;
    sum_right = f32::fma(sum_right, wb, f32::mul(sum[place], wa));
    out.left[place] = wa, out.right[place] = wb;  // all lanes the same
    waiting &= ~(1u << place);
  }

  // One warp: scores to exponentials. Two positions a thread; lane l < 16 then adds e of t mod 16 == l in order of t.
  __device__ __forceinline__ void take(const Walk& walk, int64_t split, int lane, Split& out) {
    float e[2];
    bool visible[2];
    float larger = -std::numeric_limits<float>::infinity();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t t = split * kSplit + lane + i * kWarp;
      visible[i] = t >= walk.begin && t < walk.length;
      e[i] = out.e[lane + i * kWarp];
      if (visible[i]) larger = f32::max(e[i], larger);
    }
#pragma unroll
    for (int width = kWarp / 2; width >= 1; width /= 2) {
      larger = f32::max(__shfl_xor_sync(kFullWarp, larger, width), larger);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) e[i] = visible[i] ? f32::exp(f32::sub(e[i], larger)) : 0.0f;
    // Positions that are not visible add +0 to sums that are never -0. Lane l has t = l and l + 32, lane l + 16 the
    // others of the same sum.
    float lane_sum = f32::add(0.0f, e[0]);
    lane_sum = f32::add(lane_sum, __shfl_down_sync(kFullWarp, e[0], kLanes));
    lane_sum = f32::add(lane_sum, e[1]);
    lane_sum = f32::add(lane_sum, __shfl_down_sync(kFullWarp, e[1], kLanes));
    float total = __shfl_sync(kFullWarp, f32::tree_sum(lane_sum), 0);
#pragma unroll
    for (int i = 0; i < 2; ++i) out.e[lane + i * kWarp] = e[i];
    uint32_t mask = 0;
    carry(
        split,
        [&](int place) {
          if ((waiting >> place & 1) == 0) return;
          mask |= 1u << place;
          join(place, larger, total, out.joins);
        },
        [&](int place) { m[place] = larger, sum[place] = total, waiting |= 1u << place; });
    out.joins.mask = mask;
  }

  // Joins what waits, right to left; the sum and the maximum of all.
  __device__ __forceinline__ float finish(Joins& out, float& m_right) {
    float total = 0.0f;
    m_right = -std::numeric_limits<float>::infinity();
    bool any = false;
    uint32_t mask = 0;
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      if ((waiting >> place & 1) == 0) continue;
      if (any) {
        mask |= 1u << place;
        join(place, m_right, total, out);
      } else {
        m_right = m[place], total = sum[place];
        any = true;
      }
    }
    out.mask = mask;
    return total;
  }
};

template <int kDims>
struct Values {
  float out[kPlaces][kDims];

  __device__ __forceinline__ void join(int place, const Joins& joins, float (&right)[kDims]) {
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      right[i] = f32::fma(right[i], joins.right[place], f32::mul(out[place][i], joins.left[place]));
    }
  }

  // The split's visible values in order. Loads of kLoads positions are in flight.
  __device__ __forceinline__ void take(const Walk& walk, int64_t split, const Split& in, int thread) {
    constexpr int kLoads = 32 / kDims;
    const int64_t start = split * kSplit;
    const int first = start < walk.begin ? static_cast<int>(walk.begin - start) : 0;
    const int last = walk.length - start < kSplit ? static_cast<int>(walk.length - start) : kSplit;
    const bf16* row = walk.values + walk.offset(start) + thread;
    float sum[kDims] = {};
    for (int t = first; t < last; t += kLoads) {
      uint16_t v[kLoads][kDims];
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
#pragma unroll
        for (int i = 0; i < kDims; ++i) {
          const bool there = t + n < last && thread + i * kValueThreads < walk.head_dim;
          v[n][i] = there ? row[(t + n) * walk.stride + i * kValueThreads].bits : uint16_t{0};
        }
      }
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        if (t + n >= last) break;
#pragma unroll
        for (int i = 0; i < kDims; ++i) sum[i] = f32::fma(in.e[t + n], low_bf16(v[n][i]), sum[i]);
      }
    }
    carry(
        split,
        [&](int place) {
          if ((in.joins.mask >> place & 1) != 0) join(place, in.joins, sum);
        },
        [&](int place) {
#pragma unroll
          for (int i = 0; i < kDims; ++i) out[place][i] = sum[i];
        });
  }

  // `waiting` of the maxima's warp says which places hold a part.
  __device__ __forceinline__ void finish(uint32_t waiting, const Joins& joins, float (&result)[kDims]) {
    bool any = false;
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      if ((waiting >> place & 1) == 0) continue;
      if (any) {
        join(place, joins, result);
      } else {
#pragma unroll
        for (int i = 0; i < kDims; ++i) result[i] = out[place][i];
        any = true;
      }
    }
  }
};

__device__ __forceinline__ Walk walk_of(const AttentionArgs& args, int64_t token, int head) {
  const int kv_head = head / (args.heads / args.kv_heads);
  Walk walk;
  walk.stride = kv_stride(args.kv_heads, args.head_dim);
  walk.keys = args.kv.data + args.sequence[token] * args.kv.positions * walk.stride + kv_head * args.head_dim;
  walk.values = walk.keys + args.kv_heads * args.head_dim;
  walk.length = args.position[token] + 1;
  walk.begin = args.window > 0 && walk.length > args.window ? walk.length - args.window : 0;
  walk.ring = args.kv.ring;
  walk.head_dim = static_cast<int>(args.head_dim);
  return walk;
}

// kDims: dimensions of a value thread, ceil(head_dim / kValueThreads).
template <int kDims, bool kPairs>
__global__ __launch_bounds__(kThreads) void attention_kernel(const AttentionArgs args) {
  __shared__ float q[kHeadDimLimit];
  __shared__ Split splits[kStages];
  __shared__ Joins last_joins;
  __shared__ uint32_t waiting;
  __shared__ float total;
  __shared__ SinkJoin sink;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto head = static_cast<int>(blockIdx.x);
  const int64_t token = blockIdx.y;
  const Walk walk = walk_of(args, token, head);
  const float* q_row = args.q + token * args.q_stride + head * query_stride(args.gated, args.head_dim);
  for (int d = thread; d < kHeadDimLimit; d += kThreads) {
    q[d] = d < walk.head_dim ? __uint_as_float(__float_as_uint(q_row[d]) & 0xffff0000u) : 0.0f;
  }
  __syncthreads();

  const int64_t first = walk.begin / kSplit;
  const int64_t count = ceil_div(walk.length, kSplit) - first;
  const bool softmaxes = thread >= kValueThreads + kScoreThreads;  // the last warp
  Softmax softmax;
  Values<kDims> values;
  for (int64_t i = 0; i < count + kStages - 1; ++i) {
    if (softmaxes) {
      if (i >= 1 && i <= count) softmax.take(walk, first + i - 1, thread % kWarp, splits[(i - 1) % kStages]);
    } else if (thread >= kValueThreads) {
      if (i < count) {
        score_split<kPairs>(walk, (first + i) * kSplit, q, args.scale, thread - kValueThreads, splits[i % kStages].e);
      }
    } else if (i >= 2) {
      values.take(walk, first + i - 2, splits[(i - 2) % kStages], thread);
    }
    __syncthreads();
  }
  if (softmaxes) {
    waiting = softmax.waiting;  // before finish() empties it
    float largest;
    total = softmax.finish(last_joins, largest);
    if (args.sinks != nullptr) {
      sink = join_of_sink(largest, args.sinks[head]);
      total = sink.sum(total);
    }
  }
  __syncthreads();
  if (thread >= kValueThreads) return;
  float out[kDims] = {};
  values.finish(waiting, last_joins, out);
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const int d = thread + i * kValueThreads;
    if (d >= walk.head_dim) break;
    float value = args.sinks != nullptr ? sink.out(out[i]) : out[i];
    value = count > 0 ? f32::div(value, total) : 0.0f;
    if (args.gated) value = gated_by(value, q_row[args.head_dim + d]);
    args.out[token * args.out_stride + head * args.head_dim + d] = value;
  }
}

template <int kDims>
void launch(const AttentionArgs& args, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.tokens));
  const bool pairs = args.head_dim % 2 == 0 && reinterpret_cast<uintptr_t>(args.kv.data) % 4 == 0;
  if (pairs) {
    attention_kernel<kDims, true><<<grid, kThreads, 0, stream>>>(args);
  } else {
    attention_kernel<kDims, false><<<grid, kThreads, 0, stream>>>(args);
  }
  require_launched("attention");
}

}  // namespace

void attention_prepare(const AttentionPrepareArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.tokens <= kMaxGridY && 1 <= args.head_dim && args.head_dim <= kMaxHeadDim);
  FT_CHECK(2 * args.rotary_half <= args.head_dim);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.heads + args.kv_heads, kHeadsPerBlock)),
                  static_cast<unsigned>(args.tokens));
  prepare_kernel<<<grid, dim3(kWarp, kHeadsPerBlock), 0, stream>>>(args);
  require_launched("attention_prepare");
}

void attention(const AttentionArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.tokens <= kMaxGridY && 1 <= args.head_dim && args.head_dim <= kMaxHeadDim);
  FT_CHECK(args.kv_heads > 0 && args.heads % args.kv_heads == 0);
  switch (ceil_div(args.head_dim, kValueThreads)) {
    case 1:
      return launch<1>(args, stream);
    case 2:
      return launch<2>(args, stream);
    default:
      static_assert(kDimsPerThread == 4);
      return launch<4>(args, stream);
  }
}

}  // namespace ft::cuda
