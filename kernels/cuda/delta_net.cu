// Gated delta nets: convolution, norms, gates, delta rule, norm and gate of a value head (delta_net.h).
//
// A block has 32 columns of a value head's state in registers, a thread the rows of one column that are one part of the
// canonical sum (every fourth): 32 floats at 128 keys. A token is two chains of 32 fma and two exchanges over the four
// threads of a column; what a token reads and what the next one finds at its keys are summed side by side. Other warps
// make rows ready meanwhile, a tile of tokens ahead.
// - Decode: one token. The state, which no other kernel of the step touches, is on its way before the kernel before it
//   has ended. The blocks of a head are a cluster; its first block gets the columns of all and norms and gates them.
// - Prompts: tokens in order through the same code, 16 at a time, after a launch that convolves and norms queries and
//   keys, which four to eight blocks read; then a launch norms and gates, and one keeps the last inputs for the next
//   convolution.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cluster_send.cuh"
#include "kernels/cuda/delta_net.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

constexpr int kRuleThreads = kDeltaColumns * kDeltaParts;
constexpr int kPrepareThreads = 288;  // a channel each at 128 keys
constexpr int kThreads = kRuleThreads + kPrepareThreads;
constexpr int kTileTokens = 16;
constexpr int kReadyThreads = 128;
constexpr int64_t kMaxClusterColumns = 8 * kDeltaColumns;  // eight blocks: every device with clusters has them

struct DeltaLaunch {
  DeltaNetArgs args;
  float query_scale;
};

// What a block works on.
struct Place {
  SequenceRun run;
  int head, first_column;
  float* ring;      // the convolution's history
  float* state;     // of the head
  bool keeps_keys;  // this block keeps the newest queries and keys: one of those that read them
};

__device__ __forceinline__ Place place_of(const DeltaNetArgs& args) {
  const DeltaNetShape& shape = args.shape;
  Place place;
  place.run = delta_run_of(args, static_cast<int>(blockIdx.z));
  place.head = static_cast<int>(blockIdx.y);
  place.first_column = static_cast<int>(blockIdx.x) * kDeltaColumns;
  place.ring = args.state + place.run.sequence * args.sequence_floats;
  place.state = place.ring + shape.history_floats() + place.head * delta_state_floats(shape.key_dim, shape.value_dim);
  place.keeps_keys = blockIdx.x == 0 && place.head % (shape.value_heads / shape.key_heads) == 0;
  return place;
}

// A tile of tokens made ready.
template <int kTile>
struct Tile {
  float* rows;  // (kTile, DeltaRowShape::floats)
  DeltaGates* gates;
};

// Of a head's query, key and value, in this order, channel number c.
struct Channel {
  bool query, value;
  int i;        // in its row
  int channel;  // of the input
};
__device__ __forceinline__ Channel channel_of(const DeltaNetShape& shape, const Place& place, int c) {
  const auto key_dim = static_cast<int>(shape.key_dim), key_width = static_cast<int>(shape.key_width());
  const int key_head = place.head / static_cast<int>(shape.value_heads / shape.key_heads);
  if (c >= 2 * key_dim) {
    const int i = c - 2 * key_dim;
    return {false, true, i, 2 * key_width + place.head * static_cast<int>(shape.value_dim) + place.first_column + i};
  }
  const bool query = c < key_dim;
  const int i = query ? c : c - key_dim;
  return {query, false, i, (query ? 0 : key_width) + key_head * key_dim + i};
}

