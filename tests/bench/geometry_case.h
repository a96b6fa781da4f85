// The models that gpu-bench decodes: config.json alone, weights are made. All but the tiny one have the dense part of
// Qwen3-30B-A3B: 32 query heads of 4 key heads of 128, a vocabulary of 151,936.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/formats/format.h"

namespace ft::bench {

struct GeometryCase {
  std::string_view name;  // "A-nvfp4"
  int64_t hidden = 0, intermediate = 0;
  int experts = 0, top_k = 0, layers = 0;
  FormatId format{};  // of the experts; everything else is bf16
  bool tiny = false;  // small heads and vocabulary: for tests on the host device
};

// Largest banks of a case: at most kMaxBankBytes of host memory, which the machine locks once.
inline constexpr int64_t kMaxBankBytes = 96'000'000'000;

std::span<const GeometryCase> geometry_cases();
const GeometryCase* find_geometry_case(std::string_view name);  // null when there is none
std::string geometry_case_names();                              // "A-bf16, A-nvfp4, ..."

std::string config_json(const GeometryCase& geometry);
// Writes FOLDER/NAME/config.json and gives that folder. Throws Error(kFailed).
std::string write_config(const GeometryCase& geometry, const std::string& folder);

// Slots for `percent` of all experts, rounded to the nearest.
int64_t slots_of(const GeometryCase& geometry, double percent);

}  // namespace ft::bench
