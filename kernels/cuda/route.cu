// Norm, router product, choice of experts and plan of one layer in one launch.
//
// Every block norms and packs the step's tokens for itself and computes the logits of one row tile, its warps each
// taking blocks of k (the block sums P meet in shared memory and are folded in order, so the bits are one warp's). The
// block that finishes last chooses the experts of every token and plans the layer. The router's weights are loaded
// before the wait for the kernel before: no step writes them.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/norm_pack.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/plan.cuh"
#include "kernels/cuda/plan_token.cuh"
#include "kernels/cuda/route_token.cuh"
#include "kernels/cuda/router_tile.cuh"

namespace ft::cuda {
namespace {

// Where one launch does it all: more tokens, experts or choices are worth launches of their own.
// [measured, H200] 8 tokens of 2048, 128 experts: 29 us in one launch, 20 in four.
constexpr int kMaxTokens = 2;
constexpr int kMaxExperts = 1024;
constexpr int kMaxChoices = 16;
constexpr int kTokenExperts = 512;  // up to so many, plans of one token are one warp's
static_assert(kTokenExperts <= kPlanThreads && kMaxChoices <= kMaxTokenChoices);
constexpr int kGroup = 32;  // experts that one warp ranks
using Row = NormRow<kPlanThreads, 4>;
constexpr int kStageFloats = std::max(kNormStageFloats, Row::kStageFloats);
static_assert(kMaxTokens <= kNormPackTokens);

struct Route {
  NormPackSource source;
  int tokens = 0;
  const uint32_t* codes = nullptr;
  int blocks = 0, last_lanes = 0;
  int rows = 0;  // experts
  float global = 0;
  const float* bias = nullptr;
  int64_t words_per_tile = 0;
  uint32_t* words = nullptr;
  float* logits = nullptr;
  uint32_t* arrived = nullptr;
  RouterArgs top;
};

__device__ __forceinline__ void load_weights(const Route& r, int block, int thread, RouterWeights& weights) {
  const int lanes = block == r.blocks - 1 ? r.last_lanes : kLanes, lane = thread % kLanes;
  const uint32_t* codes =
      r.codes + blockIdx.x * r.words_per_tile + static_cast<int64_t>(block) * kRouterBlockWords * kRowsPerTile;
  weights.load(codes, lanes, lane, thread / kLanes, lane < lanes);
}

// cells[((token * 4 + row) * blocks + block) * 16 + lane]: the lane's sum over its 16 k. Lanes past the last one give
// +0, as their weights are zero and so are the words of x there.
__device__ __forceinline__ void block_sums(const Route& r, const RouterWeights& weights, int block, int thread,
                                           const uint32_t* x, int64_t row_words, float* cells) {
  const int lane = thread % kLanes;
  for (int token = 0; token < r.tokens; ++token) {
    const uint32_t* pairs = x + token * row_words + block * kRouterBlockWords + lane;
    float p[kRouterRows] = {};
    weights.multiply(pairs, p);
#pragma unroll
    for (int j = 0; j < kRouterRows; ++j) {
      cells[((token * kRowsPerTile + 2 * j + thread / kLanes) * r.blocks + block) * kLanes + lane] = p[j];
    }
  }
}

// Whole warps call it: a half warp is a row of a token.
__device__ __forceinline__ void write_logits(const Route& r, const float* cells) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int first = static_cast<int>(threadIdx.x) / kWarp * 2; first < r.tokens * kRowsPerTile;
       first += kPlanWarps * 2) {
    const int task = first + static_cast<int>(threadIdx.x) % kWarp / kLanes;  // even counts: both halves have one
    const float sum = fold_router_row(cells + task * r.blocks * kLanes, r.blocks, lane);
    const int row = static_cast<int>(blockIdx.x) * kRowsPerTile + task % kRowsPerTile;
    if (lane != 0 || row >= r.rows) continue;
    const float product = f32::mul(sum, r.global);
    r.logits[task / kRowsPerTile * r.rows + row] = r.bias == nullptr ? product : f32::add(product, __ldg(r.bias + row));
  }
}

// Shared memory of choose().
struct Choice {
  float* p;              // [token][expert]
  uint64_t* candidates;  // [token][group * kept]: key and ~expert; 0: none
  float* of_token;       // [2][token]: largest, sum
  int32_t* chosen;       // [token][k]
  float* weights;        // [token][k]

  __host__ __device__ static int groups(int experts) { return (experts + kGroup - 1) / kGroup; }
  static int bytes(int tokens, int experts, int k) {
    return tokens * (groups(experts) * std::min(k, kGroup) * 8 + experts * 4 + 8 + k * 8);
  }
  __device__ Choice(unsigned char* memory, int tokens, int experts, int k) {
    candidates = reinterpret_cast<uint64_t*>(memory);
    p = reinterpret_cast<float*>(candidates + tokens * groups(experts) * min(k, kGroup));
    of_token = p + tokens * experts;
    chosen = reinterpret_cast<int32_t*>(of_token + 2 * tokens);
    weights = reinterpret_cast<float*>(chosen + tokens * k);
  }
};

