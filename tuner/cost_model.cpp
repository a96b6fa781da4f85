#include "tuner/cost_model.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr CostTermInfo kTerms[] = {
    {CostTerm::kBase, "a_layer", "s", true},        {CostTerm::kBasePerToken, "s_layer_token", "s", true},
    {CostTerm::kSlotFixed, "a_g", "s", true},       {CostTerm::kSlotPerExpert, "s_g", "s", false},
    {CostTerm::kSlotPerPick, "e_g", "s", false},    {CostTerm::kCpuFixed, "a_c", "s", true},
    {CostTerm::kCpuPerExpert, "s_c", "s", false},   {CostTerm::kCpuPerPick, "e_c", "s", false},
    {CostTerm::kLinkFixed, "a_f", "s", true},       {CostTerm::kLinkPerExpert, "s_f", "s", false},
    {CostTerm::kPerPromotion, "s_p", "s", false},   {CostTerm::kContentionCompute, "k_c", "1", false},
    {CostTerm::kContentionLink, "k_f", "1", false},
};
static_assert(std::size(kTerms) == kCostTermCount);

double slot_work(const CostParameters& cost, int experts, int picks) {
  return cost[CostTerm::kSlotPerExpert] * experts + cost[CostTerm::kSlotPerPick] * (picks - experts);
}

double cpu_work(const CostParameters& cost, int experts, int picks) {
  return cost[CostTerm::kCpuPerExpert] * experts + cost[CostTerm::kCpuPerPick] * (picks - experts);
}

}  // namespace

std::span<const CostTermInfo> cost_terms() { return kTerms; }

double layer_seconds(const CostParameters& cost, Device device, const LayerCounts& n) {
  const bool link = n.fetched > 0;
  // On the host all other work competes with the copies for cores and memory; on a GPU only the CPU arm does.
  const bool beside = device == Device::kHost ? n.hits + n.cpu > 0 : n.cpu > 0;
  const double compute_factor = link && beside ? 1 + cost[CostTerm::kContentionCompute] : 1;
  const double link_factor = link && beside ? 1 + cost[CostTerm::kContentionLink] : 1;
  const double base =
      cost[CostTerm::kBase] + cost[CostTerm::kBasePerToken] * n.tokens + cost[CostTerm::kPerPromotion] * n.promoted;
  const double slot_fixed = cost[CostTerm::kSlotFixed], cpu_fixed = n.cpu > 0 ? cost[CostTerm::kCpuFixed] : 0;
  const double cpu = cpu_work(cost, n.cpu, n.cpu_picks);
  const auto link_time = [&](int experts) {
    return link ? link_factor * (cost[CostTerm::kLinkFixed] + cost[CostTerm::kLinkPerExpert] * experts) : 0;
  };
  if (device == Device::kCuda) {
    const double slots =
        n.hits + n.fetched > 0 ? slot_fixed + slot_work(cost, n.hits + n.fetched, n.hit_picks + n.fetched_picks) : 0;
    return base + std::max(compute_factor * (cpu_fixed + cpu), link_time(n.fetched) + slots);
  }
  const double ready =
      compute_factor * (std::max(n.hits > 0 ? slot_fixed : 0, cpu_fixed) + slot_work(cost, n.hits, n.hit_picks) + cpu);
  if (!link) return base + ready;
  const double fetched = slot_work(cost, n.fetched, n.fetched_picks);
  const double last_copy = link_time(n.fetched) + fetched / n.fetched;
  const double first_copy = link_time(1) + fetched + (n.fetched > 1 ? slot_fixed : 0);
  return base + slot_fixed + std::max({ready + fetched, last_copy, first_copy});
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
