// Measurements as a profile holds them, and what the fit and the decision read from them. Pure: a recorded machine's
// measurements give the same decision anywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "probes/probe.h"
#include "profiles/profile.h"
#include "tuner/fit.h"
#include "tuner/search.h"

namespace ft {

Measurement to_measurement(std::string_view probe, const Samples& samples);

// The series of one probe, as the probe gave them.
std::vector<Samples> samples_of(std::span<const Measurement> measurements, std::string_view probe);
// Median of mem_read with this thread count, GB/s; 0 when it was not measured.
double mem_read_gbps(std::span<const Measurement> measurements, int threads);

// One fitted model per thread count that has the cells it needs. Throws Error(kFailed) when there is none.
std::vector<ThreadModel> fit_models(std::span<const Measurement> measurements, Device device, int moe_layers,
                                    uint64_t seed);
CostModelRecord cost_model_record(const std::vector<ThreadModel>& models);

// The series of `decode` for candidate `index` at a point; null when it was not run.
const Measurement* decode_series(std::span<const Measurement> measurements, size_t index, int64_t context,
                                 int64_t batch);

}  // namespace ft
