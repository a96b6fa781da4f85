// A block's part of attention_decode.cu: rows of a token made ready, the splits of a unit, and joining splits and
// units.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/attention_split.cuh"
#include "kernels/cuda/head_rows.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {

inline constexpr int kDecodeWarps = 16;
inline constexpr int kDecodeThreads = kDecodeWarps * kWarp;
static_assert(kSlots == kDecodeWarps && kSlots == kAttentionGroup && kSplit % (kDecodeWarps * kStageRows) == 0);

struct DecodeLaunch {
  AttentionDecodeArgs decode;
  int head_groups = 1;  // of one key/value head
  int capacity = 0;
  unsigned* counters = nullptr;  // (kMaxDecodeTokens, kv_heads * head_groups)
  float2* heads = nullptr;       // (items, kHeads): maximum and sum
  float2* outs = nullptr;        // (items, kHeads * kDim / 2)
};

template <int kHeads, int kDim>
struct DecodeShared {
  alignas(128) std::byte ring[kDecodeWarps][kRingBytes];  // then the outs of a unit's splits
  alignas(16) float scores[kDecodeWarps][kHeads * kRowPitch];
  alignas(16) float rows[kHeads + 2][kDim];  // query heads; the new position's key and value
  alignas(16) uint16_t new_rows[2][kDim];
  float m[kSlots][kHeads], sum[kSlots][kHeads];
  float total[kHeads];
  SinkJoin sink[kHeads];
  JoinWeights<kHeads> weights;
  Plan plan;
  bool last;
};

// What an item's block works on.
struct Work {
  int64_t token;
  int kv_head, first_head, heads;  // query heads [first_head, first_head + heads)
  int first_split, last_split;     // visible
  int newest;                      // position
  bf16* keys;                      // row 0 of this key/value head
};

__device__ __forceinline__ Work work_of(const DecodeLaunch& args, const Plan& plan, const Item& item,
                                        int heads_at_once) {
  const AttentionPrepareArgs& prepare = args.decode.prepare;
  const int group = prepare.heads / prepare.kv_heads;
  Work work;
  work.token = item.token;
  work.kv_head = item.group / args.head_groups;
  const int first = item.group % args.head_groups * heads_at_once;
  work.first_head = work.kv_head * group + first;
  work.heads = min(heads_at_once, group - first);
  work.first_split = plan.first_split[item.token];
  work.last_split = plan.last_split[item.token];
  work.newest = plan.newest[item.token];
  work.keys = prepare.kv.data +
              plan.sequence[item.token] * prepare.kv.positions * kv_stride(prepare.kv_heads, prepare.head_dim) +
              work.kv_head * prepare.head_dim;
  return work;
}

