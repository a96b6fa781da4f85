// Rotary position embedding: the settings of config.json, and the cos/sin tables made once at start.
// Sources: RoFormer (Su et al. 2021); YaRN (Peng et al. 2023), read as transformers' modeling_rope_utils does.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/json.h"

namespace ft {

// cos and sin of position * frequency[j], (positions, half) row-major, the attention factor folded in.
struct RopeTable {
  int64_t positions = 0;
  int64_t half = 0;  // rotated dimensions / 2
  std::vector<float> cos;
  std::vector<float> sin;
};

struct YarnSettings {
  double factor = 1;
  int64_t original_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 1;  // multiplies cos and sin
  bool truncate = true;         // correction dimensions rounded outwards to whole ones
};

// rope_type "proportional" (Gemma 4): exponents are spread over the whole rotary_dim, but only the first `rotating`
// pairs turn. The others' frequency is 0, so that pair j stays (j, j + rotary_dim / 2).
struct ProportionalSettings {
  int64_t rotating = 0;  // pairs
  double factor = 1;     // divides frequencies
};

struct RopeSettings {
  int64_t rotary_dim = 0;
  double theta = 10000;
  std::optional<YarnSettings> yarn;  // at most one of these; neither: rope_type "default"
  std::optional<ProportionalSettings> proportional;
};

inline constexpr double kMaxRopeTheta = 1e12;
inline constexpr double kMaxYarnFactor = 1e4;
inline constexpr int64_t kMaxModelPositions = int64_t{1} << 24;

// Merges old keys (rope_theta, rope_scaling with "type") and new ones (rope_parameters with "rope_type"); keys of
// rope_parameters win over those of rope_scaling, those over top-level ones. Without rope_theta it is `theta`. With a
// layer type the settings are those of rope_parameters[layer_type], which must be there. Throws Error naming the key.
RopeSettings read_rope_settings(const Json& config, int64_t rotary_dim, int64_t max_positions, double theta = 10000,
                                std::string_view layer_type = {});

// (half): in double, rounded once.
std::vector<float> rope_frequencies(const RopeSettings& settings);

// The angle is an fp32 product of position and frequency; its cos and sin are correctly rounded from double.
RopeTable make_rope_table(const RopeSettings& settings, int64_t positions);

}  // namespace ft
