// Which entries a token attends to that has more of them than it may: scores of all, then the best, in order of
// entries.
#include "kernels/cuda/compressed.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

constexpr int kLanesOfRow = 16;
constexpr int kThreads = 256;
constexpr int kHalfWarps = kThreads / kLanesOfRow;
constexpr int kEntriesPerBlock = 64;
constexpr int kMaxIndexDim = 512;

// Half a warp is an entry at a time; the token's queries are in shared memory. kEach: of a key in a lane.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    scores_kernel(const __grid_constant__ CompressedArgs args, const __grid_constant__ CompressedGroup group) {
  extern __shared__ float q[];  // (index_heads, index_dim), then their weights
  let_next_start();
  wait_for_previous();
  const CompressedLayerView& layer = args.layer;
  const int64_t token = group.first + blockIdx.y;
  const auto position = static_cast<int>(args.position[token]);
  const int begin = static_cast<int>(blockIdx.x) * kEntriesPerBlock, visible = visible_entries(layer, position);
  if (!chooses(layer, position) || begin >= visible) return;
  const auto thread = static_cast<int>(threadIdx.x);
  const int heads = layer.index_heads, dim = layer.index_dim;
  float* weights = q + heads * dim;
  for (int i = thread; i < heads * dim; i += kThreads) q[i] = args.index_q.data[token * args.index_q.stride + i];
  for (int i = thread; i < heads; i += kThreads)
    weights[i] = args.index_weight.data[token * args.index_weight.stride + i];
  __syncthreads();
  const int lane = thread % kLanesOfRow, sequence = args.sequence[token];
  for (int i = thread / kLanesOfRow; i < kEntriesPerBlock; i += kHalfWarps) {
    const int entry = begin + i;
    const bool present = entry < visible;
    const bf16* key = index_entry(layer, sequence, present ? entry : begin);
    float k[kEach];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int at = lane + n * kLanesOfRow;
      k[n] = at < dim ? low_bf16(key[at].bits) : 0.0f;
    }
    float score = 0.0f;
    for (int h = 0; h < heads; ++h) {
      const float* row = q + h * dim;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int at = lane + n * kLanesOfRow;
        if (at < dim) sum = f32::fma(row[at], k[n], sum);
      }
      const float dot = f32::tree_sum(sum);
      score = f32::fma(weights[h], dot < 0.0f ? 0.0f : dot, score);
    }
    if (present && lane == 0) group.scores[blockIdx.y * static_cast<int64_t>(layer.entries) + entry] = score;
  }
}

constexpr int kChooseThreads = 1024;
constexpr int kChooseWarps = kChooseThreads / kWarp;

// Grows with what comes later in the order: smaller scores; NaN last. Ties go by entry.
__device__ __forceinline__ uint32_t rank_of(float score) {
  if (score != score) return ~0u;
  const uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  return ~((bits >> 31) != 0 ? ~bits : bits | 0x80000000u);
}

struct ChooseShared {
  int bins[256];
  uint32_t prefix;
  int before;  // ranks below those with the prefix
  int ties[kChooseWarps], kept[kChooseWarps];
};

// The rank of the `kept`-th best entry, and how many are better.
__device__ __forceinline__ void find_threshold(const float* scores, int visible, int kept, ChooseShared& shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared.prefix = 0, shared.before = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread; i < 256; i += kChooseThreads) shared.bins[i] = 0;
    __syncthreads();
    const uint32_t prefix = shared.prefix, known = shift == 24 ? 0u : ~0u << (shift + 8);
    for (int entry = thread; entry < visible; entry += kChooseThreads) {
      const uint32_t rank = rank_of(scores[entry]);
      if ((rank & known) == prefix) atomicAdd(&shared.bins[rank >> shift & 255u], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int before = shared.before;
      uint32_t bin = 0;
      while (before + shared.bins[bin] < kept) before += shared.bins[bin++];
      shared.before = before;
      shared.prefix = prefix | bin << shift;
    }
    __syncthreads();
  }
}

// A block a token.
__global__ void __launch_bounds__(kChooseThreads)
    choose_kernel(const __grid_constant__ CompressedArgs args, const __grid_constant__ CompressedGroup group) {
  __shared__ ChooseShared shared;
  let_next_start();
  wait_for_previous();
  const CompressedLayerView& layer = args.layer;
  const auto position = static_cast<int>(args.position[group.first + blockIdx.x]);
  if (!chooses(layer, position)) return;
  const int visible = visible_entries(layer, position), kept = layer.index_top_k;
  const float* scores = group.scores + blockIdx.x * static_cast<int64_t>(layer.entries);
  int32_t* chosen = group.chosen + blockIdx.x * static_cast<int64_t>(kept);
  find_threshold(scores, visible, kept, shared);
  const uint32_t threshold = shared.prefix;
  const int room = kept - shared.before;  // for ties: the first ones
  const auto thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const unsigned below = (1u << lane) - 1u;
  int ties_before = 0, kept_before = 0;  // in earlier rounds
  for (int base = 0; base < visible; base += kChooseThreads) {
    const int entry = base + thread;
    const uint32_t rank = entry < visible ? rank_of(scores[entry]) : ~0u;
    const bool tie = entry < visible && rank == threshold;
    const unsigned tie_mask = __ballot_sync(kFullWarp, tie);
    if (lane == 0) shared.ties[warp] = __popc(tie_mask);
    __syncthreads();
    int ties = ties_before + __popc(tie_mask & below);
    for (int w = 0; w < warp; ++w) ties += shared.ties[w];
    const bool keep = entry < visible && (rank < threshold || (tie && ties < room));
    const unsigned keep_mask = __ballot_sync(kFullWarp, keep);
    if (lane == 0) shared.kept[warp] = __popc(keep_mask);
    __syncthreads();
    int at = kept_before + __popc(keep_mask & below);
    for (int w = 0; w < warp; ++w) at += shared.kept[w];
    if (keep) chosen[at] = entry;
    for (int w = 0; w < kChooseWarps; ++w) ties_before += shared.ties[w], kept_before += shared.kept[w];
    __syncthreads();
  }
}

template <int kEach>
void launch_scores(const CompressedArgs& args, const CompressedGroup& group, StreamHandle stream) {
  const CompressedLayerView& layer = args.layer;
  const auto bytes = static_cast<int>((layer.index_heads * layer.index_dim + layer.index_heads) * sizeof(float));
  const auto kernel = scores_kernel<kEach>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cannot give index scores their shared memory");
  const auto blocks = ceil_div(args.max_positions / layer.ratio, kEntriesPerBlock);
  launch(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(group.count)), dim3(kThreads),
         static_cast<size_t>(bytes), stream, args, group);
}

}  // namespace

void compressed_choose(const CompressedArgs& args, const CompressedGroup& group, StreamHandle stream) {
  const CompressedLayerView& layer = args.layer;
  if (layer.index_dim == 0 || args.max_positions / layer.ratio <= layer.index_top_k) return;
  FT_CHECK(layer.index_dim <= kMaxIndexDim && group.count >= 1 && group.count <= kMaxGridY);
  if (layer.index_dim <= 128) {
    launch_scores<8>(args, group, stream);
  } else {
    launch_scores<32>(args, group, stream);
  }
  launch(choose_kernel, dim3(static_cast<unsigned>(group.count)), dim3(kChooseThreads), 0, stream, args, group);
}

}  // namespace ft::cuda