// Queries to shared memory, ready; with `appends` also the new position's key and value, there and to the cache. A warp
// is a row, and what it needs from memory is on its way at once, what other kernels of the step wrote after the wait
// for them. All threads; ends with a barrier.
template <int kHeads, int kDim>
__device__ __forceinline__ void prepare_rows(const AttentionPrepareArgs& args, const Work& work, bool appends,
                                             bool& waited, DecodeShared<kHeads, kDim>& shared) {
  static_assert(kHeads + 2 <= kDecodeWarps);
  constexpr int kEach = kDim / kWarp;  // dimensions of a lane: lane + 32 i
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const bool query = warp < kHeads, value = warp == kHeads + 1;
  const bool waits = !waited;
  waited = true;
  if (warp < work.heads || (appends && (warp == kHeads || value))) {
    const float* from =
        query ? args.q + work.token * args.q_stride + (work.first_head + warp) * query_stride(args.gated, kDim)
              : (value && !args.value_is_key ? args.v : args.k) + work.token * args.kv_stride + work.kv_head * kDim;
    const float* norm = query ? args.q_norm : value ? nullptr : args.k_norm;
    const bool normed = value ? args.v_norm : norm != nullptr;
    const int half = value ? 0 : static_cast<int>(args.rotary_half);
    const float* cos = args.cos + work.newest * args.rotary_half;
    const float* sin = args.sin + work.newest * args.rotary_half;
    float x[kEach], w[kEach], c[kEach / 2], s[kEach / 2];
#pragma unroll
    for (int i = 0; i < kEach; ++i) w[i] = norm != nullptr ? norm[lane + i * kWarp] : 1.0f;
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const int j = lane + i * kWarp;
      c[i] = j < half ? cos[j] : 0.0f;
      s[i] = j < half ? sin[j] : 0.0f;
    }
    if (waits) wait_for_previous();
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = from[lane + i * kWarp];
    if (normed) norm_row<kEach>(x, w, args.norm_eps, lane);
    float* row = shared.rows[warp];
#pragma unroll
    for (int i = 0; i < kEach; ++i) row[lane + i * kWarp] = x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const int j = lane + i * kWarp;
      if (j >= half) break;
      const float a = row[j], b = row[j + half];
      row[j] = f32::fma(a, c[i], -f32::mul(b, s[i]));
      row[j + half] = f32::fma(b, c[i], f32::mul(a, s[i]));
    }
    __syncwarp();
    uint16_t* new_row = shared.new_rows[value ? 1 : 0];
    bf16* cached =
        work.keys + kv_row(args.kv, work.newest) * kv_stride(args.kv_heads, kDim) + (value ? args.kv_heads * kDim : 0);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int d = lane + i * kWarp;
      const uint32_t bits = bf16_bits(row[d]);
      if (query) {
        row[d] = low_bf16(bits);
      } else {
        new_row[d] = cached[d].bits = static_cast<uint16_t>(bits);
      }
    }
  } else {
    if (waits) wait_for_previous();
    if (query) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) shared.rows[warp][lane + i * kWarp] = 0.0f;
    }
  }
  __syncthreads();
}

// Of a warp: `count` stages of positions from `first` on.
template <int kDim>
__device__ __forceinline__ RowStream<kDim> stream_of(const AttentionDecodeArgs& args, const Work& work, int first,
                                                     int count, std::byte* ring) {
  constexpr int64_t kBytes = sizeof(bf16);
  const auto window = static_cast<int>(args.window < INT32_MAX ? args.window : INT32_MAX);
  RowStream<kDim> stream;
  stream.stride = kv_stride(args.prepare.kv_heads, kDim) * kBytes;
  stream.values = args.prepare.kv_heads * kDim * kBytes;
  stream.newest = work.newest;
  stream.inside = args.prepare.kv.data;
  stream.begin = window > 0 && work.newest >= window ? work.newest + 1 - window : 0;
  stream.first = first;
  stream.count = count;
  stream.ring = ring;
  return stream;
}

