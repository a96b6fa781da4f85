// Attention of a decode step in one launch (ops.h attention_decode): kernels/ops/attention.h with the splits of a
// context spread over the device.
//
// A block has 16 warps and takes items (attention_plan.cuh): a unit of 16 / W splits, W warps to a split, up to eight
// query heads at once, so that every key and value is loaded and widened once for all of them. Per position and head
// group of 8, head_dim 128: 64 fma, the least there is; all other instructions are about 30.
// - Scores: half a warp has the 16 lanes of a canonical sum, its share of the queries in registers. Two positions and
//   all heads give 2 x kHeads sums a thread; they are added across threads by exchanging halves, which takes one
//   shuffle a sum instead of four and leaves every thread with one whole sum. Each thread holds its queries in an order
//   of its own (heads ^ lane bits), so that what it keeps and what it sends always are the same registers.
// - Values: a thread owns dimensions of some heads and walks the positions of its split in order.
// - Keys and values come through a ring of 8 KiB a warp, four rows a stage, by asynchronous copies that run ahead of the
//   arithmetic: up to 128 KiB in flight on a multiprocessor, where rate times latency is about 27 KiB.
// - Then the unit's splits are joined in shared memory, and the block that finishes a token's head group last (a counter
//   that it sets back to 0) joins the units. Nothing waits for another block.
#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/attention_split.cuh"
#include "kernels/cuda/head_rows.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
static_assert(kSlots == kWarps && kSlots == kAttentionGroup && kSplit % (kWarps * kStageRows) == 0);

// Items that scratch has room for beyond the largest units: small units of short contexts.
constexpr int64_t kExtraItems = 1024;

struct KernelArgs {
  AttentionDecodeArgs decode;
  int head_groups = 1;  // of one key/value head
  int capacity = 0;
  unsigned* counters = nullptr;  // (tokens, kv_heads * head_groups)
  float2* heads = nullptr;       // (items, kHeads): maximum and sum
  float2* outs = nullptr;        // (items, kHeads * kDim / 2)
};

template <int kHeads, int kDim>
struct Shared {
  alignas(128) std::byte ring[kWarps][kRingBytes];  // then the outs of a unit's splits
  alignas(16) float scores[kWarps][kHeads * kRowPitch];
  alignas(16) float rows[kHeads + 2][kDim];  // query heads; the new position's key and value
  float cos[kDim / 2], sin[kDim / 2];
  float q_norm[kDim], k_norm[kDim];
  alignas(16) uint16_t new_rows[2][kDim];
  float m[kSlots][kHeads], sum[kSlots][kHeads];
  float total[kHeads];
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
  bf16* keys;                      // position 0 of this key/value head
};

