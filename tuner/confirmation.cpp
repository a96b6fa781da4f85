#include "tuner/confirmation.h"

#include <algorithm>
#include <tuple>

#include "probes/engaged_check.h"

namespace ft {
namespace {

auto engages(const EngineConfig& config) {
  return std::tuple(config.strategy, config.threads, config.fetch_mechanism, config.look_ahead);
}

auto policy(const EngineConfig& config) {
  return std::tuple(engages(config), config.fetch_of_misses, config.promote_bytes_per_layer);
}

bool is_plain_offload(const EngineConfig& config) {
  return config.strategy == Strategy::kOffload && config.fetch_mechanism == FetchMechanism::kSm &&
         config.look_ahead == LookAhead::kOff;
}

constexpr const char* kEngagedCounts[] = {"steps",      "expert_hits",     "expert_fetched",
                                          "expert_cpu", "expert_promoted", "expert_prefetched",
                                          "slots",      "threads_worked",  "copy_engine"};

}  // namespace

std::vector<size_t> candidates_to_confirm(const SearchResult& search) {
  const auto& ranked = search.ranked;
  std::vector<size_t> chosen;
  const auto any = [&](auto is) {
    return std::any_of(chosen.begin(), chosen.end(), [&](size_t i) { return is(ranked[i].config); });
  };
  for (size_t i = 0; i < ranked.size(); ++i) {
    const EngineConfig& config = ranked[i].config;
    const bool first = !any([&](const EngineConfig& other) { return other.strategy == config.strategy; });
    const bool baseline = is_plain_offload(config) && !any(is_plain_offload);
    if (first || baseline) chosen.push_back(i);
  }
  for (size_t i = 1; i < ranked.size() && chosen.size() < kMaxConfirmed; ++i) {
    const EngineConfig& config = ranked[i].config;
    if (any([&](const EngineConfig& other) { return policy(other) == policy(config); })) continue;
    const bool run = any([&](const EngineConfig& other) { return engages(other) == engages(config); });
    const double fraction = run ? kNearPolicyFraction : kNearFraction;
    const bool near = ranked[i].score >= (1 - fraction) * ranked[0].score || is_tie(ranked[i], ranked[0]);
    if (near) chosen.push_back(i);
  }
  std::sort(chosen.begin(), chosen.end());
  const auto last =
      std::find_if(chosen.begin() + 1, chosen.end(), [&](size_t i) { return is_plain_offload(ranked[i].config); });
  if (last != chosen.end() && !is_plain_offload(ranked[chosen[0]].config)) std::rotate(last, last + 1, chosen.end());
  return chosen;
}

std::string refusal_of(std::span<const Measurement> measurements, size_t index) {
  for (const Measurement& m : measurements) {
    const auto candidate = m.at.find("candidate");
    if (m.probe != "decode" || candidate == m.at.end() || candidate->second != static_cast<double>(index)) continue;
    for (const std::string& remark : m.remarks) {
      if (remark.starts_with(kRefused)) return remark.substr(kRefused.size());
    }
  }
  return {};
}

bool engaged_the_same(std::span<const Measurement* const> a, std::span<const Measurement* const> b) {
  if (a.size() != b.size()) return false;
  for (size_t p = 0; p < a.size(); ++p) {
    for (const char* key : kEngagedCounts) {
      const auto left = a[p]->at.find(key), right = b[p]->at.find(key);
      if (left == a[p]->at.end() || right == b[p]->at.end() || left->second != right->second) return false;
    }
  }
  return true;
}

}  // namespace ft