// The splits of a unit, W warps each: maxima and sums to shared.m and sum, outs to the rings. `ready`: shared.rows
// holds this token's queries. Ends with a barrier.
template <int kHeads, int kDim, int W>
__device__ __forceinline__ void attend_splits(const DecodeLaunch& args, const Work& work, int unit, bool ready,
                                              bool& waited, DecodeShared<kHeads, kDim>& shared) {
  using Tile = ValueTile<kHeads, kDim, W>;
  using S = Shape<kDim>;
  constexpr int kOwn = kSplit / W;                // positions of a warp
  constexpr int kCount = kOwn / kStageRows;       // stages of keys, and of values
  static_assert(W == 1 || kCount <= S::kStages);  // values of all the team stay until its warps have read them
  const AttentionPrepareArgs& prepare = args.decode.prepare;
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int team = warp / W, in_team = warp % W;
  const int split = unit * (kDecodeWarps / W) + team;
  const bool present = split >= work.first_split && split <= work.last_split;
  auto stream = stream_of<kDim>(args.decode, work, split * kSplit + in_team * kOwn, kCount, shared.ring[warp]);
  if (present) stream.start(work.keys, kv_row(prepare.kv, stream.first), lane);
  const bool appends = unit == work.last_split / (kDecodeWarps / W);
  if (!ready || appends) prepare_rows(prepare, work, appends, waited, shared);
  float* scores = shared.scores[team];
  if (present) {
    stream.patch(shared.new_rows, lane);
    score_keys<kHeads, kDim, Tile::kRows>(stream, shared.rows, args.decode.scale, lane, scores);
  }
  const auto softmax = [&]<int kThreadsOfHead>(int head) {
    const int j = lane % kThreadsOfHead;
    float m, sum;
    softmax_head<kHeads, Tile::kRows, kThreadsOfHead>(scores, head, j, stream.begin - split * kSplit,
                                                      work.newest - split * kSplit, m, sum);
    if (j == 0) shared.m[team][head] = m, shared.sum[team][head] = sum;
  };
  if constexpr (W == 1) {
    if (!present) return __syncthreads();
    __syncwarp();
    constexpr int kThreadsOfHead = kHeads >= 2 ? kWarp / kHeads : kLanes;
    softmax.template operator()<kThreadsOfHead>(lane / kThreadsOfHead);
    __syncwarp();
    Tile tile(0, lane);
#pragma unroll 1
    for (int i = kCount; i < 2 * kCount; ++i) {
      wait_stages<S::kStages - 1>();
      __syncwarp();
      tile.add_stage(stream.stage(i), scores, (i - kCount) * kStageRows);
      __syncwarp();
      stream.issue(i + S::kStages, lane, false);
    }
    tile.store(reinterpret_cast<float*>(shared.ring[warp]));
    __syncthreads();
  } else {
    __syncthreads();
    if (present) {
      for (int head = in_team * 2; head < kHeads; head += 2 * W)
        softmax.template operator()<kLanes>(head + lane / kLanes);
    }
    wait_stages<0>();
    __syncthreads();
    Tile tile(in_team, lane);
    if (present && tile.active) {
#pragma unroll(W >= 4 ? W / 4 : 1)
      for (int other = 0; other < W; ++other) {
        stream.ring = shared.ring[team * W + other];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          tile.add_stage(stream.stage(kCount + i), scores, other * kOwn + i * kStageRows);
        }
      }
    }
    __syncthreads();
    if (present && tile.active) tile.store(reinterpret_cast<float*>(shared.ring[team * W]));
    __syncthreads();
  }
}

// sink: of the head, if there are any; `sum` has it.
__device__ __forceinline__ void write_out(const AttentionDecodeArgs& args, const Work& work, int head, int dim,
                                          float2 value, float sum, const SinkJoin& sink) {
  if (head >= work.heads) return;
  const AttentionPrepareArgs& prepare = args.prepare;
  const int64_t of_query = work.first_head + head;
  float* out = args.out + work.token * args.out_stride + of_query * prepare.head_dim + dim;
  if (args.sinks != nullptr) value = {sink.out(value.x), sink.out(value.y)};
  value = {f32::div(value.x, sum), f32::div(value.y, sum)};
  if (prepare.gated) {
    const float* gate = prepare.q + work.token * prepare.q_stride + (2 * of_query + 1) * prepare.head_dim + dim;
    value = {gated_by(value.x, gate[0]), gated_by(value.y, gate[1])};
  }
  out[0] = value.x;
  out[1] = value.y;
}

// What a head ends with: its sum, with its sink if there are any, which goes to `sink`.
__device__ __forceinline__ float end_sum(const AttentionDecodeArgs& args, const Work& work, int head, Softmax part,
                                         SinkJoin& sink) {
  if (args.sinks == nullptr || head >= work.heads) return part.sum;
  sink = join_of_sink(part.m, args.sinks[work.first_head + head]);
  return sink.sum(part.sum);
}

