// From the probes' samples to the cells that the cost model is fitted to. A cell is the lower
// quartile of its samples: whatever else runs on a machine only adds time, and adds it to single samples.
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
