// N-gram embeddings: ngrams.h. A block of the first kernel is one stream of a token, all of whose sums are its own; the
// convolution is a thread per value.
#include <cmath>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ngrams.h"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/ops/streams.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanesOfRow = 16;

__global__ void __launch_bounds__(kThreads) pinned_rows_kernel(const __grid_constant__ PinnedRowsArgs args) {
  let_next_start();
  const int64_t token = blockIdx.y, i = element<kThreads>();
  const float value = i < args.cols ? __ldcv(args.pinned + token * args.cols + i) : 0.0f;
  wait_for_previous();
  if (i < args.cols) args.to[token * args.to_stride + i] = value;
}

// ---- gates

struct GateShared {
  static constexpr int kPiece = 2048;  // a multiple of the lanes
  float a[kPiece], b[kPiece];
  float sum;
};

// The canonical sum of a * b over pair(i) = {a, b}, in all threads of the block.
template <class Pair>
__device__ __forceinline__ float sum_of_products(int count, int thread, GateShared& shared, Pair&& pair) {
  float sum = 0.0f;
  for (int begin = 0; begin < count; begin += GateShared::kPiece) {
    const int piece = min(count - begin, GateShared::kPiece);
    __syncthreads();
    for (int i = thread; i < piece; i += kThreads) {
      const float2 value = pair(begin + i);
      shared.a[i] = value.x, shared.b[i] = value.y;
    }
    __syncthreads();
    if (thread < kLanesOfRow) {
#pragma unroll 8
      for (int i = thread; i < piece; i += kLanesOfRow) sum = f32::fma(shared.a[i], shared.b[i], sum);
    }
  }
  if (thread < kWarp) {
    sum = f32::tree_sum(sum);
    if (thread == 0) shared.sum = sum;
  }
  __syncthreads();
  return shared.sum;
}

// stream_gates of kernels/ops/streams.h.
__device__ __forceinline__ float stream_gate(float product, float root) {
  const float s = f32::div(product, root);
  const float size = f32::sqrt(f32::max(kStreamGateFloor, fabsf(s)));
  return f32::sigmoid(s == 0.0f ? 0.0f : s < 0.0f ? -size : size);
}

// A block is a stream of a token: u to `key`, its norm to `normed`.
__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ NgramAddArgs args, float root) {
  __shared__ GateShared shared;
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.y, begin = blockIdx.x * args.width;
  const auto thread = static_cast<int>(threadIdx.x), width = static_cast<int>(args.width);
  float* key = args.key + token * args.key_stride + begin;
  const float* x = args.x + token * args.x_stride + begin;
  const float* value = args.value + token * args.value_stride;
  const float *key_norm = args.key_norm + begin, *query_norm = args.query_norm + begin;
  const auto scale_of = [&](auto&& at) {
    const float sum = sum_of_products(width, thread, shared, [&](int i) {
      const float v = at(i);
      return float2{v, v};
    });
    return rms_scale(sum, width, args.norm_eps);
  };
  const float key_scale = scale_of([&](int i) { return key[i]; });
  const float x_scale = scale_of([&](int i) { return x[i]; });
  const float product = sum_of_products(width, thread, shared, [&](int i) {
    return float2{f32::mul(f32::mul(x[i], x_scale), query_norm[i]), f32::mul(f32::mul(key[i], key_scale), key_norm[i])};
  });
  const float gate = stream_gate(product, root);
  const auto u = [&](int i) { return f32::fma(gate, value[i], 0.0f); };
  const float u_scale = scale_of(u);
  const float* conv_norm = args.conv_norm + begin;
  float* normed = args.normed + token * args.normed_stride + begin;
  for (int i = thread; i < width; i += kThreads) {  // a barrier after the last read of key
    const float own = u(i);
    key[i] = own;
    normed[i] = f32::mul(f32::mul(own, u_scale), conv_norm[i]);
  }
}

// ---- convolution

__device__ __forceinline__ SequenceRun run_of(const NgramAddArgs& args, int token) {
  if (args.runs == nullptr) return {args.position[token], token, 1, args.sequence[token], 0};
  int run = 0;
  while (run + 1 < args.run_count && args.runs[run + 1].token <= token) ++run;
  return args.runs[run];
}

struct NgramRing {
  float* rows;
  int count, channels;
  __device__ __forceinline__ NgramRing(const NgramAddArgs& args, int sequence)
      : rows(args.history + sequence * args.sequence_floats),
        count((args.taps - 1) * args.dilation),
        channels(args.streams * static_cast<int>(args.width)) {}
  __device__ __forceinline__ float& at(int position, int channel) const {
    return rows[static_cast<int64_t>(position % count) * channels + channel];
  }
};

// A thread is a value. Of runs of one token it is the only one that reads its channel's history, and keeps its input.
__global__ void __launch_bounds__(kThreads) convolve_kernel(const __grid_constant__ NgramAddArgs args) {
  let_next_start();
  wait_for_previous();
  const auto token = static_cast<int>(blockIdx.y), channel = static_cast<int>(element<kThreads>());
  const SequenceRun run = run_of(args, token);
  const NgramRing ring(args, run.sequence);
  if (channel >= ring.channels) return;
  const int in_run = token - run.token, position = static_cast<int>(run.position) + in_run;
  const float* normed = args.normed + token * args.normed_stride + channel;
  float y = 0.0f;
  for (int j = 0; j < args.taps; ++j) {
    const int back = (args.taps - 1 - j) * args.dilation;
    float input = 0.0f;
    if (back <= in_run) {
      input = normed[-back * args.normed_stride];
    } else if (position >= back) {
      input = ring.at(position - back, channel);
    }
    y = f32::fma(args.conv[static_cast<int64_t>(j) * ring.channels + channel], input, y);
  }
  const float update = f32::add(args.key[token * args.key_stride + channel], f32::silu(y));
  float& x = args.x[token * args.x_stride + channel];
  x = f32::add(x, update);
  if (args.runs == nullptr && ring.count > 0) ring.at(position, channel) = normed[0];
}

// The last inputs of a run go where the next step finds them.
__global__ void __launch_bounds__(kThreads) keep_kernel(const __grid_constant__ NgramAddArgs args) {
  let_next_start();
  wait_for_previous();
  const auto token = static_cast<int>(blockIdx.y), channel = static_cast<int>(element<kThreads>());
  const SequenceRun run = run_of(args, token);
  const NgramRing ring(args, run.sequence);
  if (channel >= ring.channels || run.token + run.count - token > ring.count) return;
  const int position = static_cast<int>(run.position) + token - run.token;
  ring.at(position, channel) = args.normed[token * args.normed_stride + channel];
}

}  // namespace

void read_pinned_rows(const PinnedRowsArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  launch(pinned_rows_kernel, elements_grid<kThreads>(args.cols, args.tokens), dim3(kThreads), 0, stream, args);
}

void add_ngrams(const NgramAddArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.streams >= 1 && args.streams <= kMaxStreams && args.taps >= 1 && args.taps <= kMaxConvTaps &&
           args.dilation >= 1 && args.dilation <= kMaxConvDilation);
  const dim3 grid = elements_grid<kThreads>(args.streams * args.width, args.tokens);
  launch(gate_kernel, dim3(static_cast<unsigned>(args.streams), static_cast<unsigned>(args.tokens)), dim3(kThreads), 0,
         stream, args, static_cast<float>(std::sqrt(static_cast<double>(args.width))));
  launch(convolve_kernel, grid, dim3(kThreads), 0, stream, args);
  if (args.runs == nullptr || args.taps == 1) return;
  launch(keep_kernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace ft::cuda
