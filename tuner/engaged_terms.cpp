#include "tuner/engaged_terms.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "probes/dense.h"
#include "probes/layer_sweep.h"
#include "tuner/nnls.h"

namespace ft {
namespace {

double coordinate(const Samples& samples, const char* name) {
  const auto found = samples.at.find(name);
  return found == samples.at.end() ? 0 : found->second;
}

// Points (n, seconds) -> fixed and per n, both non-negative, least squares of relative errors.
LinkLine fit_line(const std::vector<std::pair<double, double>>& points) {
  std::vector<double> a, b;
  for (const auto& [n, seconds] : points) {
    if (seconds <= 0) continue;
    a.insert(a.end(), {1 / seconds, n / seconds});
    b.push_back(1);
  }
  if (b.empty()) return {};
  const std::vector<double> x = nnls(a, b, 2);
  return {x[0], x[1]};
}

// What a series' value is taken to be: the median of its samples, or of a resampling of them.
using Typical = std::function<double(const std::vector<double>&)>;

Typical resampled(Random& random) {
  return [&random](const std::vector<double>& values) {
    std::vector<double> drawn;
    for (size_t i = 0; i < values.size(); ++i) drawn.push_back(values[random.below(values.size())]);
    return median(drawn);
  };
}
double plain_median(const std::vector<double>& values) { return median(values); }

LinkLine line_of(std::span<const Samples> gather, std::string_view prefix, const Typical& typical) {
  std::vector<std::pair<double, double>> points;
  for (const Samples& one : gather) {
    if (!one.name.starts_with(prefix) || one.values.empty()) continue;
    const double gbps = typical(one.values);
    if (gbps > 0) points.emplace_back(coordinate(one, "n"), coordinate(one, "bytes") / (gbps * 1e9));
  }
  return fit_line(points);
}

void set_copy_engine(const LinkLine& gather, const LinkLine& engine, CostParameters& cost) {
  cost[CostTerm::kCopyEngineFixed] = std::max(0.0, cost[CostTerm::kLinkFixed] + engine.fixed - gather.fixed);
  cost[CostTerm::kCopyEnginePerExpert] = cost[CostTerm::kLinkPerExpert] * engine.per_blob / gather.per_blob;
}

// By a coordinate `key`: seconds a layer that the series with `what` take longer than their pairs, of every round.
// threads: of these only; 0: of all.
std::map<int, std::vector<double>> pair_differences(std::span<const Samples> sweep, const char* what, const char* key,
                                                    int threads) {
  std::map<int, std::vector<double>> with, without, differences;
  for (const Samples& one : sweep) {
    if (!one.at.contains(what)) continue;
    if (threads != 0 && static_cast<int>(coordinate(one, "threads")) != threads) continue;
    (coordinate(one, what) > 0 ? with : without)[static_cast<int>(coordinate(one, key))] = one.values;
  }
  for (const auto& [at, values] : with) {
    const std::vector<double>& other = without[at];
    for (size_t i = 0; i < std::min(values.size(), other.size()); ++i) {
      differences[at].push_back(1e-6 * (values[i] - other[i]));
    }
  }
  std::erase_if(differences, [](const auto& entry) { return entry.second.empty(); });
  return differences;
}

// By how much the fewest experts and every one more take longer, either of them perhaps shorter.
void add_differences(const std::map<int, std::vector<double>>& differences, const Typical& typical,
                     CostParameters& cost) {
  const auto& [few, of_few] = *differences.begin();
  const auto& [many, of_many] = *differences.rbegin();
  const double at_few = typical(of_few), slope = (typical(of_many) - at_few) / (many - few);
  cost[CostTerm::kCopyEngineFixed] = std::max(0.0, cost[CostTerm::kLinkFixed] + at_few - slope * few);
  cost[CostTerm::kCopyEnginePerExpert] = std::max(0.0, cost[CostTerm::kLinkPerExpert] + slope);
}

void set_look_ahead(const std::map<int, std::vector<double>>& differences, const Typical& typical,
                    CostParameters& cost) {
  std::vector<std::pair<double, double>> points;
  points.reserve(differences.size());
  for (const auto& [tokens, values] : differences) points.emplace_back(tokens, typical(values));
  const LinkLine line = fit_line(points);
  cost[CostTerm::kLookAhead] = line.fixed;
  cost[CostTerm::kLookAheadPerToken] = line.per_blob;
}

// Seconds that the copier adds to a step: of every round of every pair.
std::vector<double> copier_differences(std::span<const Samples> dense, int threads) {
  std::vector<double> differences;
  for (const Samples& with : dense) {
    if (coordinate(with, kCopierCoordinate) == 0 || static_cast<int>(coordinate(with, "threads")) != threads) continue;
    for (const Samples& without : dense) {
      const auto same = [&](const char* key) { return coordinate(with, key) == coordinate(without, key); };
      if (coordinate(without, kCopierCoordinate) != 0 || !same("threads") || !same("tokens") || !same("context"))
        continue;
      for (size_t i = 0; i < std::min(with.values.size(), without.values.size()); ++i) {
        differences.push_back(1e-6 * (with.values[i] - without.values[i]));
      }
    }
  }
  return differences;
}

void set_interval(CostTerm term, CostFit& fit) {
  const auto index = static_cast<size_t>(term);
  const double value = fit.cost[term];
  std::vector<double> values;
  for (const CostParameters& draw : fit.draws) values.push_back(draw[term]);
  Interval& interval = fit.intervals.at(index);
  interval = {value, value};
  if (values.empty()) return;
  const double tail = (1 - kFitConfidence) / 2;
  interval = {std::min(value, quantile(values, tail)), std::max(value, quantile(values, 1 - tail))};
}

}  // namespace

LinkLine link_line(std::span<const Samples> gather, std::string_view prefix) {
  return line_of(gather, prefix, plain_median);
}

void add_copy_engine_terms(std::span<const Samples> sweep, std::span<const Samples> gather, uint64_t seed,
                           CostFit& fit) {
  const auto differences = pair_differences(sweep, kCopyEngineCoordinate, "fetched", 0);
  const LinkLine by_sm = link_line(gather, "sm_gather"), by_engine = link_line(gather, "copy_engine");
  Random random(seed);
  if (differences.size() >= 2) {
    add_differences(differences, plain_median, fit.cost);
    for (CostParameters& draw : fit.draws) add_differences(differences, resampled(random), draw);
  } else if (by_sm.per_blob > 0 && by_engine.per_blob > 0) {
    set_copy_engine(by_sm, by_engine, fit.cost);
    for (CostParameters& draw : fit.draws) {
      const LinkLine sm = line_of(gather, "sm_gather", resampled(random));
      const LinkLine engine = line_of(gather, "copy_engine", resampled(random));
      const bool usable = sm.per_blob > 0 && engine.per_blob > 0;
      set_copy_engine(usable ? sm : by_sm, usable ? engine : by_engine, draw);
    }
  } else {
    return;
  }
  set_interval(CostTerm::kCopyEngineFixed, fit);
  set_interval(CostTerm::kCopyEnginePerExpert, fit);
}

void add_copier_term(std::span<const Samples> dense, uint64_t seed, CostFit& fit) {
  const std::vector<double> differences = copier_differences(dense, fit.cost.threads);
  if (differences.empty()) return;
  fit.cost[CostTerm::kCopier] = std::max(0.0, plain_median(differences));
  Random random(seed);
  for (CostParameters& draw : fit.draws) draw[CostTerm::kCopier] = std::max(0.0, resampled(random)(differences));
  set_interval(CostTerm::kCopier, fit);
}

void add_look_ahead_terms(std::span<const Samples> sweep, uint64_t seed, CostFit& fit) {
  const auto differences = pair_differences(sweep, kLookAheadCoordinate, "tokens", fit.cost.threads);
  if (differences.empty()) return;
  set_look_ahead(differences, plain_median, fit.cost);
  Random random(seed);
  for (CostParameters& draw : fit.draws) set_look_ahead(differences, resampled(random), draw);
  set_interval(CostTerm::kLookAhead, fit);
  set_interval(CostTerm::kLookAheadPerToken, fit);
}

}  // namespace ft
