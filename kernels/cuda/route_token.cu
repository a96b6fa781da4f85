// Norm, router product, choice of experts and plan of one token in one cluster of blocks.
//
// Every block norms and packs the row for itself and computes the logits of its rows, its warps each taking blocks of k
// of a row tile. The logits go straight into the first block's shared memory, where one warp makes the probabilities,
// takes the largest and decides the plan: between the norm and the plan's stores there
// is no trip to memory and back. What the first block needs of the slot table is read while the row is normed, the
// weights before the wait for the kernel before.
#include <algorithm>

#include "kernels/cuda/choose_token.cuh"
#include "kernels/cuda/cluster_send.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/packed_tile.cuh"
#include "kernels/cuda/plan.cuh"
#include "kernels/cuda/plan_token.cuh"
#include "kernels/cuda/route_token.cuh"
#include "kernels/cuda/router_tile.cuh"

namespace ft::cuda {
namespace {

constexpr unsigned kBlocks = 16;  // more than the eight that every device with clusters has: asked for
constexpr int kMostPerLane = 8;   // experts that a lane ranks: 4, or 8
constexpr int kMaxExperts = kMostPerLane * kWarp;
static_assert(kMaxExperts <= kPlanThreads);
constexpr int kMaxChoices = 16;
using Row = NormRow<kPlanThreads, 4>;

struct TokenRoute {
  const float* x = nullptr;
  const float* norm_w = nullptr;
  float norm_eps = 0;
  int cols = 0;
  const uint32_t* codes = nullptr;
  int blocks = 0, last_lanes = 0;
  int rows = 0, row_tiles = 0, tiles_per_block = 0;
  float global = 0;
  const float* bias = nullptr;
  int64_t words_per_tile = 0;
  uint32_t* words = nullptr;
  float* logits = nullptr;
  RouterArgs top;
};

// Dynamic shared memory: the packed row, the norm's stage, the sums of k's blocks; then the plan's lists.
__host__ __device__ int row_bytes(const TokenRoute& r) { return r.blocks * kRouterBlockWords * 4; }
int64_t shared_bytes_of(const TokenRoute& r, const PlanArgs& plan, int most_distinct) {
  const int64_t sums = int64_t{r.tiles_per_block} * kRowsPerTile * r.blocks * kLanes * 4;
  return std::max<int64_t>(row_bytes(r) + Row::kStageFloats * 4 + sums, PlanLists::bytes(plan, most_distinct));
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void load_weights(const TokenRoute& r, int tile, int block, RouterWeights& weights) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, half = static_cast<int>(threadIdx.x) % kWarp / kLanes;
  const int lanes = block == r.blocks - 1 ? r.last_lanes : kLanes;
  const uint32_t* codes =
      r.codes + tile * r.words_per_tile + static_cast<int64_t>(block) * kRouterBlockWords * kRowsPerTile;
  const bool there = tile < r.row_tiles && lane < lanes;
  weights.load(codes, lanes, lane, half, there);
}

// sums[(row * blocks + block) * 16 + lane]: the lane's sum over its 16 k.
__device__ __forceinline__ void block_sums(const TokenRoute& r, const RouterWeights& weights, int own_tile, int block,
                                           const uint32_t* x, float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, half = static_cast<int>(threadIdx.x) % kWarp / kLanes;
  const uint32_t* pairs = x + block * kRouterBlockWords + lane;
  float p[kRouterRows] = {};
  weights.multiply(pairs, p);
#pragma unroll
  for (int j = 0; j < kRouterRows; ++j) {
    sums[((own_tile * kRowsPerTile + 2 * j + half) * r.blocks + block) * kLanes + lane] = p[j];
  }
}

// All units of the block, a unit being a block of k of one of its tiles: warp w takes w, w + kPlanWarps, ... The first
// one's weights are there; the next one's are on their way while one is multiplied.
__device__ __forceinline__ void multiply_units(const TokenRoute& r, RouterWeights& weights, const uint32_t* x,
                                               float* sums) {
  const int units = r.tiles_per_block * r.blocks, first_tile = static_cast<int>(blockIdx.x) * r.tiles_per_block;
  for (int unit = static_cast<int>(threadIdx.x) / kWarp; unit < units; unit += kPlanWarps) {
    const int next = unit + kPlanWarps;
    RouterWeights of_next{};
    if (next < units) load_weights(r, first_tile + next / r.blocks, next % r.blocks, of_next);
    block_sums(r, weights, unit / r.blocks, unit % r.blocks, x, sums);
    weights = of_next;
  }
}

// Of the first row that send_logits gives this thread.
__device__ __forceinline__ float bias_of_thread(const TokenRoute& r) {
  const int own = static_cast<int>(threadIdx.x) / kLanes, rows = r.tiles_per_block * kRowsPerTile;
  const int row = static_cast<int>(blockIdx.x) * rows + own;
  return r.bias != nullptr && own < rows && row < r.rows ? __ldg(r.bias + row) : 0.0f;
}

// The block's logits, to memory and to the first block: a half warp is a row.
__device__ __forceinline__ void send_logits(const TokenRoute& r, const float* sums, float first_bias, uint32_t logits,
                                            uint32_t barrier) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, rows = r.tiles_per_block * kRowsPerTile;
  for (int first = static_cast<int>(threadIdx.x) / kWarp * 2; first < rows; first += kPlanWarps * 2) {
    const int own = first + static_cast<int>(threadIdx.x) % kWarp / kLanes;  // even counts: both halves have one
    float logit = f32::mul(fold_router_row(sums + own * r.blocks * kLanes, r.blocks, lane), r.global);
    const int row = static_cast<int>(blockIdx.x) * rows + own;
    if (lane != 0 || row >= r.rows) continue;
    if (r.bias != nullptr) logit = f32::add(logit, own < 2 * kPlanWarps ? first_bias : __ldg(r.bias + row));
    send(logits + row * 4, logit, barrier);
    r.logits[row] = logit;
  }
}

// The leader's first warp: the lane's chosen expert, also to `ids` in shared memory. forced_id: of this lane, or null.
template <int kPerLane>
__device__ __forceinline__ int32_t choose_experts(const TokenRoute& r, const float* logits, uint32_t barrier,
                                                  const int32_t* forced_id, int32_t* ids) {
  const auto lane = static_cast<int>(threadIdx.x);
  wait_for_bytes(barrier);
  float own[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) own[j] = lane + j * kWarp < r.rows ? logits[lane + j * kWarp] : 0.0f;
  const Chosen chosen = choose_token(own, r.rows, r.top.k, r.top.renormalize, r.top.expert_scale);
  const int32_t id = forced_id != nullptr ? *forced_id : chosen.id;
  if (lane < r.top.k) {
    ids[lane] = id;
    r.top.ids[lane] = id;
    r.top.weights[lane] = chosen.weight;
    if (r.top.record != nullptr) r.top.record[lane] = id;
  }
  return id;
}

// What a thread of the leader reads ahead: its choice where choices are forced, and its expert's place in the table.
struct LeaderInput {
  bool forced = false;
  int32_t forced_id = -1, slot = -1;
  uint64_t used = 0;