// Tokens [first, first + count) of the run, by kPrepareThreads threads. kKeep: a decode step, whose input is kept.
template <int kTile, bool kKeep>
__device__ __forceinline__ void prepare(const DeltaLaunch& launch, const Place& place, int first, int count, int thread,
                                        const Tile<kTile>& tile) {
  const DeltaNetArgs& args = launch.args;
  const DeltaNetShape& shape = args.shape;
  const DeltaRowShape row(shape.key_dim);
  const auto key_dim = static_cast<int>(shape.key_dim);
  const int columns = min(kDeltaColumns, static_cast<int>(shape.value_dim) - place.first_column);
  const bool ready = !kKeep && args.ready != nullptr;  // queries and keys are
  for (int c = thread; c < 2 * key_dim + columns; c += kPrepareThreads) {
    const Channel own = channel_of(shape, place, c);
    float* to = tile.rows + (own.value ? row.value() + own.i : (own.query ? 0 : row.key()) + row.place(own.i));
    if (ready && !own.value) {
      const int64_t stride = 2 * shape.key_width();
      const float* from = args.ready + (place.run.token + first) * stride + own.channel;
      float x[kTile];
#pragma unroll
      for (int t = 0; t < kTile; ++t) x[t] = t < count ? from[t * stride] : 0.0f;
#pragma unroll
      for (int t = 0; t < kTile; ++t) to[t * row.floats()] = x[t];
      continue;
    }
    convolve_channel<kTile, kKeep>(args, place.run, place.ring, own.channel, first, count,
                                   own.value || place.keeps_keys, [&](int t, float y) { to[t * row.floats()] = y; });
  }
  wait_for_previous();  // of threads without a channel
  if (thread < count) tile.gates[thread] = delta_gates(args, place.run.token + first + thread, place.head);
  if (ready) return;
  asm volatile("bar.sync 1, %0;" ::"n"(kPrepareThreads) : "memory");
  constexpr int kRowsAtOnce = kPrepareThreads / 16;
  for (int base = 0; base < 2 * count; base += kRowsAtOnce) {
    const int index = base + thread / 16, t = index / 2;
    const bool query = index % 2 == 0;
    norm_delta_row(tile.rows + t * row.floats() + (query ? 0 : row.key()), row, key_dim,
                   query ? launch.query_scale : 1.0f, index < 2 * count, thread % kWarp);
  }
}

// The rows of a part of a column.
template <int kEach, bool kExact>
struct StateColumn {
  float s[kEach];
  float* memory;  // of the first row
  int rows;       // in this part; kExact: kEach
  bool active;

  __device__ __forceinline__ StateColumn(const DeltaNetArgs& args, const Place& place, int thread) {
    const auto key_dim = static_cast<int>(args.shape.key_dim);
    const int column = place.first_column + thread / kDeltaParts, part = thread % kDeltaParts;
    active = column < args.shape.value_dim;
    rows = (key_dim - part + kDeltaParts - 1) / kDeltaParts;
    memory = place.state + column / 16 * key_dim * 16 + part * 16 + column % 16;
  }
  __device__ __forceinline__ bool there(int n) const { return kExact || n < rows; }
  __device__ __forceinline__ void load(bool zero) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      s[n] = !zero && active && there(n) ? memory[n * kDeltaParts * 16] : 0.0f;
    }
  }
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      if (active && there(n)) memory[n * kDeltaParts * 16] = s[n];
    }
  }

  // The sum of the four parts, in all four threads.
  __device__ __forceinline__ static float join(float part) {
    part = f32::add(part, __shfl_xor_sync(kFullWarp, part, 2));
    return f32::add(part, __shfl_xor_sync(kFullWarp, part, 1));
  }

  // q and k below: of this part, on 16 bytes. The decayed state's sum at a token's keys.
  __device__ __forceinline__ float decay(const float* k, float factor) {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kEach; n += 4) {
      if (!there(n)) break;
      const float4 key = *reinterpret_cast<const float4*>(k + n);
      const float keys[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!there(n + i)) continue;
        s[n + i] = f32::mul(s[n + i], factor);
        sum = f32::fma(s[n + i], keys[i], sum);
      }
    }
    return sum;
  }
  // A token's change, and the sum at its queries. With kNext then decay() for the token whose keys are next_k, in the
  // same walk.
  template <bool kNext>
  __device__ __forceinline__ float change(const float* q, const float* k, float d, const float* next_k, float factor,
                                          float& next_sum) {
    float sum = 0.0f, at_next = 0.0f;
#pragma unroll
    for (int n = 0; n < kEach; n += 4) {
      if (!there(n)) break;
      const float4 key = *reinterpret_cast<const float4*>(k + n), query = *reinterpret_cast<const float4*>(q + n);
      const float4 next = kNext ? *reinterpret_cast<const float4*>(next_k + n) : key;
      const float keys[4] = {key.x, key.y, key.z, key.w}, queries[4] = {query.x, query.y, query.z, query.w};
      const float nexts[4] = {next.x, next.y, next.z, next.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!there(n + i)) continue;
        s[n + i] = f32::fma(keys[i], d, s[n + i]);
        sum = f32::fma(s[n + i], queries[i], sum);
        if constexpr (kNext) {
          s[n + i] = f32::mul(s[n + i], factor);
          at_next = f32::fma(s[n + i], nexts[i], at_next);
        }
      }
    }
    next_sum = at_next;
    return sum;
  }
};

