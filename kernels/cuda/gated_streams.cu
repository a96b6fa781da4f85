// Gated residual streams, but for a site's products: norms, the squashing of what products give, the gated mean, and
// what is written back.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/head_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/cuda/streams.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 256;

// A block is a stream of a token. Of one that fits the stage the weights are there before it is normed.
__global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ NormStreamsArgs args) {
  __shared__ float stage[kNormStageFloats];
  __shared__ float scale;
  constexpr int kHeld = kNormStageFloats / kThreads;
  let_next_start();
  const int64_t token = blockIdx.y, begin = blockIdx.x * args.width;
  const float* x = args.x + token * args.x_stride + begin;
  const auto thread = static_cast<int>(threadIdx.x), width = static_cast<int>(args.width);
  float* y = args.y + token * args.y_stride + begin;
  const float* w = args.w + begin;
  const bool fits = width <= norm_piece(1);
  float held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = thread + j * kThreads;
    held[j] = fits && i < width ? w[i] : 0.0f;
  }
  wait_for_previous();
  norm_scales({x, args.x_stride, args.width, nullptr, args.eps}, 0, 1, thread, kThreads, stage, &scale);
  const float r = scale;
  if (!fits) {
    for (int i = thread; i < width; i += kThreads) y[i] = f32::mul(f32::mul(x[i], r), w[i]);
    return;
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = thread + j * kThreads;
    if (i < width) y[i] = f32::mul(f32::mul(stage[i], r), held[j]);
  }
}

// squash of kernels/ops/streams.h.
__device__ __forceinline__ void squash(const SquashRows& rows, int64_t token, int64_t i) {
  float& x = rows.x[token * rows.stride + i];
  const float g = f32::mul(x, rows.scale);
  const float one = rows.kind == GateKind::kSilu ? g : 1.0f;
  x = f32::mul(f32::div(one, f32::add(1.0f, f32::exp(-g))), rows.factor);
}

__global__ void __launch_bounds__(kThreads) squash_kernel(const __grid_constant__ SquashStreamsArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.y, i = element<kThreads>();
  if (i < args.low.cols) {
    squash(args.low, token, i);
  } else if (i < args.low.cols + args.write.cols) {
    squash(args.write, token, i - args.low.cols);
  }
}

__global__ void __launch_bounds__(kThreads) read_kernel(const __grid_constant__ GatedReadArgs args, float share) {
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.y, column = element<kThreads>();
  if (column >= args.width) return;
  const float* x = args.normed + token * args.normed_stride + column;
  const float* gate = args.gate + token * args.gate_stride + column;
  float sum = 0.0f;
  for (int p = 0; p < args.streams; ++p) {
    sum = f32::fma(share, gated_by(x[p * args.width], gate[p * args.width]), sum);
  }
  args.to[token * args.to_stride + column] = sum;
}

__global__ void __launch_bounds__(kThreads) write_kernel(const __grid_constant__ StreamsWriteArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.y, column = element<kThreads>();
  if (column >= args.width) return;
  const float* factors = args.factors + token * args.factors_stride;
  const float from = args.from[token * args.from_stride + column];
  float* x = args.x + token * args.x_stride + column;
  for (int q = 0; q < args.streams; ++q) {
    const float old = f32::fma(1.0f, x[q * args.width], 0.0f);  // merge of the old stream and `from`
    x[q * args.width] = f32::fma(factors[q], from, old);
  }
}

void check_streams(int streams, int64_t tokens) {
  FT_CHECK(streams >= 1 && streams <= kMaxStreams && tokens <= kMaxGridY);
}

}  // namespace

void norm_streams(const NormStreamsArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  check_streams(args.streams, args.tokens);
  launch(norm_kernel, dim3(static_cast<unsigned>(args.streams), static_cast<unsigned>(args.tokens)), dim3(kThreads), 0,
         stream, args);
}

void squash_streams(const SquashStreamsArgs& args, StreamHandle stream) {
  const int64_t cols = args.low.cols + args.write.cols;
  if (args.tokens == 0 || cols == 0) return;
  FT_CHECK(args.tokens <= kMaxGridY);
  launch(squash_kernel, elements_grid<kThreads>(cols, args.tokens), dim3(kThreads), 0, stream, args);
}

void gated_streams_read(const GatedReadArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  check_streams(args.streams, args.tokens);
  launch(read_kernel, elements_grid<kThreads>(args.width, args.tokens), dim3(kThreads), 0, stream, args,
         1.0f / static_cast<float>(args.streams));
}

void gated_streams_write(const StreamsWriteArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  check_streams(args.streams, args.tokens);
  launch(write_kernel, elements_grid<kThreads>(args.width, args.tokens), dim3(kThreads), 0, stream, args);
}

}  // namespace ft::cuda
