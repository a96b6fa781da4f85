// From the probes' samples to the cells that the cost model is fitted to. A cell is the median of its samples, as the
// measured rate of a decode run is: whatever else runs on the machine delays both alike.
#pragma once

#include <span>
#include <vector>

#include "probes/probe.h"
#include "tuner/fit.h"

namespace ft {

// The points of layer_sweep with this thread count, held-out ones marked.
std::vector<SweepCell> sweep_cells(std::span<const Samples> samples, int threads);

// The points of dense with this thread count; `layers` MoE layers of hits are taken out by `cost`.
std::vector<DenseCell> dense_cells(std::span<const Samples> samples, const CostParameters& cost, Device device,
                                   int layers);

}  // namespace ft
