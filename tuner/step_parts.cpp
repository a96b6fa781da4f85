#include "tuner/step_parts.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr std::string_view kNames[] = {"dense", "attention",       "experts", "fetch",
                                       "cpu",   "synchronization", "merge",   "idle"};
static_assert(std::size(kNames) == kStepPartCount);

double work(const CostParameters& cost, CostTerm per_expert, CostTerm per_pick, int experts, int picks) {
  return cost[per_expert] * experts + cost[per_pick] * (picks - experts);
}

// The host device: everything but the copies is one line of work, so what is left of the layer is theirs.
void host_parts(const CostParameters& cost, const LayerCounts& n, double arms, StepParts& parts) {
  const double slot_fixed = cost[CostTerm::kSlotFixed];
  const double ready = std::max(n.hits > 0 ? slot_fixed : 0, n.cpu > 0 ? cost[CostTerm::kCpuFixed] : 0);
  const double fixed = ready + (n.fetched > 0 ? slot_fixed : 0);
  const double experts =
      work(cost, CostTerm::kSlotPerExpert, CostTerm::kSlotPerPick, n.hits + n.fetched, n.hit_picks + n.fetched_picks);
  const double cpu = work(cost, CostTerm::kCpuPerExpert, CostTerm::kCpuPerPick, n.cpu, n.cpu_picks);
  const double rest = std::max(0.0, arms - fixed - experts - cpu);
  const double idle = n.fetched > 0 && n.hits + n.cpu == 0 ? std::min(rest, cost[CostTerm::kLinkIdle]) : 0;
  parts[StepPart::kSynchronization] += fixed;
  parts[StepPart::kExperts] += experts;
  parts[StepPart::kCpu] += cpu;
  parts[StepPart::kIdle] += idle;
  parts[StepPart::kFetch] += rest - idle;
}

// A GPU: the arm that ends last.
void cuda_parts(const CostParameters& cost, const LayerCounts& n, const LayerPieces& pieces, StepParts& parts) {
  if (pieces.cpu_last) {
    parts[StepPart::kSynchronization] += cost[CostTerm::kCpuFixed];
    parts[StepPart::kCpu] += pieces.arms - cost[CostTerm::kCpuFixed];
    return;
  }
  const double experts =
      work(cost, CostTerm::kSlotPerExpert, CostTerm::kSlotPerPick, n.hits + n.fetched, n.hit_picks + n.fetched_picks);
  const double fixed =
      (n.hits + n.fetched > 0 ? cost[CostTerm::kSlotFixed] : 0) + (n.fetched > 0 ? cost[CostTerm::kLinkFixed] : 0);
  parts[StepPart::kSynchronization] += fixed;
  parts[StepPart::kExperts] += experts;
  parts[StepPart::kFetch] += std::max(0.0, pieces.arms - fixed - experts);
}

}  // namespace

std::string_view step_part_name(StepPart part) { return kNames[static_cast<size_t>(part)]; }

double StepParts::total() const {
  double sum = 0;
  for (const double value : seconds) sum += value;
  return sum;
}

namespace {

// Promotions that a layer or a step waits for are left out.
StepParts parts_of(const CostParameters& cost, Device device, const LayerCounts& n, const LayerPieces& pieces) {
  StepParts parts;
  parts[StepPart::kSynchronization] = cost[CostTerm::kBase];
  parts[StepPart::kMerge] = cost[CostTerm::kBasePerToken] * n.tokens;
  parts[StepPart::kFetch] = pieces.rest;
  if (device == Device::kHost) parts[StepPart::kFetch] += cost[CostTerm::kPerPromotion] * n.promoted;
  if (device == Device::kCuda) {
    cuda_parts(cost, n, pieces, parts);
  } else {
    host_parts(cost, n, pieces.arms, parts);
  }
  return parts;
}

}  // namespace

StepParts layer_parts(const CostParameters& cost, Device device, const LayerCounts& n, double between) {
  const LayerPieces pieces = layer_pieces(cost, device, n, between);
  StepParts parts = parts_of(cost, device, n, pieces);
  if (n.promoted > 0) parts[StepPart::kFetch] += promotion_wait(pieces.link, parts.total() + between);
  return parts;
}

StepParts step_parts(const CostParameters& cost, const DenseCost& dense, Device device, int64_t context,
                     const ReplayResult& replay) {
  FT_CHECK(!replay.distribution.empty() && replay.steps > 0);
  const int tokens = replay.distribution[0].counts.tokens;
  const double between = between_layers(dense, tokens, context, replay.layers);
  StepParts parts;
  double link = 0;
  bool promotes = false, copies = false;
  for (const WeightedCounts& entry : replay.distribution) {
    const LayerPieces pieces = layer_pieces(cost, device, entry.counts, between);
    const StepParts layer = parts_of(cost, device, entry.counts, pieces);
    const double share = static_cast<double>(entry.times) / static_cast<double>(replay.steps);
    for (int i = 0; i < kStepPartCount; ++i) parts.seconds[i] += share * layer.seconds[i];
    link += share * pieces.link;
    promotes = promotes || entry.counts.promoted > 0;
    copies = copies || entry.counts.promoted + entry.counts.prefetched > 0;
  }
  parts[StepPart::kDense] = dense.fixed + dense.per_token * tokens;
  parts[StepPart::kAttention] = dense.attention_seconds(tokens, context);
  if (device == Device::kCuda && copies) parts[StepPart::kFetch] += cost[CostTerm::kCopier];
  if (promotes) parts[StepPart::kFetch] += promotion_wait(link, parts.total() - between);
  return parts;
}

std::vector<CostPart> cost_parts(const std::vector<StepParts>& points) {
  std::vector<CostPart> parts;
  for (int i = 0; i < kStepPartCount; ++i) {
    CostPart part;
    part.name = kNames[i];
    for (const StepParts& point : points) part.seconds.push_back(point.seconds[i]);
    const bool any = std::any_of(part.seconds.begin(), part.seconds.end(), [](double s) { return s > 0; });
    if (any) parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace ft
