// Does a profile fit this host, build and model? Every field that a start of ft-engine compares or checks, with the
// profile's value and the machine's. Pure: the machine comes from engine/program/machine.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/program/machine.h"
#include "kernels/base/json.h"
#include "profiles/profile.h"

namespace ft {

struct CheckedMachine {
  ServedHost host;
  BuildIdentity build;
  std::string device_refusal;  // why the device that serves cannot be used; empty: it can
  std::optional<ServedModel> model;
  std::string model_refusal;  // why there is no model
  std::string text_refusal;   // why its tokenizer or chat template cannot be used; empty: they can, or are not there
};

enum class FieldState { kFits, kDiffers, kRefused, kUnchecked };
std::string_view field_state_name(FieldState state);  // "fits", "differs", "refused", "not checked"

struct CheckField {
  std::string field;  // "host.cores", "serve.threads", "memory.host": JSON paths of the profile but for memory
  std::string profile_value, machine_value;
  FieldState state{};
};

struct CheckReport {
  std::vector<CheckField> fields;
  std::vector<std::string> refusals;  // one sentence each, as ft-engine would say it
  bool fits() const;                  // no field differs, is refused or could not be checked
};

// config: of the profile's serve section (engine_config_from_serve).
CheckReport check_profile(const Profile& profile, const EngineConfig& config, const CheckedMachine& machine);

std::string check_text(const CheckReport& report, const std::string& profile_path);
OrderedJson check_json(const CheckReport& report, const std::string& profile_path);

}  // namespace ft
