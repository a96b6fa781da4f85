#include "tuner/cells.h"

#include <algorithm>
#include <cmath>

#include "probes/dense.h"
#include "probes/layer_sweep.h"

namespace ft {
namespace {

double real_coordinate(const Samples& samples, const char* name) {
  const auto found = samples.at.find(name);
  return found == samples.at.end() ? 0 : found->second;
}

int coordinate(const Samples& samples, const char* name) {
  return static_cast<int>(std::lround(real_coordinate(samples, name)));
}

// Of series that were measured together: the time of each, in the unit of its values, at the median speed of the
// rounds. Median polish (Tukey, Exploratory Data Analysis, 1977) of times that are cell x round.
std::vector<double> typical_values(const std::vector<const Samples*>& series) {
  constexpr int kPolishes = 3;  // the third moves cells by less than 1 %
  if (series.empty()) return {};
  std::vector<double> cells;
  size_t rounds = 0;
  for (const Samples* one : series) {
    cells.push_back(median(one->values));
    rounds = std::max(rounds, one->values.size());
  }
  for (int polish = 0; polish < kPolishes; ++polish) {
    std::vector<double> speeds;
    for (size_t round = 0; round < rounds; ++round) {
      std::vector<double> ratios;  // a cut round lacks some
      for (size_t c = 0; c < cells.size(); ++c) {
        if (round < series[c]->values.size()) ratios.push_back(series[c]->values[round] / cells[c]);
      }
      speeds.push_back(median(ratios));
    }
    const double middle = median(speeds);
    for (size_t c = 0; c < cells.size(); ++c) {
      std::vector<double> values;
      for (size_t round = 0; round < series[c]->values.size(); ++round) {
        values.push_back(series[c]->values[round] / speeds[round] * middle);
      }
      cells[c] = median(values);
    }
  }
  return cells;
}

std::vector<const Samples*> with_threads(std::span<const Samples> samples, int threads) {
  std::vector<const Samples*> chosen;
  for (const Samples& one : samples) {
    if (!one.values.empty() && coordinate(one, "threads") == threads) chosen.push_back(&one);
  }
  return chosen;
}

}  // namespace

std::vector<SweepCell> sweep_cells(std::span<const Samples> samples, int threads) {
  std::vector<SweepCell> cells;
  std::vector<const Samples*> chosen = with_threads(samples, threads);
  std::erase_if(chosen, [](const Samples* one) {
    return one->at.contains(kLookAheadCoordinate) || one->at.contains(kCopyEngineCoordinate);
  });
  const std::vector<double> typical = typical_values(chosen);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Samples& one = *chosen[i];
    SweepCell cell;
    cell.counts.tokens = coordinate(one, "tokens");
    cell.counts.hits = coordinate(one, "hits");
    cell.counts.fetched = coordinate(one, "fetched");
    cell.counts.cpu = coordinate(one, "cpu");
    cell.counts.promoted = coordinate(one, "promoted");
    cell.counts.hit_picks = coordinate(one, "hit_picks");
    cell.counts.fetched_picks = coordinate(one, "fetched_picks");
    cell.counts.cpu_picks = coordinate(one, "cpu_picks");
    cell.seconds = typical[i] * 1e-6;
    cells.push_back(cell);
  }
  mark_held_out(cells);
  return cells;
}

std::vector<DenseCell> dense_cells(std::span<const Samples> samples, const CostParameters& cost, Device device,
                                   int layers) {
  std::vector<DenseCell> cells;
  std::vector<const Samples*> chosen = with_threads(samples, cost.threads);
  std::erase_if(chosen, [](const Samples* one) { return one->at.contains(kCopierCoordinate); });
  const std::vector<double> typical = typical_values(chosen);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Samples& one = *chosen[i];
    LayerCounts counts;
    counts.tokens = coordinate(one, "tokens");
    counts.hit_picks = coordinate(one, "hit_picks");
    // A mean over steps is no whole number; the model is linear in hits, so what is between two of them counts by
    // share.
    const double hits = real_coordinate(one, "hits");
    counts.hits = static_cast<int>(std::floor(hits));
    const double below = layer_seconds(cost, device, counts);
    const double share = hits - counts.hits;
    if (share > 0) ++counts.hits;
    DenseCell cell;
    cell.tokens = counts.tokens;
    cell.context = coordinate(one, "context");
    cell.seconds = typical[i] * 1e-6;
    cell.expert_seconds = layers * ((1 - share) * below + share * layer_seconds(cost, device, counts));
    cells.push_back(cell);
  }
  return cells;
}

void add_row_seconds(std::span<const Samples> host_rows, int threads, std::span<DenseCell> cells) {
  const std::vector<const Samples*> chosen = with_threads(host_rows, threads);
  const std::vector<double> typical = typical_values(chosen);
  for (DenseCell& cell : cells) {
    double added = 0;
    bool is_new = false, again = false;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (coordinate(*chosen[i], "tokens") != cell.tokens) continue;
      const bool repeated = coordinate(*chosen[i], "again") == 1;
      (repeated ? again : is_new) = true;
      added += repeated ? -typical[i] : typical[i];
    }
    if (is_new && again) cell.seconds += std::max(0.0, added) * 1e-6;
  }
}

}  // namespace ft
