#include "tuner/cost_model.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr CostTermInfo kTerms[] = {
    {CostTerm::kBase, "a_layer", "s", true},           {CostTerm::kBasePerToken, "s_layer_token", "s", true},
    {CostTerm::kSlotFixed, "a_g", "s", true},          {CostTerm::kSlotPerExpert, "s_g", "s", false},
    {CostTerm::kSlotPerPick, "e_g", "s", false},       {CostTerm::kCpuFixed, "a_c", "s", true},
    {CostTerm::kCpuPerExpert, "s_c", "s", false},      {CostTerm::kCpuPerPick, "e_c", "s", false},
    {CostTerm::kLinkFixed, "a_f", "s", true},          {CostTerm::kLinkPerExpert, "s_f", "s", false},
    {CostTerm::kPerPromotion, "s_p", "s", false},      {CostTerm::kLinkIdle, "a_w", "s", true},
    {CostTerm::kContentionCompute, "k_c", "1", false}, {CostTerm::kContentionLink, "k_f", "1", false},
};
static_assert(std::size(kTerms) == kCostTermCount);

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

double layer_seconds(const CostParameters& cost, Device device, const LayerCounts& n) {
  const double base =
      cost[CostTerm::kBase] + cost[CostTerm::kBasePerToken] * n.tokens + cost[CostTerm::kPerPromotion] * n.promoted;
  const double slot_fixed = cost[CostTerm::kSlotFixed];
  const double cpu = (n.cpu > 0 ? cost[CostTerm::kCpuFixed] : 0) + cpu_work(cost, n.cpu, n.cpu_picks);
  const double compute_slower = cost[CostTerm::kContentionCompute], link_slower = cost[CostTerm::kContentionLink];
  if (device == Device::kCuda) {
    // On a GPU only the CPU arm competes with the copies.
    const double link = n.fetched > 0 ? cost[CostTerm::kLinkFixed] + cost[CostTerm::kLinkPerExpert] * n.fetched : 0;
    const double slots =
        n.hits + n.fetched > 0 ? slot_fixed + slot_work(cost, n.hits + n.fetched, n.hit_picks + n.fetched_picks) : 0;
    const double computed = beside(cpu, compute_slower, link * (1 + link_slower));
    return base + std::max(computed, beside(link, link_slower, computed) + slots);
  }
  const double fixed = std::max(n.hits > 0 ? slot_fixed : 0, n.cpu > 0 ? cost[CostTerm::kCpuFixed] : 0);
  const double ready =
      fixed + slot_work(cost, n.hits, n.hit_picks) + cpu_work(cost, n.cpu, n.cpu_picks);  // one group, one fixed cost
  if (n.fetched == 0) return base + ready;
  const double idle = n.hits + n.cpu == 0 ? cost[CostTerm::kLinkIdle] : 0;
  const auto link = [&](int experts) {
    return cost[CostTerm::kLinkFixed] + idle + cost[CostTerm::kLinkPerExpert] * experts;
  };
  const double computed = beside(ready, compute_slower, link(n.fetched) * (1 + link_slower));
  const double fetched = slot_work(cost, n.fetched, n.fetched_picks);
  const double last_copy = beside(link(n.fetched), link_slower, computed) + fetched / n.fetched;
  const double first_copy = beside(link(1), link_slower, computed) + fetched + (n.fetched > 1 ? slot_fixed : 0);
  return base + slot_fixed + std::max({computed + fetched, last_copy, first_copy});
}

double step_seconds(const CostParameters& cost, const DenseCost& dense, Device device, int64_t context,
                    const ReplayResult& replay) {
  FT_CHECK(!replay.distribution.empty() && replay.steps > 0);
  double layers = 0;
  for (const WeightedCounts& entry : replay.distribution) {
    layers += static_cast<double>(entry.times) * layer_seconds(cost, device, entry.counts);
  }
  const int tokens = replay.distribution[0].counts.tokens;
  return dense.seconds(tokens, context) + layers / static_cast<double>(replay.steps);
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
