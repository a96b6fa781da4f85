// Parts of delta_net.cu: where a head's rows are in shared memory, and the arithmetic of a token before and after the
// delta rule.
#pragma once

#include "kernels/cuda/delta_net.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/norm_pack.cuh"

namespace ft::cuda {

inline constexpr int kDeltaParts = 4;     // of a canonical sum over a state's rows
inline constexpr int kDeltaColumns = 32;  // of a state, in a block
static_assert(kDeltaColumns % 16 == 0);

// What multiplies a row of kernels/ops/rows.h gate.
__device__ __forceinline__ float gate_factor(GateKind kind, float g) {
  return f32::div(kind == GateKind::kSilu ? g : 1.0f, f32::add(1.0f, f32::exp(-g)));
}

// Query, key and value columns of a token in shared memory. Rows of a part of the sum stand together, four floats more
// than a multiple of four apart, so that the parts of a warp read different banks, 16 bytes a thread.
struct DeltaRowShape {
  int part;  // floats of a part
  __host__ __device__ explicit DeltaRowShape(int64_t key_dim) : part((static_cast<int>(key_dim) + 15) / 16 * 4 + 4) {}
  __host__ __device__ int key() const { return kDeltaParts * part; }  // after the query
  __host__ __device__ int value() const { return 2 * key(); }
  __host__ __device__ int floats() const { return value() + kDeltaColumns; }
  __device__ int place(int i) const { return i % kDeltaParts * part + i / kDeltaParts; }
};

__device__ __forceinline__ SequenceRun delta_run_of(const DeltaNetArgs& args, int index) {
  if (args.runs != nullptr) return args.runs[index];
  return {args.position[index], index, 1, args.sequence[index], 0};
}

// x / (1 + exp(-x)) of the convolution of one channel over the tokens [first, first + count) of a run, count <= kTile,
// by put(t, value). Keeps the inputs in the ring with kKeep, which a run of one token may.
template <int kTile, bool kKeep, class Put>
__device__ __forceinline__ void convolve_channel(const DeltaNetArgs& args, const SequenceRun& run, float* ring,
                                                 int channel, int first, int count, bool keeps, Put&& put) {
  const auto channels = static_cast<int>(args.shape.channels());
  const auto taps = static_cast<int>(args.shape.taps);
  const float* x = args.x + (run.token + first) * args.x_stride + channel;
  const auto position = static_cast<int>(run.position);
  // Tap j and its input stand at kMaxConvTaps - taps + j, the token itself last.
  constexpr int kLast = static_cast<int>(kMaxConvTaps) - 1;
  float w[kMaxConvTaps], inputs[kMaxConvTaps];
#pragma unroll
  for (int i = 0; i <= kLast; ++i) {
    w[i] = inputs[i] = 0.0f;
    const int back = kLast - i, t = first - back;
    if (back >= taps) continue;
    w[i] = args.conv[(taps - 1 - back) * channels + channel];
    if (back > 0 && t < 0 && position + t >= 0) inputs[i] = ring[(position + t) % taps * channels + channel];
  }
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kLast; ++i) {
    const int back = kLast - i;
    if (back < taps && first - back >= 0) inputs[i] = x[-back * args.x_stride];
  }
  float given[kTile];
#pragma unroll
  for (int t = 0; t < kTile; ++t) given[t] = t < count ? x[t * args.x_stride] : 0.0f;
  if (kKeep && keeps) ring[position % taps * channels + channel] = given[0];
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    if (t >= count) break;
    inputs[kLast] = given[t];
    float y = 0.0f;
#pragma unroll
    for (int i = 0; i <= kLast; ++i) {
      if (kLast - i < taps) y = f32::fma(w[i], inputs[i], y);
    }
    put(t, f32::silu(y));
#pragma unroll
    for (int i = 0; i < kLast; ++i) inputs[i] = inputs[i + 1];
  }
}

// l2_norm of one row in shared memory by half a warp; all of the warp come along.
__device__ __forceinline__ void norm_delta_row(float* row, const DeltaRowShape& shape, int key_dim, float scale,
                                               bool present, int lane_in_warp) {
  const int lane = lane_in_warp % 16;
  float sum = 0.0f;
  for (int i = lane; i < key_dim; i += 16) {
    const float x = present ? row[shape.place(i)] : 0.0f;
    sum = f32::fma(x, x, sum);
  }
  sum = __shfl_sync(kFullWarp, f32::tree_sum(sum), 0, 16);
  const float r = f32::div(1.0f, f32::sqrt(f32::add(sum, kDeltaNormEps)));
  for (int i = lane; present && i < key_dim; i += 16) {
    float& x = row[shape.place(i)];
    x = f32::mul(f32::mul(x, r), scale);
  }
}

struct DeltaGates {
  float write, decay;
};
__device__ __forceinline__ DeltaGates delta_gates(const DeltaNetArgs& args, int64_t token, int head) {
  const int64_t at = token * args.write_stride + head;
  const float a = f32::add(args.decay[at], args.decay_bias[head]);
  const float softplus = f32::add(f32::max(0.0f, a), f32::log1p(f32::exp(-fabsf(a))));
  return {f32::sigmoid(args.write[at]), f32::exp(-f32::mul(f32::exp(args.decay_log[head]), softplus))};
}

// rmsnorm and gate of a value head by one warp: put(i, value). factor(i) is the gate's.
template <class Factor, class Put>
__device__ __forceinline__ void finish_delta_row(const float* row, int value_dim, const float* norm, float eps,
                                                 int lane, Factor&& factor, Put&& put) {
  float sum = 0.0f;
  for (int i = lane; lane < 16 && i < value_dim; i += 16) sum = f32::fma(row[i], row[i], sum);
  sum = __shfl_sync(kFullWarp, f32::tree_sum(sum), 0);
  const float r = rms_scale(sum, value_dim, eps);
  for (int i = lane; i < value_dim; i += kWarp) {
    put(i, f32::mul(f32::mul(f32::mul(row[i], r), norm[i]), factor(i)));
  }
}

}  // namespace ft::cuda