__device__ __forceinline__ Work work_of(const KernelArgs& args, const Plan& plan, const Item& item, int heads_at_once) {
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

// Queries to shared memory, ready; with `appends` also the new position's key and value, there and to the cache. All
// threads; ends with a barrier.
template <int kHeads, int kDim>
__device__ __forceinline__ void prepare_rows(const AttentionPrepareArgs& args, const Work& work, bool appends,
                                             Shared<kHeads, kDim>& shared) {
  static_assert(kHeads + 2 <= kWarps);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const float* q = args.q + work.token * args.q_stride + work.first_head * kDim;
  const float* k = args.k + work.token * args.kv_stride + work.kv_head * kDim;
  const float* v = args.v + work.token * args.kv_stride + work.kv_head * kDim;
  for (int i = thread; i < (kHeads + 2) * kDim; i += kThreads) {
    const int row = i / kDim, d = i % kDim;
    float x = 0.0f;
    if (row < work.heads) x = q[i];
    if (row == kHeads && appends) x = k[d];
    if (row == kHeads + 1 && appends) x = v[d];
    shared.rows[row][d] = x;
  }
  const auto half = static_cast<int>(args.rotary_half);
  for (int j = thread; j < half; j += kThreads) {
    shared.cos[j] = args.cos[work.newest * args.rotary_half + j];
    shared.sin[j] = args.sin[work.newest * args.rotary_half + j];
  }
  for (int d = thread; d < kDim; d += kThreads) {
    if (args.q_norm != nullptr) shared.q_norm[d] = args.q_norm[d];
    if (args.k_norm != nullptr) shared.k_norm[d] = args.k_norm[d];
  }
  __syncthreads();
  const HeadRotation rotation{kDim, half, args.norm_eps, shared.cos, shared.sin};
  if (warp < work.heads) {
    float* row = shared.rows[warp];
    norm_and_rotate(row, rotation, args.q_norm == nullptr ? nullptr : shared.q_norm, lane);
    for (int d = lane; d < kDim; d += kWarp) row[d] = low_bf16(bf16_bits(row[d]));
  } else if (appends && (warp == kHeads || warp == kHeads + 1)) {
    const int which = warp - kHeads;  // 0: key, 1: value
    float* row = shared.rows[warp];
    if (which == 0) norm_and_rotate(row, rotation, args.k_norm == nullptr ? nullptr : shared.k_norm, lane);
    const int64_t stride = kv_stride(args.kv_heads, kDim);
    bf16* to = work.keys + work.newest * stride + which * (args.kv_heads * kDim);
    for (int d = lane; d < kDim; d += kWarp) {
      shared.new_rows[which][d] = to[d].bits = static_cast<uint16_t>(bf16_bits(row[d]));
    }
  }
  __syncthreads();
}

// The splits of a unit, W warps each: maxima and sums to shared.m and sum, outs to the rings. Ends with a barrier.
template <int kHeads, int kDim, int W>
__device__ __forceinline__ void attend_splits(const KernelArgs& args, const Work& work, int unit,
                                              Shared<kHeads, kDim>& shared) {
  using Tile = ValueTile<kHeads, kDim, W>;
  const AttentionPrepareArgs& prepare = args.decode.prepare;
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int team = warp / W, in_team = warp % W;
  const int split = unit * (kWarps / W) + team;
  const bool present = split >= work.first_split && split <= work.last_split;
  RowStream<kHeads, kDim, W> stream;
  stream.keys = work.keys;
  stream.stride = kv_stride(prepare.kv_heads, kDim);
  stream.values = prepare.kv_heads * kDim;
  stream.newest = work.newest;
  stream.begin = args.decode.window > 0 && work.newest >= args.decode.window
                     ? work.newest + 1 - static_cast<int>(args.decode.window)
                     : 0;
  stream.first = split * kSplit + in_team * stream.kOwn;
  stream.ring = shared.ring[warp];
  if (present) stream.start(lane);
  prepare_rows(prepare, work, unit == work.last_split / (kWarps / W), shared);
  float* scores = shared.scores[team];
  if (present) {
    stream.patch(shared.new_rows, lane);
    score_keys<kHeads, kDim, W, Tile::kRows>(stream, shared.rows, args.decode.scale, in_team, lane, scores);
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
    for (int i = stream.kCount; i < 2 * stream.kCount; ++i) {
      wait_stages<Shape<kHeads, kDim>::kStages - 1>();
      __syncwarp();
      tile.add_stage(stream.stage(i), scores, (i - stream.kCount) * kStageRows);
      __syncwarp();
      stream.issue(i + Shape<kHeads, kDim>::kStages, lane, false);
    }
    tile.store(reinterpret_cast<float*>(shared.ring[warp]));
    __syncthreads();
  } else {
    __syncthreads();
    if (present) {
      for (int head = in_team * 2; head < kHeads; head += 2 * W) softmax.template operator()<kLanes>(head + lane / kLanes);
    }
    wait_stages<0>();
    __syncthreads();
    Tile tile(in_team, lane);
    if (present && tile.active) {
#pragma unroll 1
      for (int other = 0; other < W; ++other) {
        stream.ring = shared.ring[team * W + other];
#pragma unroll
        for (int i = 0; i < stream.kCount; ++i) {
          tile.add_stage(stream.stage(stream.kCount + i), scores, other * stream.kOwn + i * kStageRows);
        }
      }
    }
    __syncthreads();
    if (present && tile.active) tile.store(reinterpret_cast<float*>(shared.ring[team * W]));
    __syncthreads();
  }
}

__device__ __forceinline__ void write_out(const AttentionDecodeArgs& args, const Work& work, int head, int dim,
                                          float2 value, float sum) {
  if (head >= work.heads) return;
  float* out = args.out + work.token * args.out_stride + (work.first_head + head) * args.prepare.head_dim + dim;
  out[0] = f32::div(value.x, sum);
  out[1] = f32::div(value.y, sum);
}

// Joins the unit's splits: to the result when there is no other unit, else to scratch. Ends with a barrier.
template <int kHeads, int kDim, int W>
__device__ __forceinline__ void join_splits(const KernelArgs& args, const Work& work, int unit, int item, bool only_one,
                                            Shared<kHeads, kDim>& shared) {
  constexpr int kLeaves = kWarps / W;
  constexpr int kPairs = kHeads * kDim / 2;
  static_assert(kPairs <= kThreads);
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
      shared.total[warp] = part.sum;
      if (!only_one) args.heads[static_cast<int64_t>(item) * kHeads + warp] = {part.m, part.sum};
    }
  }
  __syncthreads();
  if (thread < kPairs) {
    const int head = thread / (kDim / 2);
    float2 values[kSlots] = {};
#pragma unroll
    for (int slot = 0; slot < kLeaves; ++slot) {
      if (range.any(slot, 1)) values[slot] = reinterpret_cast<const float2*>(shared.ring[slot * W])[thread];
    }
    join_trees(shared.weights, head, kLeaves, range, values);
    if (only_one) {
      write_out(args.decode, work, head, thread % (kDim / 2) * 2, values[0], shared.total[head]);
    } else {
      args.outs[static_cast<int64_t>(item) * kPairs + thread] = values[0];
    }
  }
  __syncthreads();
}

