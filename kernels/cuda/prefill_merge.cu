// The merge of a chunk's experts: 40 bytes of rows read for each of its numbers at top-8, so
// four neighbouring numbers a thread and all rows of a token in flight.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/merge_end.cuh"
#include "kernels/cuda/prefill.h"

namespace ft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsAtOnce = 8;

template <int kWidth>
struct Numbers {
  float at[kWidth];
};
template <int kWidth>
__device__ __forceinline__ Numbers<kWidth> load(const float* from) {
  Numbers<kWidth> numbers;
  if constexpr (kWidth == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    numbers.at[0] = four.x, numbers.at[1] = four.y, numbers.at[2] = four.z, numbers.at[3] = four.w;
  } else {
    numbers.at[0] = *from;
  }
  return numbers;
}

// kWidth: 4 where every row is on 16 bytes, else 1.
template <int kWidth>
__global__ __launch_bounds__(kThreads) void merge_kernel(const PrefillMergeArgs args) {
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (col >= args.cols) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * args.top_k;
  float sum[kWidth] = {};
  for (int begin = 0; begin < args.top_k; begin += kRowsAtOnce) {
    Numbers<kWidth> rows[kRowsAtOnce];
    float weights[kRowsAtOnce];
    bool there[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      there[i] = begin + i < args.top_k && args.ids[first + begin + i] >= 0;
      if (!there[i]) continue;
      weights[i] = args.weights[first + begin + i];
      rows[i] = load<kWidth>(args.rows + (first + begin + i) * args.rows_stride + col);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (!there[i]) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] = f32::fma(weights[i], rows[i].at[j], sum[j]);
    }
  }
  if (args.shared.rows != nullptr) {
    const float weight = shared_weight(args.shared, blockIdx.y);
    const Numbers<kWidth> row = load<kWidth>(args.shared.rows + blockIdx.y * args.shared.stride + col);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] = f32::fma(weight, row.at[j], sum[j]);
  }
  float* to = args.to + blockIdx.y * args.to_stride + col;
  if (args.add) {
    const Numbers<kWidth> before = load<kWidth>(to);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] = f32::add(before.at[j], sum[j]);
  }
  if constexpr (kWidth == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  } else {
    *to = sum[0];
  }
}

bool on_16_bytes(const float* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
}

}  // namespace

void prefill_merge(const PrefillMergeArgs& args, StreamHandle stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  FT_CHECK(args.tokens <= kMaxGridY);
  const bool fours = args.cols % 4 == 0 && on_16_bytes(args.rows, args.rows_stride) &&
                     on_16_bytes(args.to, args.to_stride) && on_16_bytes(args.shared.rows, args.shared.stride);
  const int64_t width = fours ? 4 : 1;
  const dim3 grid(static_cast<unsigned>(ceil_div(args.cols, kThreads * width)), static_cast<unsigned>(args.tokens));
  if (fours) {
    merge_kernel<4><<<grid, kThreads, 0, stream>>>(args);
  } else {
    merge_kernel<1><<<grid, kThreads, 0, stream>>>(args);
  }
  require_launched("prefill_merge");
}

}  // namespace ft::cuda
