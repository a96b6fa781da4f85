// A changed parameter of the cost model as what a machine would have to be.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/engine_config.h"

namespace ft {

// name: of a FlipKnob. now: its value, > 0. factor: empty: no value in the range changes the choice. expert_bytes: of
// one expert; 0: not known.
std::string change_words(std::string_view name, Device device, double now, std::optional<double> factor,
                         double expert_bytes);

// "0.0521 us", "0.52 us", "32.0 us", "156 us"; `more` decimals beside that.
std::string microseconds(double seconds, int more = 0);
// How much more than 1 the ratio, at least 1, is: "12 %", "less than 1 %".
std::string percent_more(double ratio);

}  // namespace ft