// Joins the unit's splits: to the result when there is no other unit, else to scratch. Ends with a barrier.
template <int kHeads, int kDim, int W>
__device__ __forceinline__ void join_splits(const DecodeLaunch& args, const Work& work, int unit, int item,
                                            bool only_one, DecodeShared<kHeads, kDim>& shared) {
  constexpr int kLeaves = kDecodeWarps / W;
  constexpr int kPairs = kHeads * kDim / 2;
  static_assert(kPairs <= kDecodeThreads);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int base = unit * kLeaves;
  const SlotRange range{max(work.first_split - base, 0), min(work.last_split - base, kLeaves - 1)};
  if (warp < kHeads) {
    const int slot = lane % kSlots;
    Softmax part;
    if (range.any(slot, 1)) part = {shared.m[slot][warp], shared.sum[slot][warp]};
    weigh_trees(shared.weights, warp, lane, kLeaves, range, part);
    if (lane == 0) {
      if (only_one) shared.total[warp] = end_sum(args.decode, work, warp, part, shared.sink[warp]);
      if (!only_one) args.heads[static_cast<int64_t>(item) * kHeads + warp] = {part.m, part.sum};
    }
  }
  __syncthreads();
  if (thread < kPairs) {
    const int head = thread / (kDim / 2);
    float2 values[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      values[slot] = {kMissing, kMissing};
      if (slot < kLeaves && range.any(slot, 1)) {
        values[slot] = reinterpret_cast<const float2*>(shared.ring[slot % kLeaves * W])[thread];
      }
    }
    join_trees(shared.weights, head, kLeaves, values);
    if (only_one) {
      write_out(args.decode, work, head, thread % (kDim / 2) * 2, values[0], shared.total[head], shared.sink[head]);
    } else {
      args.outs[static_cast<int64_t>(item) * kPairs + thread] = values[0];
    }
  }
  __syncthreads();
}

// By the last block of a token's head group: all its units, 16 at a time; the next ones are on their way meanwhile.
template <int kHeads, int kDim>
__device__ __forceinline__ void join_units(const DecodeLaunch& args, const Work& work, const Item& item, int groups,
                                           DecodeShared<kHeads, kDim>& shared) {
  constexpr int kPairs = kHeads * kDim / 2;
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp, slot = lane % kSlots;
  const int head = min(thread / (kDim / 2), kHeads - 1);  // threads past kPairs only come along
  const int leaves = kSlots >> shared.plan.kind;          // units of a group
  const int begin = item.first_unit & ~(kSlots - 1);
  const int64_t first_place = static_cast<int64_t>(item.first_item) + item.group;
  const auto range_of = [&](int base) {
    return SlotRange{max(item.first_unit - base, 0), min(item.last_unit - base, kSlots - 1)};
  };
  const auto load_values = [&](int base, float2(&values)[kSlots]) {
    const SlotRange range = range_of(base);
    const int step = groups * kPairs;
    const float2* from = args.outs + (first_place + static_cast<int64_t>(base - item.first_unit) * groups) * kPairs;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      values[i] = {kMissing, kMissing};
      if (thread < kPairs && range.any(i, 1)) values[i] = __ldcg(from + (i * step + thread));
    }
  };
  const auto load_part = [&](int base) {
    Softmax part;
    if (warp < kHeads && range_of(base).any(slot, 1)) {
      const float2 pair = __ldcg(
          args.heads + (first_place + static_cast<int64_t>(base + slot - item.first_unit) * groups) * kHeads + warp);
      part = {pair.x, pair.y};
    }
    return part;
  };
  Joined joined;
  float larger = -std::numeric_limits<float>::infinity();
  float2 values[kSlots];
  Softmax part = load_part(begin);
  load_values(begin, values);
  for (int base = begin; base <= item.last_unit; base += kSlots) {
    const SlotRange range = range_of(base);
    if (warp < kHeads) {
      weigh_trees(shared.weights, warp, lane, leaves, range, part);
      larger = weigh_groups(shared.weights, warp, lane, leaves, range, part, base > begin, larger);
    }
    __syncthreads();
    float2 next[kSlots];
    part = load_part(base + kSlots);
    load_values(base + kSlots, next);
    join_trees(shared.weights, head, leaves, values);
    joined.take(shared.weights, head, leaves, values);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSlots; ++i) values[i] = next[i];
  }
  if (args.decode.sinks != nullptr) {
    if (warp < work.heads && lane == 0) {
      shared.sink[warp] = join_of_sink(larger, args.decode.sinks[work.first_head + warp]);
    }
    __syncthreads();
    joined.sum = shared.sink[head].sum(joined.sum);
  }
  if (thread < kPairs) {
    write_out(args.decode, work, head, thread % (kDim / 2) * 2, joined.out, joined.sum, shared.sink[head]);
  }
}

}  // namespace ft::cuda
