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
#include "kernels/cuda/delta_rule.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

constexpr int kStepThreads = 288;     // a channel each at 128 keys
constexpr int kPrepareThreads = 288;  // likewise
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

// Where a channel of a token stands in a row.
__device__ __forceinline__ int place_in_row(const DeltaRowShape& row, const Channel& own) {
  return own.value ? row.value() + own.i : (own.query ? 0 : row.key()) + row.place(own.i);
}

// The token of a decode step, whose input is kept. All kStepThreads threads; ends with a barrier.
__device__ __forceinline__ void prepare_step(const DeltaLaunch& launch, const Place& place, const Tile<1>& tile) {
  const DeltaNetArgs& args = launch.args;
  const DeltaRowShape row(args.shape.key_dim);
  const auto key_dim = static_cast<int>(args.shape.key_dim), thread = static_cast<int>(threadIdx.x);
  const int columns = min(kDeltaColumns, static_cast<int>(args.shape.value_dim) - place.first_column);
  for (int c = thread; c < 2 * key_dim + columns; c += kStepThreads) {
    const Channel own = channel_of(args.shape, place, c);
    convolve_channel<1, true>(args, place.run, place.ring, own.channel, 0, 1, own.value || place.keeps_keys,
                              [&](int, float y) { tile.rows[place_in_row(row, own)] = y; });
  }
  wait_for_previous();  // of threads without a channel
  if (thread == kStepThreads - 1) tile.gates[0] = delta_gates(args, place.run.token, place.head);
  __syncthreads();
  if (thread < kWarp) {
    const bool query = thread < 16;
    norm_delta_row(tile.rows + (query ? 0 : row.key()), row, key_dim, query ? launch.query_scale : 1.0f, true, thread);
  }
  __syncthreads();
}

// Tokens [first, first + count) of a prompt's run, by kPrepareThreads threads.
template <int kTile>
__device__ __forceinline__ void prepare_tile(const DeltaNetArgs& args, const Place& place, int first, int count,
                                             int thread, const Tile<kTile>& tile) {
  const DeltaNetShape& shape = args.shape;
  const DeltaRowShape row(shape.key_dim);
  const auto key_dim = static_cast<int>(shape.key_dim);
  const int columns = min(kDeltaColumns, static_cast<int>(shape.value_dim) - place.first_column);
  const int64_t stride = 2 * shape.key_width();
  for (int c = thread; c < 2 * key_dim + columns; c += kPrepareThreads) {
    const Channel own = channel_of(shape, place, c);
    float* to = tile.rows + place_in_row(row, own);
    if (own.value) {
      convolve_channel<kTile, false>(args, place.run, place.ring, own.channel, first, count, false,
                                     [&](int t, float y) { to[t * row.floats()] = y; });
      continue;
    }
    const float* from = args.ready + (place.run.token + first) * stride + own.channel;
    float x[kTile];
#pragma unroll
    for (int t = 0; t < kTile; ++t) x[t] = t < count ? from[t * stride] : 0.0f;
#pragma unroll
    for (int t = 0; t < kTile; ++t) to[t * row.floats()] = x[t];
  }
  if (thread < count) tile.gates[thread] = delta_gates(args, place.run.token + first + thread, place.head);
}

// Prompts: columns to `out` as the rule gives them.
template <int kEach, bool kExact, int kTile>
__global__ void __launch_bounds__(kThreads) rule_kernel(const __grid_constant__ DeltaNetArgs args) {
  extern __shared__ __align__(16) float memory[];
  __shared__ DeltaGates gates[2][kTile];
  const Place place = place_of(args);
  const DeltaRowShape row(args.shape.key_dim);
  const auto tile_of = [&](int index) {
    return Tile<kTile>{memory + index % 2 * (kTile * row.floats()), gates[index % 2]};
  };
  const auto thread = static_cast<int>(threadIdx.x);
  const int tiles = (place.run.count + kTile - 1) / kTile;
  const auto count_of = [&](int index) { return min(kTile, place.run.count - index * kTile); };
  if (thread >= kRuleThreads) {
    for (int i = 0; i < tiles; ++i) {
      prepare_tile<kTile>(args, place, i * kTile, count_of(i), thread - kRuleThreads, tile_of(i));
      __syncthreads();
    }
    return;
  }
  StateColumn<kEach, kExact> column(args.shape, place.state, place.first_column, thread);
  column.load(place.run.position == 0);
  float* out = args.out + place.head * args.shape.value_dim + place.first_column;
  for (int i = 0; i < tiles; ++i) {
    __syncthreads();
    const int64_t token = place.run.token + i * kTile;
    apply_rule(column, row, tile_of(i), count_of(i), thread,
               [&](int t, int own, float value) { out[(token + t) * args.out_stride + own] = value; });
  }
  column.store();
}

