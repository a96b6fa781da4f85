// Mixed residual streams. The products of a site are chains of cols / 16 fma (16,384 columns: 1024 of them, 2.3 us),
// half a warp a row, from shared memory, which a block fills for one row: half a warp that loads for itself waits for
// memory 64 times, 404 us [measured, H200]. More than kMaxDecodeTokens tokens have a kernel of their own for the same
// chains. What follows is one launch: blocks for the columns make the few read factors for themselves, and one more
// block a token makes the mix, whose rounds are chains of divisions.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/streams.h"
#include "kernels/ops/rows.h"

namespace ft::cuda {
namespace {

constexpr int kLanesOfRow = 16;
constexpr int kColumnThreads = 256;
constexpr int kPiecePerThread = 16;
constexpr int kPiece = kPiecePerThread * kColumnThreads;  // columns in shared memory at once
constexpr int kMost = static_cast<int>(kMaxStreams);

// A thread's share of a piece of a row, on its way from memory.
struct PieceOfRow {
  float value[kPiecePerThread];

  __device__ __forceinline__ void load(const float* row, int64_t begin, int64_t cols) {
#pragma unroll
    for (int j = 0; j < kPiecePerThread; ++j) {
      const int64_t i = begin + j * kColumnThreads + threadIdx.x;
      value[j] = i < cols ? row[i] : 0.0f;
    }
  }
  __device__ __forceinline__ void store(float* piece) const {
#pragma unroll
    for (int j = 0; j < kPiecePerThread; ++j) piece[j * kColumnThreads + threadIdx.x] = value[j];
  }
};

// A block is a row of a token; row `logits` is the sum of squares.
__global__ void __launch_bounds__(kColumnThreads)
    products_kernel(const __grid_constant__ StreamsReadArgs args, int logits) {
  __shared__ float w_piece[kPiece], x_piece[kPiece];
  let_next_start();
  const auto thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x);
  const int64_t cols = args.streams * args.width, token = blockIdx.y;
  const float* x = args.x + token * args.x_stride;
  const bool squares = row == logits;
  const float* w = args.fn + row * cols;
  PieceOfRow own_w, own_x;
  if (!squares) own_w.load(w, 0, cols);
  wait_for_previous();
  own_x.load(x, 0, cols);
  float sum = 0.0f;
  for (int64_t begin = 0; begin < cols; begin += kPiece) {
    if (begin > 0) __syncthreads();
    own_x.store(x_piece);
    if (!squares) own_w.store(w_piece);
    __syncthreads();
    if (begin + kPiece < cols) {
      own_x.load(x, begin + kPiece, cols);
      if (!squares) own_w.load(w, begin + kPiece, cols);
    }
    if (thread >= kWarp) continue;
    const float* factor = squares ? x_piece : w_piece;
    const auto count = static_cast<int>(cols - begin < kPiece ? cols - begin : kPiece);
#pragma unroll 16
    for (int i = thread % kLanesOfRow; i < count; i += kLanesOfRow) sum = f32::fma(factor[i], x_piece[i], sum);
  }
  if (thread >= kWarp) return;
  sum = f32::tree_sum(sum);
  if (thread == 0) args.logits[token * args.logits_stride + row] = sum;
}

// ---- products of prompts

// A block is kBlockTokens tokens and 32 rows, or 28 and the squares, so that the weights, which all tokens share, come
// to an SM once for 8 tokens. A warp is 4 rows, each half of it 4 of the tokens: 16 chains a thread, of which a step is
// 8 loads from shared memory. The chains are those above, so are their bits. Pieces of 256 columns come through two
// buffers of 40 KiB: two blocks an SM.
struct PromptProducts {
  static constexpr int kRows = 4, kTokens = 4;  // of a thread
  static constexpr int kBlockTokens = kTokens * kWarp / kLanesOfRow;
  static constexpr int kUnits = kColumnThreads / kWarp;
  static constexpr int kCols = 256;
  static constexpr int kTokenStride = kCols + 4;  // the two halves of a warp read from different banks
  static constexpr int kWeights = kUnits * kRows * kCols, kBuffer = kWeights + kBlockTokens * kTokenStride;
  static constexpr int kSharedBytes = 2 * kBuffer * static_cast<int>(sizeof(float));
  using Sums = float[kRows][kTokens];