// router_top_k's probabilities: kernels/ops/rows.h. Ends with a barrier.
__device__ void probabilities(const Route& r, const Choice& c) {
  const int experts = r.rows, thread = static_cast<int>(threadIdx.x), all = r.tokens * experts;
  const int warp = thread / kWarp, lane = thread % kWarp;
  for (int i = thread; i < all; i += kPlanThreads) c.p[i] = __ldcg(r.logits + i);
  __syncthreads();
  if (warp < r.tokens) {
    float largest = __uint_as_float(0xff800000u);
    for (int i = lane; i < experts; i += kWarp) largest = f32::max(c.p[warp * experts + i], largest);
#pragma unroll
    for (int width = kWarp / 2; width >= 1; width /= 2) {
      largest = f32::max(__shfl_xor_sync(kFullWarp, largest, width), largest);
    }
    if (lane == 0) c.of_token[warp] = largest;
  }
  __syncthreads();
  for (int i = thread; i < all; i += kPlanThreads) c.p[i] = f32::exp(f32::sub(c.p[i], c.of_token[i / experts]));
  __syncthreads();
  if (warp < r.tokens) {
    float lane_sum = 0.0f;
    if (lane < kLanes) {
#pragma unroll 8
      for (int i = lane; i < experts; i += kLanes) lane_sum = f32::add(lane_sum, c.p[warp * experts + i]);
    }
    const float sum = f32::tree_sum(lane_sum);
    if (lane == 0) c.of_token[r.tokens + warp] = sum;
  }
  __syncthreads();
  for (int i = thread; i < all; i += kPlanThreads) c.p[i] = f32::div(c.p[i], c.of_token[r.tokens + i / experts]);
  __syncthreads();
}

// The k largest of each token, ties to the lower index: each warp ranks 32 experts and keeps its k best, then the kept
// ones are ranked against each other. Keys are the probabilities' bits + 1, which compare as the values do. Ends with a
// barrier.
__device__ void take_largest(const Route& r, const Choice& c, int k) {
  const int experts = r.rows, thread = static_cast<int>(threadIdx.x), groups = Choice::groups(experts);
  const int warp = thread / kWarp, lane = thread % kWarp, kept = min(k, kGroup), per_token = groups * kept;
  for (int unit = warp; unit < r.tokens * groups; unit += kPlanWarps) {
    const int token = unit / groups, expert = unit % groups * kGroup + lane;
    const uint32_t key = expert < experts ? __float_as_uint(c.p[token * experts + expert]) + 1u : 0u;
    int rank = 0;
#pragma unroll
    for (int other_lane = 0; other_lane < kWarp; ++other_lane) {
      const uint32_t other = __shfl_sync(kFullWarp, key, other_lane);
      rank += other > key || (other == key && other_lane < lane);
    }
    if (rank < kept) {
      c.candidates[token * per_token + unit % groups * kept + rank] =
          key == 0 ? 0 : static_cast<uint64_t>(key) << 32 | (~static_cast<uint32_t>(expert));
    }
  }
  __syncthreads();
  for (int i = thread; i < r.tokens * per_token; i += kPlanThreads) {
    const int token = i / per_token;
    const uint64_t* others = c.candidates + token * per_token;
    const uint64_t own = c.candidates[i];
    int rank = 0;
#pragma unroll 8
    for (int other = 0; other < per_token; ++other) rank += others[other] > own;
    if (own == 0 || rank >= k) continue;
    c.chosen[token * k + rank] = static_cast<int32_t>(~static_cast<uint32_t>(own));
    c.weights[token * k + rank] = __uint_as_float(static_cast<uint32_t>(own >> 32) - 1u);
  }
  __syncthreads();
}

// Ids also to `ids` in shared memory. Ends with a barrier.
__device__ void choose(const Route& r, bool forced, unsigned char* memory, int32_t* ids) {
  const int k = r.top.k, thread = static_cast<int>(threadIdx.x);
  const Choice c(memory, r.tokens, r.rows, k);
  probabilities(r, c);
  take_largest(r, c, k);
  for (int i = thread; i < r.tokens * k; i += kPlanThreads) {
    const int token = i / k, slot = i % k;
    const float sum = c.of_token[r.tokens + token];
    const bool is_nan = sum != sum;  // then every p is NaN, and the lowest ids are taken in order
    float all = 0.0f;
    for (int s = 0; s < k; ++s) all = f32::add(all, is_nan ? sum : c.weights[token * k + s]);
    float weight = is_nan ? sum : c.weights[i];
    if (r.top.renormalize) weight = f32::div(weight, all);
    const int32_t chosen = is_nan ? slot : c.chosen[i];
    if (r.top.expert_scale != nullptr) weight = f32::mul(weight, r.top.expert_scale[chosen]);
    const int32_t id = forced ? r.top.forced_ids[i] : chosen;
    ids[i] = id;
    r.top.ids[i] = id;
    r.top.weights[i] = weight;
    if (r.top.record != nullptr) r.top.record[i] = id;
  }
  __syncthreads();
}