// `count` tokens of a tile; put(t, column, value).
template <class Column, int kTile, class Put>
__device__ __forceinline__ void apply_rule(Column& column, const DeltaRowShape& row, const Tile<kTile>& tile, int count,
                                           int thread, Put&& put) {
  const int own = thread / kDeltaParts, part = thread % kDeltaParts * row.part;
  float sum = column.decay(tile.rows + row.key() + part, tile.gates[0].decay);
  for (int t = 0; t < count; ++t) {
    const float* q = tile.rows + t * row.floats() + part;
    const float* k = q + row.key();
    const float v = column.active ? tile.rows[t * row.floats() + row.value() + own] : 0.0f;
    const float d = f32::mul(tile.gates[t].write, f32::sub(v, Column::join(sum)));
    const float read = t + 1 < count
                           ? column.template change<true>(q, k, d, k + row.floats(), tile.gates[t + 1].decay, sum)
                           : column.template change<false>(q, k, d, nullptr, 0.0f, sum);
    const float out = Column::join(read);
    if (thread % kDeltaParts == 0 && column.active) put(t, own, out);
  }
}

// Prompts, and decode steps without clusters: columns to `out` as the rule gives them.
template <int kEach, bool kExact, int kTile>
__global__ void __launch_bounds__(kThreads) rule_kernel(const __grid_constant__ DeltaLaunch launch) {
  extern __shared__ __align__(16) float memory[];
  __shared__ DeltaGates gates[2][kTile];
  let_next_start();
  const DeltaNetArgs& args = launch.args;
  const Place place = place_of(args);
  const DeltaRowShape row(args.shape.key_dim);
  const auto tile_of = [&](int index) {
    return Tile<kTile>{memory + index % 2 * (kTile * row.floats()), gates[index % 2]};
  };
  const auto thread = static_cast<int>(threadIdx.x);
  const int tiles = (place.run.count + kTile - 1) / kTile;
  const auto count_of = [&](int index) { return min(kTile, place.run.count - index * kTile); };
  constexpr bool kKeep = kTile == 1;
  if (thread >= kRuleThreads) {
    for (int i = 0; i < tiles; ++i) {
      prepare<kTile, kKeep>(launch, place, i * kTile, count_of(i), thread - kRuleThreads, tile_of(i));
      __syncthreads();
    }
    return;
  }
  StateColumn<kEach, kExact> column(args, place, thread);
  column.load(place.run.position == 0);
  wait_for_previous();
  float* out = args.out + place.head * args.shape.value_dim + place.first_column;
  for (int i = 0; i < tiles; ++i) {
    __syncthreads();
    const int64_t token = place.run.token + i * kTile;
    apply_rule(column, row, tile_of(i), count_of(i), thread,
               [&](int t, int own, float value) { out[(token + t) * args.out_stride + own] = value; });
  }
  column.store();
}

// A decode step, whole: the blocks of a head are a cluster. All threads make rows ready, the first ones have the state.
template <int kEach, bool kExact>
__global__ void __launch_bounds__(kPrepareThreads, kExact ? 3 : 1)
    step_kernel(const __grid_constant__ DeltaLaunch launch) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) float memory[];
  __shared__ DeltaGates gates[1];
  __shared__ float outs[kMaxClusterColumns], factors[kMaxClusterColumns];  // of the head, in the first block
  let_next_start();
  const DeltaNetArgs& args = launch.args;
  const Place place = place_of(args);
  const DeltaRowShape row(args.shape.key_dim);
  const Tile<1> tile{memory, gates};
  const auto thread = static_cast<int>(threadIdx.x);
  const auto value_dim = static_cast<int>(args.shape.value_dim);
  const int64_t at = place.head * args.shape.value_dim;
  const bool rules = thread < kRuleThreads;
  StateColumn<kEach, kExact> column(args, place, thread);
  if (rules) column.load(place.run.position == 0);
  prepare<1, true>(launch, place, 0, 1, thread, tile);
  __syncthreads();
  if (rules) {
    const uint32_t first = address_in_block(static_cast<uint32_t>(__cvta_generic_to_shared(outs)), 0);
    apply_rule(column, row, tile, 1, thread, [&](int, int own, float value) {
      const uint32_t to = first + static_cast<uint32_t>(place.first_column + own) * 4u;
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
    });
    arrive_at_cluster();
    column.store();
  } else {
    for (int i = thread - kRuleThreads; blockIdx.x == 0 && i < value_dim; i += kPrepareThreads - kRuleThreads) {
      factors[i] = gate_factor(args.gate_kind, args.gate[place.run.token * args.gate_stride + at + i]);
    }
    arrive_at_cluster();
  }
  wait_for_cluster();
  const int lane = thread - kRuleThreads;
  if (blockIdx.x != 0 || lane < 0 || lane >= kWarp) return;
  float* out = args.out + place.run.token * args.out_stride + at;
  finish_delta_row(
      outs, value_dim, args.norm, args.norm_eps, lane, [&](int i) { return factors[i]; },
      [&](int i, float value) { out[i] = value; });
