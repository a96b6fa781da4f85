#include "tuner/measurements.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "engine/runtime/device.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "probes/measure.h"
#include "tuner/cells.h"
#include "tuner/engaged_terms.h"
#include "tuner/prediction.h"

namespace ft {
namespace {

double at(const Measurement& measurement, const char* key) {
  const auto found = measurement.at.find(key);
  return found == measurement.at.end() ? 0 : found->second;
}
int count_at(const Measurement& measurement, const char* key) {
  return static_cast<int>(std::lround(at(measurement, key)));
}

bool usable(const Measurement& measurement, std::string_view probe) {
  return measurement.probe == probe && !measurement.values.empty();
}

Parameter parameter(std::string name, std::string_view unit, double value, const Interval& interval) {
  return {.name = std::move(name),
          .unit = std::string(unit),
          .value = value,
          .low = std::min(value, interval.low),
          .high = std::max(value, interval.high),
          .held_out_error_without = {}};
}

}  // namespace

Measurement to_measurement(std::string_view probe, const Samples& samples) {
  return {std::string(probe),  samples.name,    samples.unit, samples.values, samples.discarded,
          samples.stop_reason, samples.reduced, samples.at,   samples.remarks};
}

void append_samples(std::vector<Measurement>& measurements, std::string_view probe, std::span<const Samples> more) {
  for (const Samples& samples : more) {
    const std::string_view listed = samples.name.starts_with(kYardstickPrefix) ? kYardstickProbe : probe;
    const auto found = std::find_if(measurements.begin(), measurements.end(),
                                    [&](const Measurement& m) { return m.probe == listed && m.name == samples.name; });
    if (found == measurements.end()) continue;
    found->values.insert(found->values.end(), samples.values.begin(), samples.values.end());
    found->discarded += samples.discarded;
    const auto others = samples.at.find("others_share");
    if (others != samples.at.end()) {
      double& share = found->at["others_share"];
      share = std::max(share, others->second);
    }
  }
}

std::vector<Samples> samples_of(std::span<const Measurement> measurements, std::string_view probe) {
  std::vector<Samples> samples;
  for (const Measurement& m : measurements) {
    if (!usable(m, probe)) continue;
    samples.push_back({m.name, m.unit, m.values, m.discarded, m.stop_reason, m.reduced, m.at, m.remarks});
  }
  return samples;
}

double mem_read_gbps(std::span<const Measurement> measurements, int threads) {
  double best = 0;
  for (const Measurement& m : measurements) {
    if (!usable(m, "stream") || !m.name.starts_with("mem_read") || count_at(m, "threads") != threads) continue;
    best = std::max(best, median(m.values));
  }
  return best;
}

namespace {

// The series of pcie_linear with the largest copies to the device.
const Measurement* largest_to_device(std::span<const Measurement> measurements) {
  const Measurement* largest = nullptr;
  for (const Measurement& m : measurements) {
    if (!usable(m, "pcie_linear") || !m.name.starts_with("h2d.")) continue;
    if (largest == nullptr || at(m, "bytes") > at(*largest, "bytes")) largest = &m;
  }
  return largest;
}

}  // namespace

double ceiling_gbps(std::span<const Measurement> measurements, const EngineConfig& config) {
  const double memory = mem_read_gbps(measurements, config.threads);
  if (config.device == Device::kHost) return memory;
  const bool fetches = config.strategy == Strategy::kOffload || config.strategy == Strategy::kHybrid;
  const bool computes = config.strategy == Strategy::kCpu || config.strategy == Strategy::kHybrid;
  const Measurement* link = largest_to_device(measurements);
  const double link_gbps = link == nullptr ? 0 : median(link->values) / config.link_slowdown;
  return (fetches ? link_gbps : 0) + (computes ? memory : 0);
}

std::string link_condition(std::span<const Measurement> measurements) {
  const Measurement* link = largest_to_device(measurements);
  if (link == nullptr) return {};
  const std::string state = link_text(count_at(*link, "link_generation"), count_at(*link, "link_width"));
  char rate[64];
  std::snprintf(rate, sizeof rate, "%.1f GB/s to the device", median(link->values));
  return (state.empty() ? "generation and width not known" : state + " under load") + ", " + rate;
}

std::vector<ThreadModel> fit_models(std::span<const Measurement> measurements, Device device, int moe_layers,
                                    uint64_t seed) {
  std::set<int> threads;
  for (const Measurement& m : measurements) {
    if (usable(m, "layer_sweep")) threads.insert(count_at(m, "threads"));
  }
  std::vector<ThreadModel> models;
  const std::vector<Samples> sweep = samples_of(measurements, "layer_sweep");
  const std::vector<Samples> steps = samples_of(measurements, "dense");
  const std::vector<Samples> rows = samples_of(measurements, "host_rows");
  const std::vector<Samples> gather = samples_of(measurements, "pcie_gather");
  for (const int count : threads) {
    const std::vector<SweepCell> cells = sweep_cells(sweep, count);
    ThreadModel model;
    model.cost = fit_cost(device, count, cells, seed);
    add_copy_engine_terms(sweep, gather, seed, model.cost);
    add_look_ahead_terms(sweep, seed, model.cost);
    add_copier_term(steps, seed, model.cost);
    std::vector<DenseCell> dense = dense_cells(steps, model.cost.cost, device, moe_layers);
    if (dense.empty()) continue;
    add_row_seconds(rows, count, dense);
    model.dense = fit_dense(count, dense, seed);
    models.push_back(std::move(model));
  }
  if (models.empty()) {
    throw Error(ErrorKind::kFailed, {.what = "layer_sweep and dense have no thread count in common that was measured",
                                     .action = "give a larger --budget"});
  }
  return models;
}

CostModelRecord cost_model_record(const std::vector<ThreadModel>& models, int moe_layers) {
  CostModelRecord record;
  const double layers = moe_layers;
  record.parameters.push_back(parameter(std::string(kMoeLayersParameter), "1", layers, {layers, layers}));
  double error = 0, error_without = 0;
  for (const ThreadModel& model : models) {
    const std::string suffix = ".threads=" + std::to_string(model.cost.cost.threads);
    for (const CostTermInfo& term : cost_terms()) {
      const auto index = static_cast<size_t>(term.term);
      const Interval& interval = model.cost.intervals[index];
      const double value = model.cost.cost[term.term];
      if (term.engaged_only && value == 0 && interval.high == 0) continue;  // not measured here
      record.parameters.push_back(parameter(std::string(term.name) + suffix, term.unit, value, interval));
      if (!term.engaged_only && model.cost.cells_held_out > 0) {
        record.parameters.back().held_out_error_without = model.cost.held_out_error_without[index];
      }
    }
    record.parameters.push_back(parameter("dense_fixed" + suffix, "s", model.dense.cost.fixed, model.dense.fixed));
    record.parameters.push_back(
        parameter("dense_per_token" + suffix, "s", model.dense.cost.per_token, model.dense.per_token));
    record.parameters.push_back(
        parameter("dense_per_position" + suffix, "s", model.dense.cost.per_position, model.dense.per_position));
    record.parameters.push_back(parameter("dense_per_further_position" + suffix, "s",
                                          model.dense.cost.per_further_position, model.dense.per_further_position));
    error += model.cost.held_out_error;
    error_without += model.cost.held_out_error_without_fixed_costs;
    record.cells_fitted += model.cost.cells_fitted;
    record.cells_held_out += model.cost.cells_held_out;
  }
  const auto count = static_cast<double>(models.size());
  record.held_out_error = error / count;
  record.held_out_error_without_fixed_costs = error_without / count;
  return record;
}

const Measurement* decode_series(std::span<const Measurement> measurements, size_t index, int64_t context,
                                 int64_t batch) {
  for (const Measurement& m : measurements) {
    if (usable(m, "decode") && count_at(m, "candidate") == static_cast<int>(index) &&
        static_cast<int64_t>(at(m, "context")) == context && count_at(m, "batch") == static_cast<int>(batch)) {
      return &m;
    }
  }
  return nullptr;
}

bool is_filled(const Measurement& point) {
  const auto filled = point.at.find("context_filled"), asked = point.at.find("context");
  return filled == point.at.end() || asked == point.at.end() || filled->second >= asked->second;
}

}  // namespace ft
