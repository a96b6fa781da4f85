#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plan.cuh"
#include "kernels/cuda/victims.cuh"

namespace ft::cuda {
namespace {

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const __grid_constant__ PlanArgs a, int most_distinct) {
  extern __shared__ uint4 memory[];
  __shared__ PlanState state;
  let_next_start();
  wait_for_previous();
  plan_in_block(a, PlanInput(a), most_distinct, reinterpret_cast<unsigned char*>(memory), state);
}

__global__ void search_kernel(const __grid_constant__ VictimSearch search) {
  wait_for_previous();
  let_next_start();
  search_victims_in_block(search, static_cast<int>(blockIdx.x));
}

}  // namespace

void search_victims(const VictimSearch& search, StreamHandle stream) {
  FT_CHECK(search.to != nullptr && search.count >= 1 && search.count <= kMaxNextVictims);
  launch(search_kernel, kSearchBlocks, dim3(kWarp, 2), 0, stream, search);
}

int check_plan(const PlanArgs& args) {
  FT_CHECK(args.tokens >= 1 && args.tokens <= kMaxPlanTokens && args.top_k >= 1 && args.top_k <= kMaxPlanTopK);
  FT_CHECK(args.table.experts >= 1 && args.table.experts <= kMaxPlanExperts && args.layer >= 0);
  const int most_distinct = std::min(static_cast<int>(args.tokens) * args.top_k, args.table.experts);
  FT_CHECK(args.max_distinct >= most_distinct);
  FT_CHECK(args.max_prefetches >= 0 && args.max_prefetches <= kMaxPlanPrefetches);
  FT_CHECK(args.predicted_ranks >= 0 && args.predicted_ranks <= kMaxPlanTopK);
  FT_CHECK(args.max_prefetches == 0 || (args.predicted != nullptr && args.next_bank != nullptr));
  const bool appends = args.promotions.any() || args.max_prefetches > 0;
  FT_CHECK(args.placement != Placement::kTable || args.table.slots == 0 || !appends || args.queue.words != nullptr);
  return most_distinct;
}

void plan_layer(const PlanArgs& args, StreamHandle stream) {
  constexpr int kPlainSharedBytes = 40 << 10;  // with PlanState below the 48 KiB that need no asking
  const int most_distinct = check_plan(args);
  const int bytes = PlanLists::bytes(args, most_distinct);
  if (bytes > kPlainSharedBytes) {
    check(cudaFuncSetAttribute(plan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "the device has too little shared memory to plan a layer of so many tokens and experts",
          "lower the largest batch");
  }
  launch(plan_kernel, 1, kPlanThreads, static_cast<size_t>(bytes), stream, args, most_distinct);
}

}  // namespace ft::cuda