#endif
}

constexpr int kFinishWarps = 8;

// Norm and gate of (token, head) rows in place, a warp each.
__global__ void __launch_bounds__(kWarp* kFinishWarps) finish_kernel(const __grid_constant__ DeltaNetArgs args) {
  let_next_start();
  wait_for_previous();
  const auto heads = static_cast<int>(args.shape.value_heads), value_dim = static_cast<int>(args.shape.value_dim);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kFinishWarps + threadIdx.y;
  if (index >= args.tokens * heads) return;
  const int64_t token = index / heads, at = index % heads * value_dim;
  float* out = args.out + token * args.out_stride + at;
  const float* gate = args.gate + token * args.gate_stride + at;
  finish_delta_row(
      out, value_dim, args.norm, args.norm_eps, static_cast<int>(threadIdx.x),
      [&](int i) { return gate_factor(args.gate_kind, gate[i]); }, [&](int i, float value) { out[i] = value; });
}

// Queries and keys of a prompt convolved and normed: a block is a head of these and a tile of a run's tokens.
__global__ void __launch_bounds__(kReadyThreads) ready_kernel(const __grid_constant__ DeltaLaunch launch) {
  extern __shared__ __align__(16) float memory[];
  const DeltaNetArgs& args = launch.args;
  const DeltaNetShape& shape = args.shape;
  const SequenceRun run = args.runs[blockIdx.z];
  const int first = static_cast<int>(blockIdx.y) * kTileTokens, count = min(kTileTokens, run.count - first);
  if (count <= 0) return;
  const DeltaRowShape row(shape.key_dim);
  const auto key_dim = static_cast<int>(shape.key_dim), thread = static_cast<int>(threadIdx.x);
  const auto head = static_cast<int>(blockIdx.x);  // of the queries, then of the keys
  float* ring = args.state + run.sequence * args.sequence_floats;
  for (int i = thread; i < key_dim; i += kReadyThreads) {
    float* to = memory + row.place(i);
    convolve_channel<kTileTokens, false>(args, run, ring, head * key_dim + i, first, count, false,
                                         [&](int t, float y) { to[t * row.key()] = y; });
  }
  __syncthreads();
  const float scale = head < shape.key_heads ? launch.query_scale : 1.0f;
  for (int base = 0; base < count; base += kReadyThreads / 16) {
    const int t = base + thread / 16;
    norm_delta_row(memory + t * row.key(), row, key_dim, scale, t < count, thread % kWarp);
  }
  __syncthreads();
  const int64_t stride = 2 * shape.key_width();
  float* ready = args.ready + (run.token + first) * stride + head * key_dim;
  for (int i = thread; i < key_dim; i += kReadyThreads) {
    for (int t = 0; t < count; ++t) ready[t * stride + i] = memory[t * row.key() + row.place(i)];
  }
}

// The last inputs of a run to the ring: one row a block in y.
__global__ void __launch_bounds__(256) keep_kernel(const __grid_constant__ DeltaNetArgs args) {
  const SequenceRun run = args.runs[blockIdx.z];
  const auto channel = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const int t = run.count - 1 - static_cast<int>(blockIdx.y);
  if (t < 0 || channel >= args.shape.channels()) return;
  float* ring = args.state + run.sequence * args.sequence_floats;
  ring[(run.position + t) % args.shape.taps * args.shape.channels() + channel] =
      args.x[(run.token + t) * args.x_stride + channel];
}

// ---- launch

template <class Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cannot give a delta net its shared memory");
}

