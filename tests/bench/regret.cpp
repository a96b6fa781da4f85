#include "tests/bench/regret.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tuner/predictor.h"
#include "tuner/search_space.h"

namespace ft::bench {
namespace {

constexpr double kConfidence = 0.95;

double at(const Measurement& m, const char* key) {
  const auto found = m.at.find(key);
  return found == m.at.end() ? 0 : found->second;
}

// Rounds 0, 2, .. are even.
std::vector<double> half(const std::vector<double>& values, size_t first) {
  std::vector<double> result;
  for (size_t i = first; i < values.size(); i += 2) result.push_back(values[i]);
  return result;
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

double cpu_gbps(std::span<const Measurement> measurements) {
  double most = 0, best = 0;
  for (const Measurement& m : measurements) {
    if (m.probe == "expert_single" && m.at.contains("at_once")) most = std::max(most, at(m, "threads"));
  }
  for (const Measurement& m : measurements) {
    if (m.probe != "expert_single" || !m.at.contains("at_once") || at(m, "threads") != most || m.values.empty())
      continue;
    best = std::max(best, median(m.values));
  }
  return best;
}

double link_gbps(std::span<const Measurement> measurements, const AnalysisInput& input, const Analysis& analysis) {
  if (input.base.device == Device::kHost) {
    const double slope = analysis.models.back().cost.cost[CostTerm::kLinkPerExpert];
    return slope <= 0 ? 0 : static_cast<double>(input.formats.expert_bytes_max) / slope / 1e9;
  }
  double best = 0;
  for (const Measurement& m : measurements) {
    if (m.probe == "pcie_gather" && m.name.starts_with("sm_gather") && !m.values.empty()) {
      best = std::max(best, median(m.values));
    }
  }
  return best;
}

constexpr double kShares[] = {0.25, 0.5, 0.75, 1};  // of a layer's misses that are fetched
constexpr PromotionRate kPromotions[] = {0, PromotionRate::one_in(16), PromotionRate::one_in(4), 1, 2};

// With threads, slots, mechanism and prefetches of `config` the other splits and promotions of its strategy.
std::vector<CandidateSpec> other_policies(const EngineConfig& config, const SearchInput& input, int max_distinct) {
  std::vector<CandidateSpec> specs;
  CandidateSpec spec;
  spec.strategy = config.strategy;
  spec.threads = config.threads;
  spec.mechanism = config.fetch_mechanism;
  spec.use.slots = config.slots;
  spec.use.max_prefetches = config.max_prefetches_per_layer;
  while (spec.model + 1 < input.models.size() && input.models[spec.model].cost.cost.threads != config.threads)
    ++spec.model;
  if (config.slots == 0 || (config.strategy != Strategy::kCpu && config.strategy != Strategy::kHybrid)) return specs;
  std::vector<SplitTable> tables = {config.fetch_of_misses};
  if (config.strategy == Strategy::kHybrid) {
    for (const double share : kShares) tables.push_back(constant_share(max_distinct, share));
  }
  for (const SplitTable& table : tables) {
    for (const PromotionRate promotions : kPromotions) {
      spec.use.fetch_of_misses = table;
      spec.use.promotions = promotions;
      specs.push_back(spec);
    }
  }
  return specs;
}

// A hybrid that never computes or never fetches is another strategy, and a cache that nothing fills is none.
bool engages_as_asked(const std::vector<ReplayResult>& replays) {
  int64_t fetched = 0, computed = 0;
  for (const ReplayResult& replay : replays) {
    for (const WeightedCounts& entry : replay.distribution) {
      fetched += entry.times * (entry.counts.fetched + entry.counts.promoted);
      computed += entry.times * entry.counts.cpu;
    }
  }
  return fetched > 0 && computed > 0;
}

bool is_same(const EngineConfig& a, const EngineConfig& b) {
  return a.strategy == b.strategy && a.threads == b.threads && a.slots == b.slots &&
         a.fetch_of_misses == b.fetch_of_misses && a.promote_bytes_per_layer == b.promote_bytes_per_layer &&
         a.fetch_mechanism == b.fetch_mechanism && a.max_prefetches_per_layer == b.max_prefetches_per_layer;
}

OrderedJson regret_json(const Regret& regret) {
  return {{"regret", regret.regret}, {"ratio", regret.ratio}, {"low", regret.low}, {"high", regret.high}};
}

double promotions_of(const EngineConfig& config, int64_t expert_bytes) {
  if (config.strategy == Strategy::kResident) return 0;
  return PromotionRate::of_bytes(config.promote_bytes_per_layer, expert_bytes).per_plan();
}

double milliseconds(double tok_s, int64_t batch) { return 1e3 * static_cast<double>(batch) / tok_s; }

// Enough to score again, in a file that stays small.
double five_digits(double value) {
  const double scale = std::pow(10, 4 - std::floor(std::log10(value)));
  return std::round(value * scale) / scale;
}

}  // namespace

BandwidthRule bandwidth_rule(const AnalysisInput& input, const Analysis& analysis) {
  BandwidthRule rule;
  rule.cpu_gbps = cpu_gbps(input.measurements);
  rule.link_gbps = link_gbps(input.measurements, input, analysis);
  rule.picks = rule.cpu_gbps > kRuleRatio * rule.link_gbps ? Strategy::kHybrid : Strategy::kOffload;
  const auto& ranked = analysis.search.ranked;
  for (size_t i = 0; i < ranked.size(); ++i) {
    if (ranked[i].config.strategy != rule.picks) continue;
    if (!rule.pick || ranked[i].score > ranked[*rule.pick].score) rule.pick = i;
  }
  return rule;
}

Pool candidate_pool(const AnalysisInput& input, const Analysis& analysis) {
  Pool pool = analysis.search.ranked;
  const SearchInput from = search_input(input, analysis.models);
  Predictor predictor(from);
  const size_t ranked = pool.size();
  for (size_t i = 0; i < ranked; ++i) {
    for (const CandidateSpec& spec : other_policies(pool[i].config, from, predictor.max_distinct())) {
      if (!engages_as_asked(predictor.replays(spec.use))) continue;
      CandidatePrediction candidate = predictor.predict(spec);
      const auto same = [&](const CandidatePrediction& known) { return is_same(known.config, candidate.config); };
      if (std::none_of(pool.begin(), pool.end(), same)) pool.push_back(std::move(candidate));
    }
  }
  return pool;
}

size_t chosen_index(const Pool& pool, const Profile& profile) {
  const auto chosen = std::find_if(profile.candidates.begin(), profile.candidates.end(),
                                   [](const Candidate& candidate) { return candidate.chosen; });
  FT_CHECK(chosen != profile.candidates.end());
  for (size_t i = 0; i < pool.size(); ++i) {
    const EngineConfig& config = pool[i].config;
    if (strategy_name(config.strategy) == chosen->strategy && config.threads == chosen->threads &&
        config.slots == chosen->slots && pool[i].split == chosen->split && pool[i].tok_s == chosen->predicted_tok_s) {
      return i;
    }
  }
  FT_CHECK(false);
  return 0;
}

std::vector<size_t> candidates_to_measure(const Pool& pool, size_t choice, std::optional<size_t> rule) {
  std::vector<size_t> chosen = {choice};
  const auto add = [&](size_t index) {
    if (std::find(chosen.begin(), chosen.end(), index) == chosen.end()) chosen.push_back(index);
  };
  if (rule) add(*rule);
  std::map<Strategy, std::vector<size_t>> by_strategy;
  for (size_t i = 0; i < pool.size(); ++i) by_strategy[pool[i].config.strategy].push_back(i);
  for (auto& [strategy, indexes] : by_strategy) {
    std::stable_sort(indexes.begin(), indexes.end(), [&](size_t a, size_t b) { return pool[a].score > pool[b].score; });
  }
  for (size_t turn = 0; turn < pool.size(); ++turn) {
    for (const auto& [strategy, indexes] : by_strategy) {
      if (chosen.size() < kMeasured && turn < indexes.size()) add(indexes[turn]);
    }
  }
  return chosen;
}

Regret regret_of(std::span<const MeasuredCandidate> measured) {
  FT_CHECK(!measured.empty());
  size_t best = 0;
  double fastest = 1;
  for (size_t i = 1; i < measured.size(); ++i) {
    FT_CHECK(measured[i].tok_s.size() >= 4 && measured[i].tok_s.size() == measured[i].choice_tok_s.size());
    const double relative = median_ratio(half(measured[i].tok_s, 1), half(measured[i].choice_tok_s, 1));
    if (relative <= fastest) continue;
    fastest = relative;
    best = i;
  }
  Regret regret;
  regret.best = best;
  if (best == 0) return regret;
  const std::vector<double> those = half(measured[best].tok_s, 0), ours = half(measured[best].choice_tok_s, 0);
  const Interval interval = ratio_interval(those, ours, kConfidence);
  regret.ratio = median_ratio(those, ours);
  regret.low = std::min(interval.low, regret.ratio);
  regret.high = std::max(interval.high, regret.ratio);
  regret.regret = regret.low > 1 ? regret.ratio - 1 : 0;
  return regret;
}

Regret regret_of_candidate(std::span<const MeasuredCandidate> measured, size_t best, size_t index) {
  Regret regret;
  regret.best = best;
  if (best == index) return regret;
  // Both to the choice: they may have run in different rounds. The interval adds the two in the logarithm.
  const auto to_choice = [&](size_t i) {
    const std::vector<double> those = half(measured[i].tok_s, 0), ours = half(measured[i].choice_tok_s, 0);
    const Interval interval = ratio_interval(those, ours, kConfidence);
    const double ratio = median_ratio(those, ours);
    return std::pair(ratio, Interval{std::min(interval.low, ratio), std::max(interval.high, ratio)});
  };
  const auto [mine, mine_interval] = to_choice(index);
  const auto [theirs, theirs_interval] = to_choice(best);
  regret.ratio = theirs / mine;
  const double down = std::hypot(std::log(theirs / theirs_interval.low), std::log(mine_interval.high / mine));
  const double up = std::hypot(std::log(theirs_interval.high / theirs), std::log(mine / mine_interval.low));
  regret.low = regret.ratio * std::exp(-down);
  regret.high = regret.ratio * std::exp(up);
  regret.regret = regret.low > 1 ? regret.ratio - 1 : 0;
  return regret;
}

double noise_of(std::span<const MeasuredCandidate> measured) {
  std::vector<double> shares;
  for (const MeasuredCandidate& one : measured) {
    const Interval interval = positive_median_interval(one.tok_s, kConfidence);
    shares.push_back((interval.high - interval.low) / 2 / median(one.tok_s));
  }
  return median(shares);
}

PredictionError prediction_error(const Pool& pool, std::span<const MeasuredCandidate> measured) {
  std::vector<double> errors;
  for (const MeasuredCandidate& one : measured) {
    errors.push_back(std::abs(median(one.tok_s) / pool[one.index].tok_s[0] - 1));  // of the times
  }
  return {median(errors), *std::max_element(errors.begin(), errors.end())};
}

OrderedJson cell_json(const std::string& cell, const Profile& profile, const Pool& pool,
                      std::span<const MeasuredCandidate> measured, const BandwidthRule& rule, const CellTimes& times,
                      int64_t expert_bytes) {
  const Regret regret = regret_of(measured);
  const PredictionError error = prediction_error(pool, measured);
  const int64_t batch = profile.conditions.batches[0];
  OrderedJson candidates = OrderedJson::array();
  for (const MeasuredCandidate& one : measured) {
    const CandidatePrediction& predicted = pool[one.index];
    const Interval interval = positive_median_interval(one.tok_s, kConfidence);
    OrderedJson tok_s = OrderedJson::array(), choice_tok_s = OrderedJson::array();
    for (const double value : one.tok_s) tok_s.push_back(five_digits(value));
    for (const double value : one.choice_tok_s) choice_tok_s.push_back(five_digits(value));
    candidates.push_back({{"strategy", std::string(strategy_name(predicted.config.strategy))},
                          {"threads", predicted.config.threads},
                          {"slots", predicted.config.slots},
                          {"split", predicted.split},
                          {"fetch_of_misses", predicted.config.fetch_of_misses},
                          {"promotions", promotions_of(predicted.config, expert_bytes)},
                          {"fetch_mechanism", std::string(fetch_mechanism_name(predicted.config.fetch_mechanism))},
                          {"max_prefetches_per_layer", predicted.config.max_prefetches_per_layer},
                          {"predicted_hit_rate", predicted.hit_rate.empty() ? 0 : predicted.hit_rate[0]},
                          {"hit_rate", one.hit_rate},
                          {"fetched_per_layer", one.fetched_per_layer},
                          {"cpu_per_layer", one.cpu_per_layer},
                          {"promoted_per_layer", one.promoted_per_layer},
                          {"predicted_ms", milliseconds(predicted.tok_s[0], batch)},
                          {"measured_ms", milliseconds(median(one.tok_s), batch)},
                          {"measured_low_ms", milliseconds(interval.high, batch)},
                          {"measured_high_ms", milliseconds(interval.low, batch)},
                          {"tok_s", tok_s},
                          {"choice_tok_s", choice_tok_s}});
  }
  OrderedJson by_rule = {
      {"cpu_gbps", rule.cpu_gbps}, {"link_gbps", rule.link_gbps}, {"picks", std::string(strategy_name(rule.picks))}};
  for (size_t i = 0; i < measured.size(); ++i) {
    if (rule.pick != measured[i].index) continue;
    by_rule["candidate"] = i;
    by_rule.update(regret_json(regret_of_candidate(measured, regret.best, i)));
  }
  OrderedJson json = {{"version", "1.1.0"},
                      {"cell", cell},
                      {"commit", profile.conditions.commit},
                      {"code_hash", profile.identity.build.code_hash},
                      {"device", profile.conditions.device},
                      {"machine", profile.identity.host.gpu_name.empty() ? profile.identity.host.cpu_model
                                                                         : profile.identity.host.gpu_name},
                      {"routing", profile.conditions.routing_source},
                      {"context", profile.conditions.contexts[0]},
                      {"batch", batch},
                      {"forced", profile.conditions.forced},
                      {"seconds", times.all_seconds},
                      {"tune_seconds", times.tune_seconds},
                      {"score_seconds", times.score_seconds},
                      {"choice", 0},
                      {"best", regret.best}};
  json.update(regret_json(regret));
  json["tie"] = profile.decision.tie;
  json["rule"] = by_rule;
  json["prediction_error_median"] = error.median;
  json["prediction_error_worst"] = error.worst;
  json["held_out_error"] = profile.cost_model.held_out_error;
  json["noise"] = noise_of(measured);
  json["candidates"] = candidates;
  return json;
}

}  // namespace ft::bench