// By the last block of a token's head group: all its units.
template <int kHeads, int kDim>
__device__ __forceinline__ void join_units(const KernelArgs& args, const Work& work, const Item& item, int groups,
                                           Shared<kHeads, kDim>& shared) {
  constexpr int kPairs = kHeads * kDim / 2;
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const int head = thread / (kDim / 2);
  const int leaves = kSlots >> shared.plan.kind;  // units of a group
  const auto place = [&](int unit) {
    return static_cast<int64_t>(item.first_item) + static_cast<int64_t>(unit - item.first_unit) * groups + item.group;
  };
  Joined joined;
  float larger = -std::numeric_limits<float>::infinity();
  for (int base = item.first_unit / kSlots * kSlots; base <= item.last_unit; base += kSlots) {
    const SlotRange range{max(item.first_unit - base, 0), min(item.last_unit - base, kSlots - 1)};
    float2 values[kSlots] = {};
    if (thread < kPairs) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        if (range.any(slot, 1)) values[slot] = __ldcg(args.outs + place(base + slot) * kPairs + thread);
      }
    }
    if (warp < kHeads) {
      const int slot = lane % kSlots;
      Softmax part;
      if (range.any(slot, 1)) {
        const float2 pair = __ldcg(args.heads + place(base + slot) * kHeads + warp);
        part = {pair.x, pair.y};
      }
      weigh_trees(shared.weights, warp, lane, leaves, range, part);
      larger = weigh_groups(shared.weights, warp, lane, leaves, part, larger);
    }
    __syncthreads();
    if (thread < kPairs) {
      join_trees(shared.weights, head, leaves, range, values);
      joined.take(shared.weights, head, leaves, range, values);
    }
    __syncthreads();
  }
  if (thread < kPairs) write_out(args.decode, work, head, thread % (kDim / 2) * 2, joined.out, joined.sum);
}

// Whether this block's item is the last of its token's head group to be finished. All threads; two barriers.
__device__ __forceinline__ bool finishes(unsigned* counter, int units, bool& last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // after the barrier: what the whole block wrote is visible before the count
    last = atomicAdd(counter, 1u) == static_cast<unsigned>(units) - 1u;
    if (last) *counter = 0;  // for the next launch
    __threadfence();
  }
  __syncthreads();
  return last;
}

template <int kHeads, int kDim>
__global__ __launch_bounds__(kThreads, 1) void decode_kernel(const __grid_constant__ KernelArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<kHeads, kDim>*>(memory);
  const AttentionPrepareArgs& prepare = args.decode.prepare;
  const int groups = prepare.kv_heads * args.head_groups;
  let_next_start();
  wait_for_previous();
  if (threadIdx.x < kWarp) {
    make_plan({prepare.position, prepare.sequence, static_cast<int>(prepare.tokens), args.decode.window, groups,
               static_cast<int>(gridDim.x), args.capacity, kDim > 128 ? 1u << 3 : 0u},
              static_cast<int>(threadIdx.x), shared.plan);
  }
  __syncthreads();
  for (int i = static_cast<int>(blockIdx.x); i < shared.plan.items; i += static_cast<int>(gridDim.x)) {
    const Item item = item_of(shared.plan, groups, i);
    const Work work = work_of(args, shared.plan, item, kHeads);
    const int units = item.last_unit - item.first_unit + 1;
    const auto unit = [&]<int W>() {
      attend_splits<kHeads, kDim, W>(args, work, item.unit, shared);
      join_splits<kHeads, kDim, W>(args, work, item.unit, i, units == 1, shared);
    };
    switch (shared.plan.kind) {
      case 0:
        unit.template operator()<16>();
        break;
      case 1:
        unit.template operator()<8>();
        break;
      case 2:
        unit.template operator()<4>();
        break;
      case 3:
        if constexpr (kDim <= 128) unit.template operator()<2>();
        break;
      default:
        unit.template operator()<1>();
    }
    if (units == 1) continue;
    if (finishes(args.counters + work.token * groups + item.group, units, shared.last)) {
      join_units(args, work, item, groups, shared);
    }
    __syncthreads();
  }
}

// ---- launch

