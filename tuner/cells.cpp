#include "tuner/cells.h"

#include <cmath>

namespace ft {
namespace {

double real_coordinate(const Samples& samples, const char* name) {
  const auto found = samples.at.find(name);
  return found == samples.at.end() ? 0 : found->second;
}

int coordinate(const Samples& samples, const char* name) {
  return static_cast<int>(std::lround(real_coordinate(samples, name)));
}

}  // namespace

std::vector<SweepCell> sweep_cells(std::span<const Samples> samples, int threads) {
  std::vector<SweepCell> cells;
  for (const Samples& one : samples) {
    if (one.values.empty() || coordinate(one, "threads") != threads) continue;
    SweepCell cell;
    cell.counts.tokens = coordinate(one, "tokens");
    cell.counts.hits = coordinate(one, "hits");
    cell.counts.fetched = coordinate(one, "fetched");
    cell.counts.cpu = coordinate(one, "cpu");
    cell.counts.promoted = coordinate(one, "promoted");
    cell.counts.hit_picks = coordinate(one, "hit_picks");
    cell.counts.fetched_picks = coordinate(one, "fetched_picks");
    cell.counts.cpu_picks = coordinate(one, "cpu_picks");
    cell.seconds = median(one.values) * 1e-6;
    cells.push_back(cell);
  }
  mark_held_out(cells);
  return cells;
}

std::vector<DenseCell> dense_cells(std::span<const Samples> samples, const CostParameters& cost, Device device,
                                   int layers) {
  std::vector<DenseCell> cells;
  for (const Samples& one : samples) {
    if (one.values.empty() || coordinate(one, "threads") != cost.threads) continue;
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
    cell.seconds = median(one.values) * 1e-6;
    cell.expert_seconds = layers * ((1 - share) * below + share * layer_seconds(cost, device, counts));
    cells.push_back(cell);
  }
  return cells;
}

}  // namespace ft
