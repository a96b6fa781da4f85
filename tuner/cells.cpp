#include "tuner/cells.h"

#include <cmath>

namespace ft {
namespace {

constexpr double kCellQuantile = 0.25;

int coordinate(const Samples& samples, const char* name) {
  const auto found = samples.at.find(name);
  return found == samples.at.end() ? 0 : static_cast<int>(std::lround(found->second));
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
    cell.seconds = quantile(one.values, kCellQuantile) * 1e-6;
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
    counts.hits = coordinate(one, "hits");
    counts.hit_picks = coordinate(one, "hit_picks");
    DenseCell cell;
    cell.tokens = counts.tokens;
    cell.context = coordinate(one, "context");
    cell.seconds = quantile(one.values, kCellQuantile) * 1e-6;
    cell.expert_seconds = layers * layer_seconds(cost, device, counts);
    cells.push_back(cell);
  }
  return cells;
}

}  // namespace ft