  // Columns [begin, begin + kCols) of the rows from first_row on and of the block's tokens; zeros where there are none.
  static __device__ __forceinline__ void copy(const StreamsReadArgs& args, int logits, int first_row,
                                              int64_t first_token, int64_t begin, float* buffer) {
    static_assert(kCols == kColumnThreads);
    const int64_t cols = args.streams * args.width, column = begin + threadIdx.x;
    const uint32_t to = shared_address(buffer + threadIdx.x);
    const int rows = min(kUnits * kRows, logits - first_row);
#pragma unroll 4
    for (int row = 0; row < rows; ++row) {
      copy_async_4(to + row * kCols * 4, column < cols ? args.fn + (first_row + row) * cols + column : args.fn,
                   column < cols);
    }
#pragma unroll
    for (int t = 0; t < kBlockTokens; ++t) {
      const bool there = column < cols && first_token + t < args.tokens;
      copy_async_4(to + (kWeights + t * kTokenStride) * 4,
                   there ? args.x + (first_token + t) * args.x_stride + column : args.x, there);
    }
    commit_copies();
  }
  static __device__ __forceinline__ void add(const float* w, const float* x, Sums& sums) {
    float factor[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) factor[r] = w[r * kCols];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float value = x[t * kTokenStride];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r][t] = f32::fma(factor[r], value, sums[r][t]);
    }
  }
  static __device__ __forceinline__ void add_squares(const float* x, Sums& sums) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float value = x[t * kTokenStride];
      sums[0][t] = f32::fma(value, value, sums[0][t]);
    }
  }
};

// Units are four rows; the one after the last is the sum of squares.
__global__ void __launch_bounds__(kColumnThreads, 2)
    prompt_products_kernel(const __grid_constant__ StreamsReadArgs args, int logits) {
  using P = PromptProducts;
  extern __shared__ float buffers[];
  let_next_start();
  wait_for_previous();
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % kLanesOfRow;
  const int unit = static_cast<int>(blockIdx.x) * P::kUnits + thread / kWarp;
  const int units = (logits + P::kRows - 1) / P::kRows;
  const int first_row = static_cast<int>(blockIdx.x) * P::kUnits * P::kRows;
  const int64_t first_token = static_cast<int64_t>(blockIdx.y) * P::kBlockTokens;
  const int own_token = thread % kWarp / kLanesOfRow * P::kTokens;
  const int64_t cols = args.streams * args.width;
  P::Sums sums = {};
  P::copy(args, logits, first_row, first_token, 0, buffers);
  for (int64_t begin = 0, piece = 0; begin < cols; begin += P::kCols, ++piece) {
    const float* buffer = buffers + piece % 2 * P::kBuffer;
    wait_copies<0>();
    __syncthreads();
    if (begin + P::kCols < cols) {
      P::copy(args, logits, first_row, first_token, begin + P::kCols, buffers + (piece + 1) % 2 * P::kBuffer);
    }
    const float* w = buffer + thread / kWarp * P::kRows * P::kCols;
    const float* x = buffer + P::kWeights + own_token * P::kTokenStride;
    const auto count = static_cast<int>(cols - begin < P::kCols ? cols - begin : P::kCols);
    if (unit < units) {
#pragma unroll 4
      for (int i = lane; i < count; i += kLanesOfRow) P::add(w + i, x + i, sums);
    } else if (unit == units) {
#pragma unroll 4
      for (int i = lane; i < count; i += kLanesOfRow) P::add_squares(x + i, sums);
    }
  }
#pragma unroll
  for (int r = 0; r < P::kRows; ++r) {
    const int row = unit * P::kRows + r;
    const bool present = unit < units ? row < logits : unit == units && r == 0;
#pragma unroll
    for (int t = 0; t < P::kTokens; ++t) {
      const int64_t token = first_token + own_token + t;
      const float sum = f32::tree_sum(sums[r][t]);
      if (!present || lane != 0 || token >= args.tokens) continue;
      args.logits[token * args.logits_stride + (unit < units ? row : logits)] = sum;
    }
  }
}

struct Logits {
  const float *logits, *scale, *base;
  float r;
  __device__ __forceinline__ float at(int i, int part) const {
    return f32::add(f32::mul(f32::mul(logits[i], r), scale[part]), base[i]);
  }
};

__device__ __forceinline__ Logits logits_of(const StreamsReadArgs& args, int64_t token, int logits) {
  const float* own = args.logits + token * args.logits_stride;
  const auto cols = static_cast<float>(args.streams * args.width);
  const float r = f32::div(1.0f, f32::sqrt(f32::add(f32::div(own[logits], cols), args.norm_eps)));
  return {own, args.scale, args.base, r};
}

// c divided by (the sum of the `count` values from `first` on, `step` apart, + eps).
__device__ __forceinline__ void scale_to_one(float* c, float& own, int thread, bool present, int first, int step,
                                             int count, float eps) {
  if (present) c[thread] = own;
  __syncthreads();
  if (present) {
    float sum = 0.0f;
    for (int i = 0; i < count; ++i) sum = f32::add(sum, c[first + i * step]);
    own = f32::div(own, f32::add(sum, eps));
  }
  __syncthreads();
}

// The same where a warp has all values: without its barriers, of which a mix has 78.
__device__ __forceinline__ void scale_to_one(float& own, int first, int step, int count, float eps) {
  float sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < count; ++i) sum = f32::add(sum, __shfl_sync(kFullWarp, own, first + i * step));
  own = f32::div(own, f32::add(sum, eps));
}

