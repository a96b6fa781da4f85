// Attention to chosen blocks of tokens, but for scores, choice and attention: blocks.h.
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/compressed.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxDim = 512;

__device__ __forceinline__ HeadRotation head_rotation(const CompressedArgs& step, int position) {
  const int64_t at = static_cast<int64_t>(position) * step.half;
  return {step.layer.index_dim, step.half, step.norm_eps, step.cos + at, step.sin + at};
}

__device__ __forceinline__ const float* index_row(const CompressedArgs& step, int token) {
  return step.index_q.data + token * step.index_q.stride + step.layer.index_heads * step.layer.index_dim;
}

__device__ __forceinline__ void keep_row(const CompressedArgs& step, const SequenceRun& run, int token, int position,
                                         int thread) {
  float* to = open_row(step.layer, run.sequence, position);
  const float* from = index_row(step, token);
  for (int i = thread; i < step.layer.index_dim; i += kThreads) to[i] = from[i];
}

// The entry of the block that ends with this token: the mean of its index rows, normed and rotated at the first one's
// position. x: kMaxDim of shared memory.
__device__ __forceinline__ void close_block(const BlocksArgs& args, const SequenceRun& run, int position, float share,
                                            int thread, float* x) {
  const CompressedArgs& step = args.step;
  const CompressedLayerView& layer = step.layer;
  const int entry = position / layer.ratio, begin = entry * layer.ratio;
  const auto run_begin = static_cast<int>(run.position);
  for (int i = thread; i < layer.index_dim; i += kThreads) {
    float sum = 0.0f;
    for (int t = begin; t <= position; ++t) {
      const float* row = t >= run_begin ? index_row(step, run.token + t - run_begin) : open_row(layer, run.sequence, t);
      sum = f32::fma(share, row[i], sum);
    }
    x[i] = sum;
  }
  __syncthreads();
  if (thread < kWarp) norm_and_rotate(x, head_rotation(step, begin), true, step.index_norm, thread);
  __syncthreads();
  bf16* to = index_entry(layer, run.sequence, entry);
  for (int i = thread; i < layer.index_dim; i += kThreads) to[i].bits = static_cast<uint16_t>(bf16_bits(x[i]));
}

// The last block of a token closes and keeps, the others have a warp for each index head.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ BlocksArgs args, float share) {
  __shared__ float rows[kWarps][kMaxDim];
  let_next_start();
  wait_for_previous();
  const CompressedArgs& step = args.step;
  const CompressedLayerView& layer = step.layer;
  const auto token = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x);
  const auto position = static_cast<int>(step.position[token]);
  if (blockIdx.x + 1 == gridDim.x) {
    const int thread = static_cast<int>(threadIdx.y) * kWarp + lane;
    const SequenceRun run = run_of_token(step, token);
    if ((position + 1) % layer.ratio == 0) close_block(args, run, position, share, thread, rows[0]);
    // The ring is longer than a block: its place is none that this step reads.
    if (step.runs == nullptr) keep_row(step, run, token, position, thread);
    return;
  }
  const int head = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.y);
  if (head >= layer.index_heads) return;
  float* q = step.index_q.data + token * step.index_q.stride + head * layer.index_dim;
  float* x = rows[threadIdx.y];
  for (int i = lane; i < layer.index_dim; i += kWarp) x[i] = q[i];
  __syncwarp();
  norm_and_rotate(x, head_rotation(step, position), true, args.query_norm, lane);
  for (int i = lane; i < layer.index_dim; i += kWarp) q[i] = low_bf16(bf16_bits(x[i]));
}

__global__ void __launch_bounds__(kThreads) keep_kernel(const __grid_constant__ BlocksArgs args) {
  let_next_start();
  wait_for_previous();
  const auto token = static_cast<int>(blockIdx.x);
  const SequenceRun run = run_of_token(args.step, token);
  if (run.token + run.count - token > args.step.layer.open_ring) return;
  keep_row(args.step, run, token, static_cast<int>(args.step.position[token]), static_cast<int>(threadIdx.x));
}

