// Attention to compressed entries, but for the attention itself: compressed.h.
#include <cmath>

#include "kernels/cuda/compressed.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxDim = 512;

// ---- rows of a step

__device__ __forceinline__ void load_row(float* x, const float* from, int dim, int lane) {
  for (int i = lane; i < dim; i += kWarp) x[i] = from[i];
  __syncwarp();
}

// Units of a token, a warp each: query heads, index heads, then the row that is cached.
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ CompressedArgs args, float index_scale) {
  __shared__ float rows[kWarps][kMaxDim];
  let_next_start();
  wait_for_previous();
  const CompressedLayerView& layer = args.layer;
  const int lane = static_cast<int>(threadIdx.x), unit = static_cast<int>(blockIdx.x) * kWarps + threadIdx.y;
  const int index_heads = layer.index_dim > 0 ? layer.index_heads : 0;
  if (unit > args.heads + index_heads) return;
  const int64_t token = blockIdx.y;
  const PairRotation rotation = rotation_at(args, args.position[token]);
  float* x = rows[threadIdx.y];
  if (unit == args.heads + index_heads) {
    load_row(x, args.key + token * args.key_stride, layer.head_dim, lane);
    rotate_pairs(x, layer.head_dim, rotation, false, lane, kWarp);
    __syncwarp();
    if (args.on_grids) round_cached_row_by_warp(x, layer.head_dim, 2 * args.half, lane);
    for (int i = lane; i < layer.head_dim; i += kWarp) {
      args.fresh[token * layer.head_dim + i].bits = static_cast<uint16_t>(bf16_bits(x[i]));
    }
    return;
  }
  const bool query = unit < args.heads;
  const int head = query ? unit : unit - args.heads, dim = query ? layer.head_dim : layer.index_dim;
  float* q = query ? args.q + token * args.q_stride + head * dim
                   : args.index_q.data + token * args.index_q.stride + head * dim;
  load_row(x, q, dim, lane);
  if (query) norm_and_rotate(x, {dim, 0, args.norm_eps, nullptr, nullptr}, true, nullptr, lane);
  rotate_pairs(x, dim, rotation, false, lane, kWarp);
  __syncwarp();
  if (args.on_grids && !query) round_index_vector_by_warp(x, dim, args.hadamard_scale, lane);
  for (int i = lane; i < dim; i += kWarp) q[i] = low_bf16(bf16_bits(x[i]));
  if (query || lane != 0) return;
  float& weight = args.index_weight.data[token * args.index_weight.stride + head];
  weight = f32::mul(weight, index_scale);
}

// A block is an entry, or index entry, that closes in this step.
__global__ void __launch_bounds__(kThreads) close_kernel(const __grid_constant__ CompressedArgs args) {
  __shared__ float x[kMaxDim];
  __shared__ float r;
  let_next_start();
  wait_for_previous();
  const CompressedLayerView& layer = args.layer;
  const SequenceRun run = run_at(args, static_cast<int>(blockIdx.z));
  const auto position = static_cast<int>(run.position);
  const int entry = position / layer.ratio + static_cast<int>(blockIdx.y);
  if (entry >= (position + run.count) / layer.ratio) return;
  const bool index = blockIdx.x == 1;
  const EntryRows rows(args, run, index);
  const auto thread = static_cast<int>(threadIdx.x);
  const int dim = rows.dim;
  for (int i = thread; i < dim; i += kThreads) x[i] = rows.compress(entry, i);
  __syncthreads();
  if (thread < kWarp) {
    float sum = 0.0f;
    for (int i = thread; thread < 16 && i < dim; i += 16) sum = f32::fma(x[i], x[i], sum);
    sum = f32::tree_sum(sum);
    if (thread == 0) r = rms_scale(sum, dim, args.norm_eps);
  }
  __syncthreads();
  const float* norm = index ? args.index_norm : args.entry_norm;
  for (int i = thread; i < dim; i += kThreads) x[i] = f32::mul(f32::mul(x[i], r), norm[i]);
  __syncthreads();
  rotate_pairs(x, dim, rotation_at(args, static_cast<int64_t>(entry) * layer.ratio), false, thread, kThreads);
  __syncthreads();
  if (args.on_grids) {
    if (thread < kWarp) {
      index ? round_index_vector_by_warp(x, dim, args.hadamard_scale, thread)
            : round_cached_row_by_warp(x, dim, 2 * args.half, thread);
    }
    __syncthreads();
  }
  bf16* to = index ? index_entry(layer, run.sequence, entry) : entry_row(layer, run.sequence, entry);
  for (int i = thread; i < dim; i += kThreads) to[i].bits = static_cast<uint16_t>(bf16_bits(x[i]));
}

