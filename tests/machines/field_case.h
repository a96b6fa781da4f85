// Published cases of tuning that went wrong, and what our cost model says of them.
//
// The bench of such a case gives bandwidths and no fixed costs. What it leaves open (cases.json: "unknown_costs" and
// "assumed") becomes draws of the cost model, independent and log-uniform over its range; an expert of another size
// than the benched one takes between its share of the bytes and all of the benched expert's time. The real search()
// then predicts with an interval as wide as the ignorance is. Such a prediction is nothing to be right or wrong about;
// what decides is measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/statistics.h"
#include "tuner/decide.h"
#include "tuner/search.h"

namespace ft {

struct Range {
  double low = 0, centre = 0, high = 0;
};

struct ServedStrategy {
  Strategy strategy{};
  int threads = 1;
  std::vector<Interval> tok_s;  // per batch, as published; a number without a range has low == high
};

struct FieldCase {
  std::string id;
  ExpertGeometry expert;
  int moe_layers = 0;
  double expert_bytes = 0, benched_expert_bytes = 0;
  double cpu_gbps = 0;
  Range link_gbps;
  Range compute_contention, link_contention;
  Range dense_seconds, slots;
  double gpu_memory_gbps = 0;
  std::vector<std::string> routing;  // presets that stand for workloads nobody published; the first is the centre
  std::string ratio_rule;            // what was picked from the bench
  bool relative = false;             // rates are relative to offload's
  int64_t context = 128;
  std::vector<int64_t> batches;
  std::vector<ServedStrategy> served;
  std::string right;  // a strategy, or "tie: offload"

  bool is_tie() const { return right.starts_with("tie"); }
  std::string right_strategy() const { return is_tie() ? right.substr(5) : right; }
};

struct FieldCases {
  std::map<std::string, Range> unknown;  // seconds or ratios, by name
  double noise = 0;                      // share of a number without a range
  std::vector<FieldCase> cases;
};
FieldCases read_field_cases(const std::string& path);

// What the bench alone says: the strategies that were served, each with the split the model thinks best, ranked as
// search() ranks. `draws` 0 gives the centre alone: a tuner that believes its bench.
SearchResult predict_from_bench(const FieldCases& all, const FieldCase& one, int draws);

// How served numbers become the rounds of a decode run.
enum class Spread : uint8_t {
  kPublished,  // ranges evenly filled, numbers without one as they are
  kNoise,      // every value drawn from its range; a number without one has `noise` around it
  kOneRange,   // drawn for all strategies from what their ranges span together: a tie, whatever the centres say
};

// The served numbers as what `decode` measures, `rounds` values for each candidate and batch.
struct ServedRun {
  SearchResult search;
  std::vector<Measurement> measurements;
  std::vector<size_t> measured;
};
ServedRun serve(const FieldCases& all, const FieldCase& one, const SearchResult& predicted, int rounds, Spread spread,
                uint64_t seed);
Decided decide(const FieldCase& one, const ServedRun& run);

}  // namespace ft