// A warp is a row. Vector: what is copied at a time.
template <class Vector>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ BlocksArgs args, const __grid_constant__ CompressedGroup group) {
  let_next_start();
  wait_for_previous();
  const CompressedArgs& step = args.step;
  const CompressedLayerView& layer = step.layer;
  const auto place = static_cast<int>(blockIdx.y);
  const int64_t token = group.first + place;
  const auto position = static_cast<int>(step.position[token]);
  const bool choosing = chooses(layer, position);
  const int in_blocks = choosing ? layer.index_top_k * layer.ratio : 0;
  const int after = choosing ? (position + 1) / layer.ratio * layer.ratio : 0;  // where the tokens at the end begin
  const int rows = in_blocks + position + 1 - after;
  if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0) {
    group.sequence[place] = place;
    group.position[place] = rows - 1;
  }
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.y);
  if (row >= rows) return;
  int t = after + row - in_blocks;
  if (row < in_blocks) {
    t = group.chosen[place * static_cast<int64_t>(layer.index_top_k) + row / layer.ratio] * layer.ratio +
        row % layer.ratio;
  }
  const auto count =
      static_cast<int>(args.row_elements * static_cast<int64_t>(sizeof(bf16)) / static_cast<int64_t>(sizeof(Vector)));
  const auto* from = reinterpret_cast<const Vector*>(args.kv.data + (step.sequence[token] * args.kv.positions + t) *
                                                                        args.row_elements);
  auto* to = reinterpret_cast<Vector*>(group.gathered + (place * group.gathered_rows + row) * args.row_elements);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) to[i] = from[i];
}

unsigned blocks_of(int64_t units) { return static_cast<unsigned>(ceil_div(units, kWarps)); }

void check_layer(const BlocksArgs& args) {
  const CompressedLayerView& layer = args.step.layer;
  FT_CHECK(layer.blocks && layer.ratio >= 1 && layer.index_dim <= kMaxDim && args.step.tokens <= kMaxGridY);
  FT_CHECK(2 * args.step.half <= layer.index_dim && args.kv.ring == 0 && layer.open_ring > layer.ratio);
}

}  // namespace

void blocks_prepare(const BlocksArgs& args, StreamHandle stream) {
  if (args.step.tokens == 0) return;
  check_layer(args);
  const dim3 grid(blocks_of(args.step.layer.index_heads) + 1, static_cast<unsigned>(args.step.tokens));
  launch(prepare_kernel, grid, dim3(kWarp, kWarps), 0, stream, args, 1.0f / static_cast<float>(args.step.layer.ratio));
}

void blocks_keep(const BlocksArgs& args, StreamHandle stream) {
  if (args.step.tokens == 0 || args.step.runs == nullptr) return;
  check_layer(args);
  launch(keep_kernel, dim3(static_cast<unsigned>(args.step.tokens)), dim3(kThreads), 0, stream, args);
}

void blocks_gather(const BlocksArgs& args, const CompressedGroup& group, StreamHandle stream) {
  check_layer(args);
  const int rows = args.step.layer.attended(args.step.max_positions);
  FT_CHECK(group.count >= 1 && group.count <= kMaxGridY && rows <= group.gathered_rows);
  const dim3 grid(blocks_of(rows), static_cast<unsigned>(group.count));
  const auto address = reinterpret_cast<uintptr_t>(args.kv.data) | reinterpret_cast<uintptr_t>(group.gathered);
  const bool wide = args.row_elements * static_cast<int64_t>(sizeof(bf16)) % 16 == 0 && address % 16 == 0;
  if (wide) {
    launch(gather_kernel<uint4>, grid, dim3(kWarp, kWarps), 0, stream, args, group);
  } else {
    launch(gather_kernel<uint16_t>, grid, dim3(kWarp, kWarps), 0, stream, args, group);
  }
}

}  // namespace ft::cuda
