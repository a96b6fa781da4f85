// From the probes' samples to the cells that the cost model is fitted to. A cell is a median of its samples, as the
// measured rate of a decode run is: whatever else runs on the machine delays both alike.
//
// The median is taken after the speed of each round is divided out. A machine with two speeds, half a second each,
// gives plain medians that are of either speed by chance (measured: 1.4x between cells that take the same time); a
// round takes all cells, so its speed is the median over cells of sample over cell.
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

// Adds what reading new rows of tables on disk costs: dense steps the same tokens again and again, whose rows are then
// in memory. Of host_rows with this thread count and as many tokens as the cell, rows that are new without rows that
// are not. Text repeats n-grams, so this is the most that they cost.
void add_row_seconds(std::span<const Samples> host_rows, int threads, std::span<DenseCell> cells);

}  // namespace ft