// Query heads at once: those of a key/value head, in groups that queries in registers allow.
int heads_at_once(int group, int64_t head_dim) {
  const int limit = head_dim > 128 ? 4 : 8;
  int heads = 2;
  while (heads < limit && heads < group) heads *= 2;
  return heads;
}

bool has_kernel(int64_t head_dim) { return head_dim == 64 || head_dim == 128 || head_dim == 256; }

constexpr int64_t kScratchBoundary = 256;
int64_t rounded(int64_t bytes) { return ceil_div(bytes, kScratchBoundary) * kScratchBoundary; }

struct Scratch {
  int head_groups, groups;
  int64_t capacity, counters, heads, outs;  // bytes
};
Scratch scratch_of(int64_t tokens, int heads, int kv_heads, int64_t head_dim, int64_t positions) {
  const int at_once = heads_at_once(heads / kv_heads, head_dim);
  Scratch s;
  s.head_groups = static_cast<int>(ceil_div(heads / kv_heads, at_once));
  s.groups = kv_heads * s.head_groups;
  s.capacity = tokens * s.groups * (ceil_div(positions, kAttentionGroup * kAttentionSplit) + 1) + kExtraItems;
  s.counters = rounded(tokens * s.groups * static_cast<int64_t>(sizeof(unsigned)));
  s.heads = rounded(s.capacity * at_once * static_cast<int64_t>(sizeof(float2)));
  s.outs = s.capacity * at_once * head_dim * static_cast<int64_t>(sizeof(float));
  return s;
}

template <int kHeads, int kDim>
void launch_decode(const AttentionDecodeArgs& decode, StreamHandle stream) {
  const AttentionPrepareArgs& prepare = decode.prepare;
  const Scratch scratch =
      scratch_of(prepare.tokens, prepare.heads, prepare.kv_heads, prepare.head_dim, prepare.kv.positions);
  KernelArgs args;
  args.decode = decode;
  args.head_groups = scratch.head_groups;
  args.capacity = static_cast<int>(scratch.capacity);
  args.counters = reinterpret_cast<unsigned*>(decode.scratch);
  args.heads = reinterpret_cast<float2*>(decode.scratch + scratch.counters);
  args.outs = reinterpret_cast<float2*>(decode.scratch + scratch.counters + scratch.heads);
  constexpr size_t kBytes = sizeof(Shared<kHeads, kDim>);
  const auto kernel = decode_kernel<kHeads, kDim>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)),
        "cannot give attention_decode its shared memory");
  int device = 0, blocks = 0;
  check(cudaGetDevice(&device), "cannot ask for the device");
  check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device), "cannot count multiprocessors");
  cuda::launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kBytes, stream, args);
}

template <int kDim>
void launch_heads(const AttentionDecodeArgs& args, StreamHandle stream) {
  switch (heads_at_once(args.prepare.heads / args.prepare.kv_heads, kDim)) {
    case 2:
      return launch_decode<2, kDim>(args, stream);
    case 4:
      return launch_decode<4, kDim>(args, stream);
    default:
      if constexpr (kDim <= 128) return launch_decode<8, kDim>(args, stream);
  }
}

}  // namespace

int64_t attention_decode_scratch_bytes(int64_t tokens, int heads, int kv_heads, int64_t head_dim, int64_t positions) {
  if (!has_kernel(head_dim)) return kScratchBoundary;
  const Scratch s = scratch_of(tokens, heads, kv_heads, head_dim, positions);
  return s.counters + s.heads + s.outs;
}

void attention_decode(const AttentionDecodeArgs& args, StreamHandle stream) {
  const AttentionPrepareArgs& prepare = args.prepare;
  if (prepare.tokens == 0) return;
  FT_CHECK(prepare.tokens <= kMaxDecodeTokens && prepare.kv_heads > 0 && prepare.heads % prepare.kv_heads == 0);
  FT_CHECK(2 * prepare.rotary_half <= prepare.head_dim);
  FT_CHECK(reinterpret_cast<uintptr_t>(args.scratch) % kScratchBoundary == 0);
  if (!has_kernel(prepare.head_dim) || reinterpret_cast<uintptr_t>(prepare.kv.data) % 16 != 0) {
    attention_prepare(prepare, stream);
    attention({prepare.q, prepare.q_stride, prepare.tokens, prepare.heads, prepare.kv_heads, prepare.head_dim, args.scale,
               args.window, prepare.sequence, prepare.position, prepare.kv, args.out, args.out_stride},
              stream);
    return;
  }
  switch (prepare.head_dim) {
    case 64:
      return launch_heads<64>(args, stream);
    case 128:
      return launch_heads<128>(args, stream);
    default:
      return launch_heads<256>(args, stream);
  }
}

}  // namespace ft::cuda