size_t tile_bytes(const DeltaNetShape& shape, int tokens) {
  return static_cast<size_t>(tokens) * static_cast<size_t>(DeltaRowShape(shape.key_dim).floats()) * sizeof(float);
}

template <int kEach, bool kExact>
void launch_step(const DeltaLaunch& launch, dim3 grid, StreamHandle stream) {
  if (programmatic_launch() && launch.args.shape.value_dim <= kMaxClusterColumns) {
    const auto kernel = step_kernel<kEach, kExact>;
    const size_t bytes = tile_bytes(launch.args.shape, 1);
    allow_shared(kernel, bytes);
    launch_clusters(kernel, grid, grid.x, kPrepareThreads, bytes, stream, launch);
    return;
  }
  const auto kernel = rule_kernel<kEach, kExact, 1>;
  const size_t bytes = 2 * tile_bytes(launch.args.shape, 1);
  allow_shared(kernel, bytes);
  cuda::launch(kernel, grid, dim3(kThreads), bytes, stream, launch);
  const int64_t rows = launch.args.tokens * launch.args.shape.value_heads;
  cuda::launch(finish_kernel, dim3(static_cast<unsigned>(ceil_div(rows, kFinishWarps))), dim3(kWarp, kFinishWarps), 0,
               stream, launch.args);
}

template <int kEach, bool kExact, int kTile>
void launch_runs(const DeltaLaunch& launch, dim3 grid, StreamHandle stream) {
  const DeltaNetArgs& args = launch.args;
  if (args.ready != nullptr) {
    const int64_t tiles = ceil_div(args.tokens, kTileTokens);  // of the longest run: at most all
    FT_CHECK(tiles <= kMaxGridY);
    const auto row_floats = static_cast<size_t>(DeltaRowShape(args.shape.key_dim).key());
    launch_after_all(ready_kernel,
                     dim3(static_cast<unsigned>(2 * args.shape.key_heads), static_cast<unsigned>(tiles), grid.z),
                     dim3(kReadyThreads), kTileTokens * row_floats * sizeof(float), stream, launch);
  }
  const auto kernel = rule_kernel<kEach, kExact, kTile>;
  const size_t bytes = 2 * tile_bytes(args.shape, kTile);
  allow_shared(kernel, bytes);
  launch_after_all(kernel, grid, dim3(kThreads), bytes, stream, launch);
  const auto blocks = static_cast<unsigned>(ceil_div(args.tokens * args.shape.value_heads, kFinishWarps));
  launch_after_all(finish_kernel, dim3(blocks), dim3(kWarp, kFinishWarps), 0, stream, args);
  if (args.shape.taps == 1) return;
  const dim3 keep(static_cast<unsigned>(ceil_div(args.shape.channels(), 256)),
                  static_cast<unsigned>(args.shape.taps - 1), grid.z);
  launch_after_all(keep_kernel, keep, dim3(256), 0, stream, args);
}

template <int kEach, bool kExact>
void launch_all(const DeltaLaunch& launch, dim3 grid, StreamHandle stream) {
  if (launch.args.runs == nullptr) return launch_step<kEach, kExact>(launch, grid, stream);
  launch_runs<kEach, kExact, (kEach > 32 ? kTileTokens / 4 : kTileTokens)>(launch, grid, stream);
}

}  // namespace

void delta_net(const DeltaNetArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  const DeltaNetShape& shape = args.shape;
  FT_CHECK(shape.key_dim >= 1 && shape.key_dim <= kMaxDeltaKeyDim && shape.value_dim >= 1 &&
           shape.value_dim <= kMaxDeltaValueDim && shape.taps >= 1 && shape.taps <= kMaxConvTaps);
  FT_CHECK(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0 && shape.value_heads <= kMaxGridY);
  const int64_t runs = args.runs == nullptr ? args.tokens : args.run_count;
  FT_CHECK(runs <= kMaxGridY);
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.value_dim, kDeltaColumns)),
                  static_cast<unsigned>(shape.value_heads), static_cast<unsigned>(runs));
  const DeltaLaunch launch{args, static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key_dim)))};
  if (shape.key_dim == 128) return launch_all<32, true>(launch, grid, stream);
  if (shape.key_dim <= 128) return launch_all<32, false>(launch, grid, stream);
  launch_all<128, false>(launch, grid, stream);
}

}  // namespace ft::cuda
