#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "engine/model/config_reader.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr double kMinTheta = 2;  // YaRN divides by log(theta)
constexpr double kMaxBeta = 1e4;
constexpr double kMaxScale = 100;  // mscale, attention_factor
constexpr double kMinScale = 1e-3;

// The value YaRN multiplies cos and sin by for a context `factor` times longer.
double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

// The objects that may hold rope settings, the one that wins first.
class RopeKeys {
 public:
  RopeKeys(const ConfigReader& top, std::string_view layer_type) : top_(top) {
    if (!layer_type.empty()) {
      take_layer_type(std::string(layer_type));
      return;
    }
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      if (const Json* given = top.object(key)) nested_.emplace_back(*given, std::string(key) + ".");
    }
  }
  bool has(std::string_view key) const {
    return std::any_of(nested_.begin(), nested_.end(), [&](const ConfigReader& r) { return r.has(key); });
  }
  // Who answers for a key: the first that has it, else the file's top level, where only rope_theta and
  // original_max_position_embeddings have a meaning.
  const ConfigReader& of(std::string_view key) const {
    for (const ConfigReader& reader : nested_) {
      if (reader.has(key)) return reader;
    }
    return top_;
  }
  double number(std::string_view key, double low, double high, double fallback) const {
    return has(key) ? of(key).number(key, low, high) : fallback;
  }

 private:
  void take_layer_type(const std::string& layer_type) {
    constexpr const char* kParameters = "rope_parameters";
    const Json* parameters = top_.object(kParameters);
    if (parameters == nullptr) top_.refuse(kParameters, "an object for each layer type");
    const ConfigReader of_types(*parameters, std::string(kParameters) + ".");
    const Json* given = of_types.object(layer_type);
    if (given == nullptr) of_types.refuse(layer_type, "an object, since there are such layers");
    nested_.emplace_back(*given, std::string(kParameters) + "." + layer_type + ".");
  }

  const ConfigReader& top_;
  std::vector<ConfigReader> nested_;
};

double yarn_attention_factor(const RopeKeys& keys, double factor) {
  if (keys.has("attention_factor")) return keys.number("attention_factor", kMinScale, kMaxScale, 1);
  const double mscale = keys.number("mscale", 0, kMaxScale, 0);
  const double all_dim = keys.number("mscale_all_dim", 0, kMaxScale, 0);
  if (mscale != 0 && all_dim != 0) return yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim);
  return yarn_mscale(factor, 1);
}

YarnSettings read_yarn(const RopeKeys& keys, const ConfigReader& top, int64_t max_positions) {
  YarnSettings yarn;
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const ConfigReader& holder = top.has(kOriginal) ? top : keys.of(kOriginal);
  yarn.original_positions = holder.integer(kOriginal, 1, kMaxModelPositions, max_positions);
  const double implied = static_cast<double>(max_positions) / static_cast<double>(yarn.original_positions);
  yarn.factor = keys.number("factor", 1, kMaxYarnFactor, std::clamp(implied, 1.0, kMaxYarnFactor));
  yarn.beta_fast = keys.number("beta_fast", kMinScale, kMaxBeta, 32);
  yarn.beta_slow = keys.number("beta_slow", kMinScale, kMaxBeta, 1);
  yarn.truncate = !keys.has("truncate") || keys.of("truncate").boolean("truncate", true);
  yarn.attention_factor = yarn_attention_factor(keys, yarn.factor);
  return yarn;
}

ProportionalSettings read_proportional(const RopeKeys& keys, int64_t rotary_dim) {
  ProportionalSettings settings;
  const double share = keys.number("partial_rotary_factor", 0, 1, 1);
  settings.rotating = static_cast<int64_t>(std::floor(share * static_cast<double>(rotary_dim) / 2));
  settings.factor = keys.number("factor", 1, kMaxYarnFactor, 1);
  return settings;
}

// The dimension that turns `rotations` times over the original context.
double correction_dimension(double rotations, const RopeSettings& settings) {
  const double length = static_cast<double>(settings.yarn->original_positions);
  return static_cast<double>(settings.rotary_dim) * std::log(length / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(settings.theta));
}

}  // namespace

RopeSettings read_rope_settings(const Json& config, int64_t rotary_dim, int64_t max_positions, double theta,
                                std::string_view layer_type) {
  const ConfigReader top(config);
  const RopeKeys keys(top, layer_type);
  RopeSettings settings;
  settings.rotary_dim = rotary_dim;
  settings.theta = keys.of("rope_theta").number("rope_theta", kMinTheta, kMaxRopeTheta, theta);
  const char* type_key = keys.has("rope_type") ? "rope_type" : "type";
  if (!keys.has(type_key)) return settings;
  const std::string type = keys.of(type_key).text(type_key, {"default", "yarn", "proportional"});
  if (type == "yarn") settings.yarn = read_yarn(keys, top, max_positions);
  if (type == "proportional") settings.proportional = read_proportional(keys, rotary_dim);
  return settings;
}

std::vector<float> rope_frequencies(const RopeSettings& settings) {
  const auto dim = static_cast<double>(settings.rotary_dim);
  double low = 0, high = 1;
  if (settings.yarn) {
    low = correction_dimension(settings.yarn->beta_fast, settings);
    high = correction_dimension(settings.yarn->beta_slow, settings);
    if (settings.yarn->truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    if (low == high) high += 0.001;
  }
  std::vector<float> frequencies(static_cast<size_t>(settings.rotary_dim / 2));
  for (size_t j = 0; j < frequencies.size(); ++j) {
    double frequency = std::pow(settings.theta, -2.0 * static_cast<double>(j) / dim);
    if (settings.yarn) {
      // Fast dimensions keep their frequency, slow ones are interpolated, a linear ramp lies between.
      const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
      frequency = frequency / settings.yarn->factor * ramp + frequency * (1 - ramp);
    }
    if (settings.proportional) {
      const bool turns = static_cast<int64_t>(j) < settings.proportional->rotating;
      frequency = turns ? frequency / settings.proportional->factor : 0;
    }
    frequencies[j] = static_cast<float>(frequency);
  }
  return frequencies;
}

RopeTable make_rope_table(const RopeSettings& settings, int64_t positions) {
  FT_CHECK(positions >= 0 && settings.rotary_dim >= 0);
  const std::vector<float> frequencies = rope_frequencies(settings);
  const float factor = settings.yarn ? static_cast<float>(settings.yarn->attention_factor) : 1.0f;
  RopeTable table{positions, settings.rotary_dim / 2, {}, {}};
  table.cos.reserve(static_cast<size_t>(positions) * frequencies.size());
  table.sin.reserve(static_cast<size_t>(positions) * frequencies.size());
  for (int64_t position = 0; position < positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      table.cos.push_back(static_cast<float>(std::cos(static_cast<double>(angle))) * factor);
      table.sin.push_back(static_cast<float>(std::sin(static_cast<double>(angle))) * factor);
    }
  }
  return table;
}

}  // namespace ft
