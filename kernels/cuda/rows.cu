// Row operations: kernels/ops/rows.h and the packing of kernels/ops/activations.h.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/embed_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/merge_end.cuh"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void embed_kernel(const EmbedArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element<kThreads>();
  if (i >= args.width) return;
  const int64_t token = blockIdx.y;
  const bf16 value = args.table[args.ids[token] * args.width + i];
  write_embedded(args, token, i, value);
}

__global__ void pack_kernel(const PackArgs args, int64_t words) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element<kThreads>();
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

// A thread has a pair of elements, so y may be gate or up; `pairs`: with those of the packed row's padding.
__global__ void glu_kernel(const GluArgs args, int64_t pairs) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element<kThreads>();
  if (i >= pairs) return;
  const int64_t token = blockIdx.y;
  const float *gate = args.gate + token * args.gate_stride, *up = args.up + token * args.up_stride;
  float* y = args.y == nullptr ? nullptr : args.y + token * args.y_stride;
  const uint32_t pair = pack_pair(2 * i, args.cols, [&](int64_t k) {
    const float value = f32::glu(args.glu, gate[k], up[k]);
    if (y != nullptr) y[k] = value;
    return value;
  });
  if (args.words != nullptr) args.words[token * activation_words(args.cols) + activation_word(2 * i)] = pair;
}

// A block is a row. Of a row that fits the stage the weights and the sums so far are loaded beside it, not behind its
// norm: 6.8 us for 2816 columns one after the other [measured, H200].
__global__ __launch_bounds__(kThreads) void add_kernel(const AddArgs args) {
  __shared__ float stage[kNormStageFloats];
  __shared__ float scale_of_row;
  constexpr int kHeld = kNormStageFloats / kThreads;
  let_next_start();
  const int64_t token = blockIdx.x;
  const bool norms = args.norm_w != nullptr, fits = args.cols <= norm_piece(1);
  const auto thread = static_cast<int>(threadIdx.x), cols = static_cast<int>(args.cols);
  const float* x = args.x + token * args.x_stride;
  float* to = args.to + token * args.to_stride;
  const float last = args.scale == nullptr ? 1.0f : *args.scale;
  const auto put = [&](int64_t i, float before, float value) {
    const float sum = f32::add(before, value);
    to[i] = args.scale == nullptr ? sum : f32::mul(sum, last);
  };
  if (!norms || !fits) {
    wait_for_previous();
    const NormPackSource source{args.x, args.x_stride, args.cols, args.norm_w, args.norm_eps};
    if (norms) norm_scales(source, token, 1, thread, kThreads, stage, &scale_of_row);
    for (int64_t i = thread; i < args.cols; i += kThreads) {
      put(i, to[i], norms ? f32::mul(f32::mul(x[i], scale_of_row), args.norm_w[i]) : x[i]);
    }
    return;
  }
  float w[kHeld], before[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) w[j] = thread + j * kThreads < cols ? args.norm_w[thread + j * kThreads] : 0.0f;
  wait_for_previous();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) before[j] = thread + j * kThreads < cols ? to[thread + j * kThreads] : 0.0f;
  norm_scales({args.x, args.x_stride, args.cols, args.norm_w, args.norm_eps}, token, 1, thread, kThreads, stage,
              &scale_of_row);
  const float r = scale_of_row;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = thread + j * kThreads;
    if (i < cols) put(i, before[j], f32::mul(f32::mul(stage[i], r), w[j]));
  }
}

__global__ void softcap_kernel(const SoftcapArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element<kThreads>();
  if (i >= args.count) return;
  const float x = args.x[i], e = f32::exp(f32::mul(-2.0f, fabsf(f32::div(x, args.cap))));
  const float size = f32::div(f32::sub(1.0f, e), f32::add(1.0f, e));
  args.x[i] = f32::mul(args.cap, copysignf(size, x));
}

__global__ void take_rows_kernel(const TakeRowsArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element<kThreads>();
  if (i >= args.cols) return;
  const int64_t row = blockIdx.y;
  args.y[row * args.y_stride + i] = args.x[args.rows[row] * args.x_stride + i];
}

__global__ void merge_kernel(const MergeArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t i = element<kThreads>();
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
  out = merge_shared(args.shared, token, i, out);
  float* to = args.out + token * args.out_stride + i;
  *to = args.add ? f32::add(*to, out) : out;
}

}  // namespace

void embed(const EmbedArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.width == 0) return;
  launch(embed_kernel, elements_grid<kThreads>(args.width, args.tokens), dim3(kThreads), 0, stream, args);
}

void pack_activations(const PackArgs& args, StreamHandle stream) {
  const int64_t words = activation_words(args.cols);
  if (args.tokens == 0 || words == 0) return;
  launch(pack_kernel, elements_grid<kThreads>(words, args.tokens), dim3(kThreads), 0, stream, args, words);
}

void rmsnorm_pack(const RmsnormPackArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  const auto blocks = static_cast<unsigned>(args.tokens);
  const bool aligned = (reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.w)) % 8 == 0;
  const bool fits = Row::fits(args.cols) && args.y == nullptr && args.x_stride % 2 == 0 && aligned;
  launch(fits ? rmsnorm_pack_kernel : long_rmsnorm_pack_kernel, dim3(blocks), dim3(kThreads), 0, stream, args,
         activation_words(args.cols));
}

void glu(const GluArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  const int64_t pairs = args.words != nullptr ? activation_words(args.cols) : ceil_div(args.cols, 2);
  launch(glu_kernel, elements_grid<kThreads>(pairs, args.tokens), dim3(kThreads), 0, stream, args, pairs);
}

void add(const AddArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  launch(add_kernel, static_cast<unsigned>(args.tokens), kThreads, 0, stream, args);
}

void softcap(const SoftcapArgs& args, StreamHandle stream) {
  if (args.count == 0) return;
  launch(softcap_kernel, static_cast<unsigned>(ceil_div(args.count, kThreads)), kThreads, 0, stream, args);
}

void take_rows(const TakeRowsArgs& args, StreamHandle stream) {
  if (args.count == 0 || args.cols == 0) return;
  launch(take_rows_kernel, elements_grid<kThreads>(args.cols, args.count), dim3(kThreads), 0, stream, args);
}

void merge(const MergeArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  launch_with(!args.after_join, merge_kernel, elements_grid<kThreads>(args.cols, args.tokens), dim3(kThreads), 0,
              stream, args);
}

}  // namespace ft::cuda
