#include "tuner/cost_model.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr CostTermInfo kTerms[] = {
    {CostTerm::kBase, "a_layer", "s", true},
    {CostTerm::kBasePerToken, "s_layer_token", "s", true},
    {CostTerm::kSlotFixed, "a_g", "s", true},
    {CostTerm::kSlotPerExpert, "s_g", "s", false},
    {CostTerm::kSlotPerPick, "e_g", "s", false},
    {CostTerm::kCpuFixed, "a_c", "s", true},
    {CostTerm::kCpuPerExpert, "s_c", "s", false},
    {CostTerm::kCpuPerPick, "e_c", "s", false},
    {CostTerm::kLinkFixed, "a_f", "s", true},
    {CostTerm::kLinkPerExpert, "s_f", "s", false},
    {CostTerm::kPerPromotion, "s_p", "s", false},
    {CostTerm::kLinkIdle, "a_w", "s", true},
    {CostTerm::kContentionCompute, "k_c", "1", false},
    {CostTerm::kContentionLink, "k_f", "1", false},
    {CostTerm::kCopyEngineFixed, "a_f_copy_engine", "s", true, true},
    {CostTerm::kCopyEnginePerExpert, "s_f_copy_engine", "s", false, true},
    {CostTerm::kLookAhead, "a_r", "s", true, true},
    {CostTerm::kLookAheadPerToken, "e_r", "s", true, true},
    {CostTerm::kCopier, "a_q", "s", true, true},
};
static_assert(std::size(kTerms) == kCostTermCount);

// By how much of their own time the kernels between two layers' arms take longer while copies run: H200, six cells of
// scripts/regret at the misses that each run met, 60 predictions (experiment): off by -20 to +18 % with 1 and copies at
// full speed (experts of 9.8 and 14 MB that are promoted at each layer -15 to -20 %), -15 to +18 % with 2 and copies
// slowed by the CPU; 3 brings 0.4 % more.
constexpr double kCopiesSlowKernels = 2;

double slot_work(const CostParameters& cost, int experts, int picks) {
  return cost[CostTerm::kSlotPerExpert] * experts + cost[CostTerm::kSlotPerPick] * (picks - experts);
}

double cpu_work(const CostParameters& cost, int experts, int picks) {
  return cost[CostTerm::kCpuPerExpert] * experts + cost[CostTerm::kCpuPerPick] * (picks - experts);
}

// Time of work that takes `alone` by itself and 1 + contention of that while other work runs, which ends at `other`.
double beside(double alone, double contention, double other) {
  const double slowed = alone * (1 + contention);
  return slowed <= other ? slowed : other + alone - other / (1 + contention);
}

}  // namespace

std::span<const CostTermInfo> cost_terms() { return kTerms; }

CostParameters engaged_cost(const CostParameters& cost, FetchMechanism mechanism, LookAhead look_ahead) {
  CostParameters engaged = cost;
  if (mechanism == FetchMechanism::kCopyEngine) {
    engaged[CostTerm::kLinkFixed] = cost[CostTerm::kCopyEngineFixed];
    engaged[CostTerm::kLinkPerExpert] = cost[CostTerm::kCopyEnginePerExpert];
  }
  if (look_ahead != LookAhead::kOff) {
    engaged[CostTerm::kBase] += cost[CostTerm::kLookAhead];
    engaged[CostTerm::kBasePerToken] += cost[CostTerm::kLookAheadPerToken];
  }
  return engaged;
}

double between_layers(const DenseCost& dense, int tokens, int64_t context, int layers) {
  return dense.seconds(tokens, context) / (layers + 1);
}

namespace {

double base_seconds(const CostParameters& cost, Device device, const LayerCounts& n) {
  const double promotions = device == Device::kHost ? cost[CostTerm::kPerPromotion] * n.promoted : 0;
  return cost[CostTerm::kBase] + cost[CostTerm::kBasePerToken] * n.tokens + promotions;
}

// A layer behind its base, with `ahead` seconds of prefetches and promotions on the link behind the fetches.
double cuda_arms(const CostParameters& cost, const LayerCounts& n, double ahead, bool& cpu_last) {
  const double compute_slower = cost[CostTerm::kContentionCompute], link_slower = cost[CostTerm::kContentionLink];
  const double cpu = (n.cpu > 0 ? cost[CostTerm::kCpuFixed] : 0) + cpu_work(cost, n.cpu, n.cpu_picks);
  // On a GPU only the CPU arm competes with the copies.
  const double link = n.fetched > 0 ? cost[CostTerm::kLinkFixed] + cost[CostTerm::kLinkPerExpert] * n.fetched : 0;
  const double slots = n.hits + n.fetched > 0 ? cost[CostTerm::kSlotFixed] +
                                                    slot_work(cost, n.hits + n.fetched, n.hit_picks + n.fetched_picks)
                                              : 0;
  const double computed = beside(cpu, compute_slower, (link + ahead) * (1 + link_slower));
  const double copied = beside(link, link_slower, computed) + slots;
  cpu_last = computed > copied;
  return std::max(computed, copied);
}

double host_arms(const CostParameters& cost, const LayerCounts& n, double ahead) {
  const double slot_fixed = cost[CostTerm::kSlotFixed];
  const double compute_slower = cost[CostTerm::kContentionCompute], link_slower = cost[CostTerm::kContentionLink];
  const double fixed = std::max(n.hits > 0 ? slot_fixed : 0, n.cpu > 0 ? cost[CostTerm::kCpuFixed] : 0);
  const double ready =
      fixed + slot_work(cost, n.hits, n.hit_picks) + cpu_work(cost, n.cpu, n.cpu_picks);  // one group, one fixed cost
  if (n.fetched == 0) return beside(ready, compute_slower, ahead * (1 + link_slower));
  const double idle = n.hits + n.cpu == 0 ? cost[CostTerm::kLinkIdle] : 0;
  const auto link = [&](int experts) {
    return cost[CostTerm::kLinkFixed] + idle + cost[CostTerm::kLinkPerExpert] * experts;
  };
  const double computed = beside(ready, compute_slower, (link(n.fetched) + ahead) * (1 + link_slower));
  const double fetched = slot_work(cost, n.fetched, n.fetched_picks);
  const double last_copy = beside(link(n.fetched), link_slower, computed) + fetched / n.fetched;
  const double first_copy = beside(link(1), link_slower, computed) + fetched + (n.fetched > 1 ? slot_fixed : 0);
  return slot_fixed + std::max({computed + fetched, last_copy, first_copy});
}

}  // namespace

