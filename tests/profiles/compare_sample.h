// Profiles made by hand for the comparison: a few groups of series with a yardstick each, as a tuning writes them.
#pragma once

#include <functional>
#include <string>

#include "profiles/profile.h"

// `time_of` gives the time of a sample in microseconds: (metric's name, its microseconds on a quiet machine, round).
using TimeOf = std::function<double(const std::string&, double, int)>;

// 4 kernels ("expert_single"), 16 cells of "layer_sweep" and the two candidates of "decode" at two points, 31 samples
// each, 186 of kernels and 200 of decode; yardsticks and plain reads go through time_of too.
ft::Profile compared_profile(const TimeOf& time_of);

// Every sample within 1 % of its time.
ft::Profile quiet_profile(uint64_t seed);

ft::Measurement& series_of(ft::Profile& profile, const std::string& probe, const std::string& name);
void scale_times(ft::Measurement& measurement, double factor);
