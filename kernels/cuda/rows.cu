// Row operations: kernels/ops/rows.h and the packing of kernels/ops/activations.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 256;

// A grid over `cols` elements of `tokens` rows, a thread an element.
dim3 elements_grid(int64_t cols, int64_t tokens) {
  FT_CHECK(tokens <= kMaxGridY);
  return {static_cast<unsigned>(ceil_div(cols, kThreads)), static_cast<unsigned>(tokens)};
}
__device__ __forceinline__ int64_t element() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void embed_kernel(const EmbedArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element();
  if (i >= args.width) return;
  const int64_t token = blockIdx.y;
  const bf16 value = args.table[args.ids[token] * args.width + i];
  args.out[token * args.out_stride + i] = low_bf16(value.bits);
}

__global__ void pack_kernel(const PackArgs args, int64_t words) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element();
  if (i >= words) return;
  const int64_t token = blockIdx.y;
  const float* x = args.x + token * args.x_stride;
  args.words[token * words + activation_word(2 * i)] = pack_pair(2 * i, args.cols, [&](int64_t k) { return x[k]; });
}

// A block is a row.
using Row = NormRow<kThreads, 8>;
__global__ __launch_bounds__(kThreads) void rmsnorm_pack_kernel(const RmsnormPackArgs args, int64_t words) {
  __shared__ alignas(16) float stage[Row::kStageFloats];
  __shared__ float scale;
  let_next_start();
  Row row;
  row.load_weights(args.w, static_cast<int>(args.cols));
  wait_for_previous();
  const int64_t token = blockIdx.x;
  row.pack(args.x + token * args.x_stride, static_cast<int>(args.cols), args.eps, stage, &scale,
           args.words + token * words);
}

// Rows that are too long for a block's registers, or wanted as fp32. A thread handles pairs of elements in both passes'
// last step, so y may be x.
__global__ __launch_bounds__(kThreads) void long_rmsnorm_pack_kernel(const RmsnormPackArgs args, int64_t words) {
  let_next_start();
  wait_for_previous();
  __shared__ float stage[kNormStageFloats];
  __shared__ float scale;
  const int64_t token = blockIdx.x;
  const NormPackSource source{args.x, args.x_stride, args.cols, args.w, args.eps};
  norm_scales(source, token, 1, static_cast<int>(threadIdx.x), kThreads, stage, &scale);
  const float r = scale;
  const float* x = args.x + token * args.x_stride;
  float* y = args.y == nullptr ? nullptr : args.y + token * args.y_stride;
  for (int64_t i = threadIdx.x; i < words; i += kThreads) {
    const uint32_t pair = pack_pair(2 * i, args.cols, [&](int64_t k) {
      const float value = f32::mul(f32::mul(x[k], r), args.w[k]);
      if (y != nullptr) y[k] = value;
      return value;
    });
    if (args.words != nullptr) args.words[token * words + activation_word(2 * i)] = pair;
  }
}

__global__ void silu_mul_kernel(const PairwiseArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element();
  if (i >= args.cols) return;
  const int64_t token = blockIdx.y;
  const float gate = args.a[token * args.a_stride + i];
  args.y[token * args.y_stride + i] = f32::mul(f32::silu(gate), args.b[token * args.b_stride + i]);
}

__global__ void add_kernel(const PairwiseArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element();
  if (i >= args.cols) return;
  const int64_t token = blockIdx.y;
  args.y[token * args.y_stride + i] = f32::add(args.a[token * args.a_stride + i], args.b[token * args.b_stride + i]);
}

__global__ void take_rows_kernel(const TakeRowsArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element();
  if (i >= args.cols) return;
  const int64_t row = blockIdx.y;
  args.y[row * args.y_stride + i] = args.x[args.rows[row] * args.x_stride + i];
}

__global__ void merge_kernel(const MergeArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element();
  if (i >= args.cols) return;
  const int64_t token = blockIdx.y;
  float out = 0.0f;
  for (int slot = 0; slot < args.top_k; ++slot) {
    const int64_t pair = token * args.top_k + slot;
    if (args.ids[pair] < 0) break;
    const bool from_host = args.from_host != nullptr && args.from_host[pair] != 0;
    const float value =
        from_host ? __ldcv(args.host_rows + pair * args.host_stride + i) : args.rows[pair * args.rows_stride + i];
    out = f32::fma(args.weights[pair], value, out);
  }
  args.out[token * args.out_stride + i] = out;
}

}  // namespace

void embed(const EmbedArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.width == 0) return;
  launch(embed_kernel, elements_grid(args.width, args.tokens), dim3(kThreads), 0, stream, args);
}

void pack_activations(const PackArgs& args, StreamHandle stream) {
  const int64_t words = activation_words(args.cols);
  if (args.tokens == 0 || words == 0) return;
  launch(pack_kernel, elements_grid(words, args.tokens), dim3(kThreads), 0, stream, args, words);
}

void rmsnorm_pack(const RmsnormPackArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  const auto blocks = static_cast<unsigned>(args.tokens);
  const bool aligned = (reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.w)) % 8 == 0;
  const bool fits = Row::fits(args.cols) && args.y == nullptr && args.x_stride % 2 == 0 && aligned;
  launch(fits ? rmsnorm_pack_kernel : long_rmsnorm_pack_kernel, dim3(blocks), dim3(kThreads), 0, stream, args,
         activation_words(args.cols));
}

void silu_mul(const PairwiseArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  launch(silu_mul_kernel, elements_grid(args.cols, args.tokens), dim3(kThreads), 0, stream, args);
}

void add(const PairwiseArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  launch(add_kernel, elements_grid(args.cols, args.tokens), dim3(kThreads), 0, stream, args);
}

void take_rows(const TakeRowsArgs& args, StreamHandle stream) {
  if (args.count == 0 || args.cols == 0) return;
  launch(take_rows_kernel, elements_grid(args.cols, args.count), dim3(kThreads), 0, stream, args);
}

void merge(const MergeArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  launch(merge_kernel, elements_grid(args.cols, args.tokens), dim3(kThreads), 0, stream, args);
}

}  // namespace ft::cuda