LayerPieces layer_pieces(const CostParameters& cost, Device device, const LayerCounts& n, double between) {
  const double ahead = cost[CostTerm::kLinkPerExpert] * n.prefetched;
  const double promoted = cost[CostTerm::kLinkPerExpert] * n.promoted;
  const double fetched = cost[CostTerm::kLinkFixed] + cost[CostTerm::kLinkPerExpert] * n.fetched;
  LayerPieces pieces;
  pieces.base = base_seconds(cost, device, n);
  if (device == Device::kCuda) {
    pieces.arms = cuda_arms(cost, n, ahead + promoted, pieces.cpu_last);
    pieces.link = (n.fetched > 0 ? fetched : 0) + ahead + promoted;
    // What does not fit beside the arms goes on through the layer's other kernels.
    if (n.promoted > 0) {
      const double copies = pieces.link * (1 + cost[CostTerm::kContentionLink]);
      pieces.rest = std::min(std::max(0.0, copies - pieces.arms), kCopiesSlowKernels * (between + pieces.base));
    }
  } else {
    pieces.arms = host_arms(cost, n, ahead);
  }
  if (n.prefetched > 0) pieces.rest += std::max(0.0, fetched + ahead - between - pieces.base - pieces.arms);
  return pieces;
}

double layer_seconds(const CostParameters& cost, Device device, const LayerCounts& n, double between) {
  const LayerPieces pieces = layer_pieces(cost, device, n, between);
  const double seconds = pieces.base + pieces.arms + pieces.rest;
  return n.promoted == 0 ? seconds : seconds + promotion_wait(pieces.link, seconds + between);
}

double step_seconds(const CostParameters& cost, const DenseCost& dense, Device device, int64_t context,
                    const ReplayResult& replay) {
  FT_CHECK(!replay.distribution.empty() && replay.steps > 0);
  const int tokens = replay.distribution[0].counts.tokens;
  const double between = between_layers(dense, tokens, context, replay.layers);
  double layers = 0, link = 0;
  bool promotes = false, copies = false;
  for (const WeightedCounts& entry : replay.distribution) {
    const LayerPieces pieces = layer_pieces(cost, device, entry.counts, between);
    const double share = static_cast<double>(entry.times) / static_cast<double>(replay.steps);
    layers += share * (pieces.base + pieces.arms + pieces.rest);
    link += share * pieces.link;
    promotes = promotes || entry.counts.promoted > 0;
    copies = copies || entry.counts.promoted + entry.counts.prefetched > 0;
  }
  const double copier = device == Device::kCuda && copies ? cost[CostTerm::kCopier] : 0;
  const double seconds = dense.seconds(tokens, context) + copier + layers;
  return promotes ? seconds + promotion_wait(link, seconds - between) : seconds;
}

SplitTable best_split(const CostParameters& cost, Device device, int tokens, int picks, int distinct,
                      int max_distinct) {
  FT_CHECK(distinct >= 1 && picks >= distinct && max_distinct >= distinct);
  SplitTable table(static_cast<size_t>(max_distinct) + 1, 0);
  for (int m = 1; m <= max_distinct; ++m) {
    const int all = std::max(distinct, m);
    const auto picks_of = [&](int experts) {
      return std::max(experts, static_cast<int>(static_cast<int64_t>(picks) * experts / all));
    };
    double best = 0;
    for (int fetched = 0; fetched <= m; ++fetched) {
      LayerCounts counts;
      counts.tokens = tokens;
      counts.hits = all - m;
      counts.fetched = fetched;
      counts.cpu = m - fetched;
      counts.hit_picks = picks_of(counts.hits);
      counts.fetched_picks = picks_of(counts.fetched);
      counts.cpu_picks = picks_of(counts.cpu);
      const double seconds = layer_seconds(cost, device, counts);
      if (fetched == 0 || seconds < best) {
        best = seconds;
        table[static_cast<size_t>(m)] = fetched;
      }
    }
  }
  return table;
}

}  // namespace ft
