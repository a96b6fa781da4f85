// Gated delta nets: convolution, norms, gates, delta rule, norm and gate of a value head (delta_net.h).
//
// A block has 32 columns of a value head's state in registers, a thread the rows of one column that are one part of the
// canonical sum (every fourth): 32 floats at 128 keys. A token is two chains of 32 fma and two exchanges over the four
// threads of a column. Other warps make rows ready meanwhile, a tile of tokens ahead: the convolution of the head's
// queries, keys and these values, and the norms.
// - Decode: one token. The state, which no other kernel of the step touches, is on its way before the kernel before
// this
//   one has ended. The blocks of a head are a cluster; its first block gets the columns of all and norms and gates
//   them.
// - Prompts: tokens in order through the same code, 16 at a time; a second launch norms and gates, a third keeps the
//   last inputs for the next convolution.
// The convolution of queries and keys is repeated in every block that reads them: 4 to 8 blocks in the models there
// are, where passing them on would take a launch and its memory.
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

// Tokens [first, first + count) of the run, by kPrepareThreads threads. kKeep: a decode step, whose input is kept.
template <int kTile, bool kKeep>
__device__ __forceinline__ void prepare(const DeltaLaunch& launch, const Place& place, int first, int count, int thread,
                                        const Tile<kTile>& tile) {
  const DeltaNetArgs& args = launch.args;
  const DeltaNetShape& shape = args.shape;
  const DeltaRowShape row(shape.key_dim);
  const auto key_dim = static_cast<int>(shape.key_dim), key_width = static_cast<int>(shape.key_width());
  const int key_head = place.head / static_cast<int>(shape.value_heads / shape.key_heads);
  const int columns = min(kDeltaColumns, static_cast<int>(shape.value_dim) - place.first_column);
  for (int c = thread; c < 2 * key_dim + columns; c += kPrepareThreads) {
    const bool query = c < key_dim, value = c >= 2 * key_dim;
    const int i = query ? c : value ? c - 2 * key_dim : c - key_dim;
    const int channel = value ? 2 * key_width + place.head * static_cast<int>(shape.value_dim) + place.first_column + i
                              : (query ? 0 : key_width) + key_head * key_dim + i;
    float* to = tile.rows + (value ? row.value() + i : (query ? 0 : row.key()) + row.place(i));
    convolve_channel<kTile, kKeep>(args, place.run, place.ring, channel, first, count, value || place.keeps_keys,
                                   [&](int t, float y) { to[t * row.floats()] = y; });
  }
  wait_for_previous();  // of threads without a channel
  if (thread < count) tile.gates[thread] = delta_gates(args, place.run.token + first + thread, place.head);
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

  // One token; q and k: of this part, on 16 bytes. Its output of this column.
  __device__ __forceinline__ float step(const float* q, const float* k, float v, DeltaGates gates) {
    float part = 0.0f;
#pragma unroll
    for (int n = 0; n < kEach; n += 4) {
      if (!there(n)) break;
      const float4 key = *reinterpret_cast<const float4*>(k + n);
      const float keys[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!there(n + i)) continue;
        s[n + i] = f32::mul(s[n + i], gates.decay);
        part = f32::fma(s[n + i], keys[i], part);
      }
    }
    const float d = f32::mul(gates.write, f32::sub(v, join(part)));
    float read = 0.0f;
#pragma unroll
    for (int n = 0; n < kEach; n += 4) {
      if (!there(n)) break;
      const float4 key = *reinterpret_cast<const float4*>(k + n), query = *reinterpret_cast<const float4*>(q + n);
      const float keys[4] = {key.x, key.y, key.z, key.w}, queries[4] = {query.x, query.y, query.z, query.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!there(n + i)) continue;
        s[n + i] = f32::fma(keys[i], d, s[n + i]);
        read = f32::fma(s[n + i], queries[i], read);
      }
    }
    return join(read);
  }
};

// `count` tokens of a tile from token row `token` on; put(t, column, value).
template <class Column, int kTile, class Put>
__device__ __forceinline__ void apply_rule(Column& column, const DeltaRowShape& row, const Tile<kTile>& tile, int count,
                                           int thread, Put&& put) {
  const int own = thread / kDeltaParts, part = thread % kDeltaParts * row.part;
  for (int t = 0; t < count; ++t) {
    const float* rows = tile.rows + t * row.floats();
    const float v = column.active ? rows[row.value() + own] : 0.0f;
    const float out = column.step(rows + part, rows + row.key() + part, v, tile.gates[t]);
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

// A decode step, whole: the blocks of a head are a cluster.
template <int kEach, bool kExact>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ DeltaLaunch launch) {
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
  if (thread >= kRuleThreads) {
    prepare<1, true>(launch, place, 0, 1, thread - kRuleThreads, tile);
    __syncthreads();
    for (int i = thread - kRuleThreads; blockIdx.x == 0 && i < value_dim; i += kPrepareThreads) {
      factors[i] = gate_factor(args.gate_kind, args.gate[place.run.token * args.gate_stride + at + i]);
    }
    arrive_at_cluster();
  } else {
    StateColumn<kEach, kExact> column(args, place, thread);
    column.load(place.run.position == 0);
    wait_for_previous();
    __syncthreads();
    const uint32_t first = address_in_block(static_cast<uint32_t>(__cvta_generic_to_shared(outs)), 0);
    apply_rule(column, row, tile, 1, thread, [&](int, int own, float value) {
      const uint32_t to = first + static_cast<uint32_t>(place.first_column + own) * 4u;
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
    });
    arrive_at_cluster();
    column.store();
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
    launch_clusters(kernel, grid, grid.x, kThreads, bytes, stream, launch);
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
