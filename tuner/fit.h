// From measured cells to the parameters of the cost model.
//
// Each arm is fitted where the other arms are empty; contention, and what of the link's fixed cost is sleep, on mixed
// cells. All of it is non-negative, with a robust loss of relative errors (one counts the same in a fast cell and in a
// slow one). Held-out cells are mixed and take
// no part. Intervals come from refitting with resampled residuals. No `decode` sample comes near this file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/statistics.h"
#include "tuner/cost_model.h"

namespace ft {

// One point of layer_sweep.
struct SweepCell {
  LayerCounts counts;
  double seconds = 0;  // of one layer; > 0
  bool held_out = false;
};
// At least two of hits, fetched and CPU are not empty.
bool is_mixed(const LayerCounts& counts);
// Every third mixed cell, so that all sizes are among them.
void mark_held_out(std::vector<SweepCell>& cells);

inline constexpr double kFitConfidence = 0.95;
inline constexpr int kFitDraws = 200;

struct CostFit {
  CostParameters cost;
  std::vector<Interval> intervals;    // per CostTerm, kFitConfidence
  std::vector<CostParameters> draws;  // the refits behind them: for intervals of whatever is computed from the model
  double fit_error = 0;               // median relative error of the fitted cells
  double held_out_error = 0;          // of the held-out ones; 0 when there are none
  double held_out_error_without_fixed_costs = 0;  // same, refitted with every fixed cost forced to zero
  // Per CostTerm: same, refitted with this one forced to zero, which says what the term is there for. 0 when no cell is
  // held out.
  std::vector<double> held_out_error_without;
  int64_t cells_fitted = 0, cells_held_out = 0;
};
// REQUIRES positive times. Throws Error(kFailed) naming the arm when there is no cell with all arms empty or none of an
// arm alone that the cells use in a mix.
CostFit fit_cost(Device device, int threads, std::span<const SweepCell> cells, uint64_t seed, int draws = kFitDraws);

// One point of `dense`.
struct DenseCell {
  int tokens = 1;
  int64_t context = 0;
  double seconds = 0;         // whole step as measured
  double expert_seconds = 0;  // of them spent in MoE layers, by the model fitted before
};
struct DenseFit {
  DenseCost cost;
  Interval fixed, per_token, per_position, per_further_position;
  std::vector<DenseCost> draws;
  double fit_error = 0;
};
// REQUIRES at least one cell.
DenseFit fit_dense(int threads, std::span<const DenseCell> cells, uint64_t seed, int draws = kFitDraws);

}  // namespace ft
