#include "engine/engine_config.h"

#include <array>
#include <utility>

namespace ft {
namespace {

// The spellings used on command lines and in profiles: keys, renaming one needs a profile migration.
constexpr std::array<std::pair<Strategy, std::string_view>, 4> kStrategyNames = {{
    {Strategy::kResident, "resident"},
    {Strategy::kOffload, "offload"},
    {Strategy::kCpu, "cpu"},
    {Strategy::kHybrid, "hybrid"},
}};
constexpr std::array<std::pair<FetchMechanism, std::string_view>, 2> kFetchMechanismNames = {{
    {FetchMechanism::kSm, "sm"},
    {FetchMechanism::kCopyEngine, "copy_engine"},
}};
constexpr std::array<std::pair<Numerics, std::string_view>, 2> kNumericsNames = {{
    {Numerics::kServe, "serve"},
    {Numerics::kReference, "reference"},
}};
constexpr std::array<std::pair<DeepseekArithmetic, std::string_view>, 2> kDeepseekArithmeticNames = {{
    {DeepseekArithmetic::kAuthors, "authors"},
    {DeepseekArithmetic::kTransformers, "transformers"},
}};

template <class Table, class Value>
std::string_view name_of(const Table& table, Value value) {
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  return "unknown";
}

template <class Value, size_t n>
std::optional<Value> value_of(const std::array<std::pair<Value, std::string_view>, n>& table, std::string_view name) {
  for (const auto& [value, candidate] : table) {
    if (candidate == name) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view strategy_name(Strategy strategy) { return name_of(kStrategyNames, strategy); }
std::optional<Strategy> strategy_by_name(std::string_view name) { return value_of(kStrategyNames, name); }

std::string_view device_name(Device device) { return device == Device::kHost ? "host" : "cuda"; }

std::string_view fetch_mechanism_name(FetchMechanism mechanism) { return name_of(kFetchMechanismNames, mechanism); }
std::optional<FetchMechanism> fetch_mechanism_by_name(std::string_view name) {
  return value_of(kFetchMechanismNames, name);
}

void drop_unusable_look_ahead(EngineConfig& config) {
  if (config.strategy == Strategy::kOffload || config.strategy == Strategy::kHybrid) return;
  config.look_ahead = LookAhead::kOff;
  config.max_prefetches_per_layer = 0;
}

std::optional<Numerics> numerics_by_name(std::string_view name) { return value_of(kNumericsNames, name); }
std::optional<DeepseekArithmetic> deepseek_arithmetic_by_name(std::string_view name) {
  return value_of(kDeepseekArithmeticNames, name);
}

}  // namespace ft