// True in the block that comes last, which then sees what the others wrote. Ends with a barrier.
__device__ bool arrive_last(uint32_t* arrived) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
    last = before == gridDim.x - 1;
    if (last) *arrived = 0;
  }
  __syncthreads();
  return last;
}

// Slots of the thread's experts: thread, thread + kPlanThreads, ...; 0 from `rows` on.
struct OwnSlots {
  static constexpr int kCount = kMaxExperts / kPlanThreads;
  int32_t slot[kCount] = {};

  __device__ __forceinline__ OwnSlots(const PlanInput& input, int rows) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int expert = static_cast<int>(threadIdx.x) + i * kPlanThreads;
      if (expert < rows) slot[i] = input.slot_of_expert[expert];
    }
  }
  __device__ __forceinline__ void store(int32_t* slot_of_expert) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) slot_of_expert[threadIdx.x + i * kPlanThreads] = slot[i];
  }
};

__global__ void __launch_bounds__(kPlanThreads)
    route_and_plan_kernel(const __grid_constant__ Route r, const __grid_constant__ PlanArgs a, int most_distinct) {
  extern __shared__ uint4 memory[];
  __shared__ PlanState state;
  __shared__ float scales[kNormPackTokens];
  __shared__ int32_t ids[kMaxTokens * kMaxChoices], slot_of_expert[kMaxExperts];
  __shared__ uint64_t priority[kTokenExperts], prefetched[kTokenExperts];
  __shared__ TokenShared token;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  RouterWeights weights{};
  if (warp < r.blocks) load_weights(r, warp, lane, weights);
  // The norm's weights too: from memory they are a microsecond away, and nobody but this step's norm has read them.
  Row row;
  const bool one_row = r.tokens == 1 && r.source.norm_w != nullptr && Row::fits(r.source.cols);
  if (one_row) row.load_weights(r.source.norm_w, static_cast<int>(r.source.cols));
  let_next_start();
  wait_for_previous();
  // For the block that comes last, whichever it is: under way while the rows are normed.
  PlanInput input(a);
  const bool forced = r.top.forced != nullptr && *r.top.forced != 0;
  const OwnSlots slots(input, a.table.slots > 0 ? r.rows : 0);
  const bool by_warp = r.tokens == 1 && r.rows <= kTokenExperts, tells = by_warp && a.table.slots > 0;
  Predicted predicted;
  TokenInput more;
  if (by_warp) {
    more = TokenInput(a);
    token.read(a);
    if (warp == 0) predicted.read_id(a);
  }
  const uint64_t used =
      tells && thread < r.rows ? a.table.priority_of_key[static_cast<int64_t>(a.layer) * a.table.experts + thread] : 0;
  auto* x = reinterpret_cast<uint32_t*>(memory);
  const int64_t row_words = activation_words(r.source.cols);
  auto* stage = reinterpret_cast<float*>(x + r.tokens * row_words);
  auto* cells = stage + kStageFloats;
  if (one_row) {
    row.pack(r.source.x, static_cast<int>(r.source.cols), r.source.norm_eps, stage, scales, x);
  } else {
    norm_pack(r.source, 0, r.tokens, thread, kPlanThreads, stage, scales, x);
  }
  const uint64_t brought = tells && thread < r.rows && slots.slot[0] >= 0 ? a.table.prefetched_in[slots.slot[0]] : 0;
  predicted.read_key(a);
  for (int block = warp; block < r.blocks; block += kPlanWarps) {
    if (block != warp) load_weights(r, block, lane, weights);
    block_sums(r, weights, block, lane, x, row_words, cells);
  }
  if (blockIdx.x == 0) store_words(x, r.tokens * static_cast<int>(row_words), kPlanThreads, r.words);
  __syncthreads();
  write_logits(r, cells);
  if (!arrive_last(r.arrived)) return;
  slots.store(slot_of_expert);
  input.ids = ids;
  input.slot_of_expert = slot_of_expert;
  if (by_warp && thread < kTokenExperts) priority[thread] = used, prefetched[thread] = brought;
  choose(r, forced, reinterpret_cast<unsigned char*>(memory), ids);
  if (by_warp) {
    TokenPlan made;
    if (warp == 0) {
      token.decide(a, input, more, {slot_of_expert, priority, prefetched}, lane < r.top.k ? ids[lane] : -1, predicted,
                   made);
    }
    __syncthreads();
    if (token.decided) return write_decided(a, more, predicted, made, token.on_cpu, {nullptr, a.x});
  }
  plan_in_block(a, input, most_distinct, reinterpret_cast<unsigned char*>(memory), state);
}