  __device__ __forceinline__ void read(const TokenRoute& r, const PlanArgs& a, const PlanInput& input) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (r.top.forced != nullptr && thread < r.top.k) forced = *r.top.forced != 0, forced_id = r.top.forced_ids[thread];
    if (a.table.slots == 0 || thread >= r.rows) return;
    slot = input.slot_of_expert[thread];
    used = a.table.priority_of_key[a.layer * a.table.experts + thread];
  }
};

#endif

template <int kPerLane>
__global__ void __launch_bounds__(kPlanThreads)
    route_token_kernel(const __grid_constant__ TokenRoute r, const __grid_constant__ PlanArgs a, int most_distinct) {
#if __CUDA_ARCH__ >= 900
  constexpr int kExperts = kPerLane * kWarp;
  extern __shared__ uint4 memory[];
  __shared__ PlanState state;
  __shared__ float scale, logits[kExperts];
  __shared__ alignas(8) uint64_t barrier;
  __shared__ uint64_t priority[kExperts], prefetched[kExperts];
  __shared__ int32_t slot_of_expert[kExperts], ids[kMaxChoices];
  __shared__ TokenShared token;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const bool leads = blockIdx.x == 0;
  const auto own_barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
  if (leads && thread == 0) expect_bytes(own_barrier, static_cast<uint32_t>(r.rows) * 4);
  arrive_at_cluster();
  const int units = r.tiles_per_block * r.blocks, first_tile = static_cast<int>(blockIdx.x) * r.tiles_per_block;
  RouterWeights weights{};
  if (warp < units) load_weights(r, first_tile + warp / r.blocks, warp % r.blocks, weights);
  Row row;
  row.load_weights(r.norm_w, r.cols);
  const float bias = bias_of_thread(r);
  let_next_start();
  wait_for_cluster();
  wait_for_previous();
  PlanInput input;
  TokenInput more;
  LeaderInput own;
  Predicted predicted;
  if (leads) {
    if (warp == 0) predicted.read_id(a);
    input = PlanInput(a);
    more = TokenInput(a);
    token.read(a);
    own.read(r, a, input);
  }
  auto* x = reinterpret_cast<uint32_t*>(memory);
  auto* stage = reinterpret_cast<float*>(x + r.blocks * kRouterBlockWords);
  auto* sums = stage + Row::kStageFloats;
  row.pack(r.x, r.cols, r.norm_eps, stage, &scale, x);
  const uint64_t brought = own.slot >= 0 ? a.table.prefetched_in[own.slot] : 0;
  predicted.read_key(a);
  multiply_units(r, weights, x, sums);
  if (leads) store_words(x, r.blocks * kRouterBlockWords, kPlanThreads, r.words);  // it hands them to the CPU
  if (leads && thread < r.rows) {
    slot_of_expert[thread] = own.slot;
    priority[thread] = own.used;
    prefetched[thread] = brought;
  }
  __syncthreads();
  send_logits(r, sums, bias, address_in_block(static_cast<uint32_t>(__cvta_generic_to_shared(logits)), 0),
              address_in_block(own_barrier, 0));
  if (!leads) return;
  TokenPlan made;
  if (warp == 0) {
    const int32_t id = choose_experts<kPerLane>(r, logits, own_barrier, own.forced ? &own.forced_id : nullptr, ids);
    token.decide(a, input, more, {slot_of_expert, priority, prefetched}, id, predicted, made);
  }
  __syncthreads();
  // Rows of experts with a norm of their own were packed by the launch before.
  if (token.decided) return write_decided(a, more, predicted, made, token.on_cpu, {a.x == r.words ? x : nullptr, a.x});
  input.ids = ids;
  input.slot_of_expert = slot_of_expert;
  plan_in_block(a, input, most_distinct, reinterpret_cast<unsigned char*>(memory), state);
#endif
}