// A decode step. All threads make rows ready, the first ones have the state. kCluster: whole, the blocks of a head
// being a cluster; else columns to `out` as the rule gives them.
template <int kEach, bool kExact, bool kCluster>
__global__ void __launch_bounds__(kStepThreads, kExact ? 3 : 1)
    step_kernel(const __grid_constant__ DeltaLaunch launch) {
  extern __shared__ __align__(16) float memory[];
  __shared__ DeltaGates gates[1];
  let_next_start();
  const DeltaNetArgs& args = launch.args;
  const Place place = place_of(args);
  const DeltaRowShape row(args.shape.key_dim);
  const Tile<1> tile{memory, gates};
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t at = place.head * args.shape.value_dim;
  float* out = args.out + place.run.token * args.out_stride + at;
  const bool rules = thread < kRuleThreads;
  StateColumn<kEach, kExact> column(args.shape, place.state, place.first_column, thread);
  if (rules) column.load(place.run.position == 0);
  prepare_step(launch, place, tile);
  if constexpr (!kCluster) {
    if (!rules) return;
    apply_rule(column, row, tile, 1, thread, [&](int, int own, float value) { out[place.first_column + own] = value; });
    return column.store();
  }
#if __CUDA_ARCH__ >= 900
  __shared__ float outs[kMaxClusterColumns], factors[kMaxClusterColumns];  // of the head, in the first block
  const auto value_dim = static_cast<int>(args.shape.value_dim);
  if (rules) {
    const uint32_t first = address_in_block(static_cast<uint32_t>(__cvta_generic_to_shared(outs)), 0);
    apply_rule(column, row, tile, 1, thread, [&](int, int own, float value) {
      const uint32_t to = first + static_cast<uint32_t>(place.first_column + own) * 4u;
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
    });
    arrive_at_cluster();
    column.store();
  } else {
    for (int i = thread - kRuleThreads; blockIdx.x == 0 && i < value_dim; i += kStepThreads - kRuleThreads) {
      factors[i] = gate_factor(args.gate_kind, args.gate[place.run.token * args.gate_stride + at + i]);
    }
    arrive_at_cluster();
  }
  wait_for_cluster();
  const int lane = thread - kRuleThreads;
  if (blockIdx.x != 0 || lane < 0 || lane >= kWarp) return;
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

size_t tile_bytes(const DeltaNetShape& shape, int tokens) {
  return static_cast<size_t>(tokens) * static_cast<size_t>(DeltaRowShape(shape.key_dim).floats()) * sizeof(float);
}

template <int kEach, bool kExact>
void launch_step(const DeltaLaunch& launch, dim3 grid, StreamHandle stream) {
  const size_t bytes = tile_bytes(launch.args.shape, 1);
  if (programmatic_launch() && launch.args.shape.value_dim <= kMaxClusterColumns) {
    launch_clusters(step_kernel<kEach, kExact, true>, grid, grid.x, kStepThreads, bytes, stream, launch);
    return;
  }
  cuda::launch(step_kernel<kEach, kExact, false>, grid, dim3(kStepThreads), bytes, stream, launch);
  const int64_t rows = launch.args.tokens * launch.args.shape.value_heads;
  cuda::launch(finish_kernel, dim3(static_cast<unsigned>(ceil_div(rows, kFinishWarps))), dim3(kWarp, kFinishWarps), 0,
               stream, launch.args);
}

template <int kEach, bool kExact, int kTile>
void launch_runs(const DeltaLaunch& launch, dim3 grid, StreamHandle stream) {
  const DeltaNetArgs& args = launch.args;
  const int64_t tiles = ceil_div(args.tokens, kTileTokens);  // of the longest run: at most all
  FT_CHECK(args.ready != nullptr && tiles <= kMaxGridY);
  const auto row_floats = static_cast<size_t>(DeltaRowShape(args.shape.key_dim).key());
  launch_after_all(ready_kernel,
                   dim3(static_cast<unsigned>(2 * args.shape.key_heads), static_cast<unsigned>(tiles), grid.z),
                   dim3(kReadyThreads), kTileTokens * row_floats * sizeof(float), stream, launch);
  const auto kernel = rule_kernel<kEach, kExact, kTile>;
  const size_t bytes = 2 * tile_bytes(args.shape, kTile);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cannot give a delta net its shared memory");
  launch_after_all(kernel, grid, dim3(kThreads), bytes, stream, args);
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