int64_t shared_bytes_of(const Route& r, const PlanArgs& plan, int most_distinct) {
  const int64_t row_words = activation_words(r.source.cols);
  const int64_t sums = (r.tokens * row_words + kStageFloats + int64_t{r.tokens} * kRowsPerTile * r.blocks * kLanes) * 4;
  const int choice = Choice::bytes(r.tokens, r.rows, r.top.k);
  return std::max<int64_t>({sums, choice, PlanLists::bytes(plan, most_distinct)});
}

int64_t shared_bytes_allowed() {
  static const int64_t bytes = [] {
    int device = 0, value = 0;
    check(cudaGetDevice(&device), "cannot ask for the device in use");
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cannot ask for the device's shared memory");
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, route_and_plan_kernel), "cannot read the attributes of a kernel");
    const int64_t allowed = value - static_cast<int64_t>(attributes.sharedSizeBytes);
    check(cudaFuncSetAttribute(route_and_plan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(allowed)),
          "cannot ask for shared memory");
    return allowed;
  }();
  return bytes;
}

Route route_of(const RouteArgs& args) {
  const PackedLayout& layout = args.router.layout;
  return {.source = {args.x, args.x_stride, layout.cols, args.norm_w, args.norm_eps},
          .tokens = static_cast<int>(args.top.tokens),
          .codes = reinterpret_cast<const uint32_t*>(args.router.data),
          .blocks = static_cast<int>(layout.blocks),
          .last_lanes = static_cast<int>(layout.last_lanes),
          .rows = static_cast<int>(layout.rows),
          .global = args.router.global,
          .bias = args.bias,
          .words_per_tile = layout.code_bytes_per_tile / 4,
          .words = args.words,
          .logits = args.logits,
          .arrived = args.arrived,
          .top = args.top};
}

// The experts' rows where they have a norm of their own.
void pack_for_experts(const RouteArgs& args, StreamHandle stream) {
  if (args.experts_words == nullptr) return;
  rmsnorm_pack({.x = args.x,
                .x_stride = args.x_stride,
                .w = args.experts_norm_w,
                .eps = args.experts_norm_eps,
                .tokens = args.top.tokens,
                .cols = args.router.layout.cols,
                .words = args.experts_words},
               stream);
}

}  // namespace

void route(const RouteArgs& args, StreamHandle stream) {
  pack_for_experts(args, stream);
  MatvecArgs product;
  const int64_t experts = args.router.layout.rows, cols = args.router.layout.cols;
  if (args.norm_w == nullptr) {
    pack_activations({args.x, args.x_stride, args.top.tokens, cols, args.words}, stream);
  } else {
    rmsnorm_pack({.x = args.x,
                  .x_stride = args.x_stride,
                  .w = args.norm_w,
                  .eps = args.norm_eps,
                  .tokens = args.top.tokens,
                  .cols = cols,
                  .words = args.words},
                 stream);
  }
  product.input = {.words = args.words};
  product.tokens = args.top.tokens;
  product.outputs[0] = {args.router, args.bias, args.logits, experts, false};
  product.output_count = 1;
  matvec(product, stream);
  RouterArgs top = args.top;
  top.logits = args.logits;
  top.logits_stride = experts;
  top.experts = experts;
  router_top_k(top, stream);
}

void route_and_plan(const RouteArgs& args, const PlanArgs& plan, StreamHandle stream) {
  const int most_distinct = check_plan(plan);
  FT_CHECK(plan.tokens == args.top.tokens && plan.top_k == args.top.k);
  FT_CHECK(plan.x == (args.experts_words == nullptr ? args.words : args.experts_words));
  if (route_token_takes(args, plan, most_distinct)) {
    pack_for_experts(args, stream);
    route_token(args, plan, most_distinct, stream);
    return;
  }
  const Route r = route_of(args);
  const bool small = args.router.layout.format == FormatId::kBf16 && !args.top.by_score &&
                     args.top.tokens <= kMaxTokens && r.rows <= kMaxExperts && args.top.k <= kMaxChoices;
  const int64_t bytes = small ? shared_bytes_of(r, plan, most_distinct) : 0;
  if (!small || bytes > shared_bytes_allowed()) {
    route(args, stream);
    plan_layer(plan, stream);
    return;
  }
  pack_for_experts(args, stream);
  launch(route_and_plan_kernel, static_cast<unsigned>(args.router.layout.row_tiles), kPlanThreads,
         static_cast<size_t>(bytes), stream, r, plan, most_distinct);
}

}  // namespace ft::cuda