// The last rows of a run go where the next step finds them: a block a token.
__global__ void __launch_bounds__(kThreads) keep_kernel(const __grid_constant__ CompressedArgs args) {
  let_next_start();
  wait_for_previous();
  const CompressedLayerView& layer = args.layer;
  const auto token = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const SequenceRun run = run_of_token(args, token);
  const int left = run.token + run.count - token;  // itself included
  const auto position = static_cast<int>(args.position[token]);
  if (left <= layer.ring_rows) {
    bf16* to = ring_row(layer, run.sequence, position);
    for (int i = thread; i < layer.head_dim; i += kThreads) to[i] = args.fresh[token * layer.head_dim + i];
  }
  if (left > layer.open_ring) return;
  float* to = open_row(layer, run.sequence, position);
  const int main = layer.halves() * layer.head_dim, side = layer.halves() * layer.index_dim;
  const auto copy = [&](const CompressedArgs::Rows& rows, int count) {
    for (int i = thread; i < count; i += kThreads) to[i] = rows.data[token * rows.stride + i];
    to += count;
  };
  copy(args.entry_value, main);
  copy(args.entry_logit, main);
  copy(args.index_value, side);
  copy(args.index_logit, side);
}

// ---- what a token attends to

// A warp is a row.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ CompressedArgs args, const __grid_constant__ CompressedGroup group) {
  let_next_start();
  wait_for_previous();
  const CompressedLayerView& layer = args.layer;
  const auto place = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(group.first) + place;
  const SequenceRun run = run_of_token(args, token);
  const auto position = static_cast<int>(args.position[token]);
  const int window = min(layer.window, position + 1), rows = layer.attended(position + 1);
  if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0) {
    group.sequence[place] = place;
    group.position[place] = rows - 1;
  }
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.y);
  if (row >= rows) return;
  const bf16* from;
  if (row < window) {
    const int t = position - window + 1 + row, own = t - static_cast<int>(run.position);
    from = own >= 0 ? args.fresh + (run.token + own) * layer.head_dim : ring_row(layer, run.sequence, t);
  } else {
    const int i = row - window;
    from = entry_row(layer, run.sequence, chooses(layer, position) ? group.chosen[place * layer.index_top_k + i] : i);
  }
  bf16* to = group.gathered + (place * group.gathered_rows + row) * 2 * layer.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < layer.head_dim; i += kWarp) to[i] = to[layer.head_dim + i] = from[i];
}

// A warp is a head.
__global__ void __launch_bounds__(kThreads)
    turn_back_kernel(const __grid_constant__ CompressedArgs args, int64_t first) {
  let_next_start();
  wait_for_previous();
  const int head = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.y);
  if (head >= args.heads) return;
  const int64_t token = first + blockIdx.y;
  float* out = args.out + token * args.out_stride + head * args.layer.head_dim;
  rotate_pairs(out, args.layer.head_dim, rotation_at(args, args.position[token]), true, static_cast<int>(threadIdx.x),
               kWarp);
}

unsigned blocks_of(int64_t units) { return static_cast<unsigned>(ceil_div(units, kWarps)); }

}  // namespace

void compressed_prepare(const CompressedArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  const CompressedLayerView& layer = args.layer;
  FT_CHECK(args.tokens <= kMaxGridY && layer.head_dim <= kMaxDim && layer.index_dim <= kMaxDim);
  FT_CHECK(2 * args.half <= layer.head_dim && (layer.index_dim == 0 || 2 * args.half <= layer.index_dim));
  const int index_heads = layer.index_dim > 0 ? layer.index_heads : 0;
  const double scale = index_heads > 0 ? 1.0 / std::sqrt(static_cast<double>(layer.index_dim * index_heads)) : 0.0;
  launch(prepare_kernel, dim3(blocks_of(args.heads + index_heads + 1), static_cast<unsigned>(args.tokens)),
         dim3(kWarp, kWarps), 0, stream, args, static_cast<float>(scale));
}

void compressed_close(const CompressedArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.layer.ratio == 0) return;
  const auto runs = static_cast<unsigned>(args.runs == nullptr ? args.tokens : args.run_count);
  const auto closing = static_cast<unsigned>(ceil_div(args.max_run_tokens, args.layer.ratio));
  FT_CHECK(runs <= kMaxGridY && closing <= kMaxGridY);
  launch(close_kernel, dim3(args.layer.index_dim > 0 ? 2 : 1, closing, runs), dim3(kThreads), 0, stream, args);
}

void compressed_keep(const CompressedArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  launch(keep_kernel, dim3(static_cast<unsigned>(args.tokens)), dim3(kThreads), 0, stream, args);
}

void compressed_gather(const CompressedArgs& args, const CompressedGroup& group, StreamHandle stream) {
  const int rows = args.layer.attended(args.max_positions);
  FT_CHECK(group.count >= 1 && group.count <= kMaxGridY && rows <= group.gathered_rows);
  launch(gather_kernel, dim3(blocks_of(rows), static_cast<unsigned>(group.count)), dim3(kWarp, kWarps), 0, stream, args,
         group);
}

void compressed_turn_back(const CompressedArgs& args, const CompressedGroup& group, StreamHandle stream) {
  FT_CHECK(group.count >= 1 && group.count <= kMaxGridY);
  launch(turn_back_kernel, dim3(blocks_of(args.heads), static_cast<unsigned>(group.count)), dim3(kWarp, kWarps), 0,
         stream, args, group.first);
}

}  // namespace ft::cuda