// Calls f with the kernel for so many experts.
template <class F>
auto with_kernel(int64_t experts, F&& f) {
  return experts <= 4 * kWarp ? f.template operator()<4>() : f.template operator()<kMostPerLane>();
}

// Dynamic shared memory that the kernel may have as a cluster of kBlocks; 0: the device cannot hold one.
template <int kPerLane>
int64_t shared_bytes_allowed() {
  static const int64_t bytes = []() -> int64_t {
    if (!programmatic_launch()) return 0;
    const auto kernel = route_token_kernel<kPerLane>;
    int device = 0, value = 0;
    check(cudaGetDevice(&device), "cannot ask for the device in use");
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cannot ask for the device's shared memory");
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), "cannot read the attributes of a kernel");
    const int64_t allowed = value - static_cast<int64_t>(attributes.sharedSizeBytes);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          "cannot ask for large clusters");
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(allowed)),
          "cannot ask for shared memory");
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = kBlocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = kBlocks;
    config.blockDim = kPlanThreads;
    config.dynamicSmemBytes = static_cast<size_t>(allowed);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // a partitioned device may refuse the question: it has none
      return 0;
    }
    return clusters > 0 ? allowed : 0;
  }();
  return bytes;
}

TokenRoute token_route(const RouteArgs& args) {
  const PackedLayout& layout = args.router.layout;
  TokenRoute r;
  r.x = args.x;
  r.norm_w = args.norm_w;
  r.norm_eps = args.norm_eps;
  r.cols = static_cast<int>(layout.cols);
  r.codes = reinterpret_cast<const uint32_t*>(args.router.data);
  r.blocks = static_cast<int>(layout.blocks);
  r.last_lanes = static_cast<int>(layout.last_lanes);
  r.rows = static_cast<int>(layout.rows);
  r.row_tiles = static_cast<int>(layout.row_tiles);
  r.tiles_per_block = static_cast<int>(ceil_div(layout.row_tiles, kBlocks));
  r.global = args.router.global;
  r.bias = args.bias;
  r.words_per_tile = layout.code_bytes_per_tile / 4;
  r.words = args.words;
  r.logits = args.logits;
  r.top = args.top;
  return r;
}

}  // namespace

bool route_token_takes(const RouteArgs& args, const PlanArgs& plan, int most_distinct) {
  const PackedLayout& layout = args.router.layout;
  const auto unaligned = (reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.norm_w)) % 8;
  if (layout.format != FormatId::kBf16 || args.norm_w == nullptr || args.top.by_score || args.top.tokens != 1 ||
      layout.rows > kMaxExperts || args.top.k > kMaxChoices || !Row::fits(layout.cols) || unaligned != 0) {
    return false;
  }
  const int64_t allowed = with_kernel(layout.rows, [&]<int kPerLane>() { return shared_bytes_allowed<kPerLane>(); });
  return shared_bytes_of(token_route(args), plan, most_distinct) <= allowed;
}

void route_token(const RouteArgs& args, const PlanArgs& plan, int most_distinct, StreamHandle stream) {
  const TokenRoute r = token_route(args);
  with_kernel(r.rows, [&]<int kPerLane>() {
    launch_cluster(route_token_kernel<kPerLane>, kBlocks, kPlanThreads,
                   static_cast<size_t>(shared_bytes_of(r, plan, most_distinct)), stream, r, plan, most_distinct);
  });
}

}  // namespace ft::cuda
