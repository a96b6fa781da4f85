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

// `more` samples of series of `probe` that are there, with their yardsticks; what is not there is left out.
void append_samples(std::vector<Measurement>& measurements, std::string_view probe, std::span<const Samples> more);

// The series of one probe, as the probe gave them.
std::vector<Samples> samples_of(std::span<const Measurement> measurements, std::string_view probe);
// Median of mem_read with this thread count, GB/s; 0 when it was not measured.
double mem_read_gbps(std::span<const Measurement> measurements, int threads);
// Largest rate at which the candidate can read experts. Host: mem_read with its threads. Cuda: the link (pcie_linear to
// the device, over link_slowdown) where it fetches, plus mem_read where its CPU computes; 0 with every expert resident.
double ceiling_gbps(std::span<const Measurement> measurements, const EngineConfig& config);
// Of a GPU: "PCIe 5 x16 under load, 55.1 GB/s to the device"; empty when the link was not measured.
std::string link_condition(std::span<const Measurement> measurements);

// One fitted model per thread count that has the cells it needs. Throws Error(kFailed) when there is none.
std::vector<ThreadModel> fit_models(std::span<const Measurement> measurements, Device device, int moe_layers,
                                    uint64_t seed);
// With the number of MoE layers beside the parameters: tuner/prediction.h reads them back.
CostModelRecord cost_model_record(const std::vector<ThreadModel>& models, int moe_layers);

// The series of `decode` for candidate `index` at a point; null when it was not run.
const Measurement* decode_series(std::span<const Measurement> measurements, size_t index, int64_t context,
                                 int64_t batch);
// The KV cache of a decode series was filled to the context asked for.
bool is_filled(const Measurement& series);

}  // namespace ft