// Write factors and the mix, by the block: thread p * streams + q has C[p][q].
__device__ __forceinline__ void make_mix(const StreamsReadArgs& args, const Logits& logits, float* factors) {
  __shared__ float c[kMost * kMost];
  const auto thread = static_cast<int>(threadIdx.x);
  const int n = args.streams, p = thread / n, q = thread % n;
  const bool present = thread < n * n;
  if (thread < n) factors[n + thread] = f32::mul(2.0f, f32::sigmoid(logits.at(n + thread, 1)));
  float own = present ? logits.at(2 * n + thread, 2) : 0.0f;
  if (present) c[thread] = own;
  __syncthreads();
  if (present) {
    float largest = c[p * n];
    for (int i = 1; i < n; ++i) largest = f32::max(c[p * n + i], largest);
    own = f32::exp(f32::sub(own, largest));
  }
  __syncthreads();
  const bool by_warp = n * n <= kWarp;
  if (by_warp && thread >= kWarp) return;
  const auto row_to_one = [&](float eps) {
    by_warp ? scale_to_one(own, p * n, 1, n, eps) : scale_to_one(c, own, thread, present, p * n, 1, n, eps);
  };
  row_to_one(0.0f);  // a sum of exponentials: + 0 leaves it
  own = f32::add(own, args.eps);
  for (int round = 0; round < args.rounds; ++round) {
    if (round > 0) row_to_one(args.eps);
    by_warp ? scale_to_one(own, q, n, n, args.eps) : scale_to_one(c, own, thread, present, q, n, n, args.eps);
  }
  if (present) factors[2 * n + q * n + p] = own;
}

__global__ void __launch_bounds__(kColumnThreads)
    read_kernel(const __grid_constant__ StreamsReadArgs args, int logits) {
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.y;
  const Logits own = logits_of(args, token, logits);
  const auto thread = static_cast<int>(threadIdx.x);
  if (args.writes && blockIdx.x + 1 == gridDim.x) {
    return make_mix(args, own, args.factors + token * args.factors_stride);
  }
  __shared__ float read[kMost];
  if (thread < args.streams) {
    read[thread] = f32::add(f32::sigmoid(own.at(thread, 0)), args.eps);
    if (blockIdx.x == 0) args.factors[token * args.factors_stride + thread] = read[thread];
  }
  __syncthreads();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumnThreads + thread;
  if (column >= args.width) return;
  const float* x = args.x + token * args.x_stride + column;
  float sum = 0.0f;
  for (int p = 0; p < args.streams; ++p) sum = f32::fma(read[p], x[p * args.width], sum);
  args.to[token * args.to_stride + column] = sum;
}

__global__ void __launch_bounds__(kColumnThreads) write_kernel(const __grid_constant__ StreamsWriteArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t token = blockIdx.y, column = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (column >= args.width) return;
  const float* write = args.factors + token * args.factors_stride + args.streams;
  const float* mix = write + args.streams;
  float* x = args.x + token * args.x_stride + column;
  const float from = args.from[token * args.from_stride + column];
  float old[kMost];
#pragma unroll
  for (int p = 0; p < kMost; ++p) old[p] = p < args.streams ? x[p * args.width] : 0.0f;
  for (int q = 0; q < args.streams; ++q) {
    float sum = f32::fma(write[q], from, 0.0f);
#pragma unroll
    for (int p = 0; p < kMost; ++p) {
      if (p < args.streams) sum = f32::fma(mix[q * args.streams + p], old[p], sum);
    }
    x[q * args.width] = sum;
  }
}

}  // namespace

void streams_read(const StreamsReadArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.streams >= 1 && args.streams <= kMaxStreams && args.tokens <= kMaxGridY);
  const auto logits = static_cast<int>(args.writes ? stream_logit_count(args.streams) : args.streams);
  const auto tokens = static_cast<unsigned>(args.tokens);
  if (args.tokens > kMaxDecodeTokens) {
    using P = PromptProducts;
    check(cudaFuncSetAttribute(prompt_products_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kSharedBytes),
          "cannot have the shared memory of streams' products");
    const int64_t units = ceil_div(logits, P::kRows) + 1;
    launch(prompt_products_kernel,
           dim3(static_cast<unsigned>(ceil_div(units, P::kUnits)),
                static_cast<unsigned>(ceil_div(args.tokens, P::kBlockTokens))),
           dim3(kColumnThreads), P::kSharedBytes, stream, args, logits);
  } else {
    launch(products_kernel, dim3(static_cast<unsigned>(logits + 1), tokens), dim3(kColumnThreads), 0, stream, args,
           logits);
  }
  const auto columns = static_cast<unsigned>(ceil_div(args.width, kColumnThreads)) + (args.writes ? 1u : 0u);
  launch(read_kernel, dim3(columns, tokens), dim3(kColumnThreads), 0, stream, args, logits);
}

void streams_write(const StreamsWriteArgs& args, StreamHandle stream) {
  if (args.tokens == 0) return;
  FT_CHECK(args.streams >= 1 && args.streams <= kMaxStreams && args.tokens <= kMaxGridY);
  launch(write_kernel,
         dim3(static_cast<unsigned>(ceil_div(args.width, kColumnThreads)), static_cast<unsigned>(args.tokens)),
         dim3(kColumnThreads), 0, stream, args);
}

}  // namespace ft::cuda
