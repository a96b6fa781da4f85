#include "tuner/check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/program/serve_config.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024.0 * 1024)); }

std::string joined(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

class Check {
 public:
  Check(const Profile& profile, const EngineConfig& config, const CheckedMachine& machine)
      : profile_(profile), config_(config), machine_(machine) {}

  CheckReport run() {
    identity();
    serve();
    return std::move(report_);
  }

 private:
  void add(std::string field, std::string profile, std::string here, FieldState state) {
    report_.fields.push_back({std::move(field), std::move(profile), std::move(here), state});
  }

  void identity() {
    const Identity here = {machine_.host.identity, machine_.build,
                           machine_.model ? machine_.model->identity : ModelIdentity{}};
    for (IdentityField& field : identity_fields(profile_.identity, here)) {
      const bool unknown = !machine_.model && field.field.starts_with("model.");
      add(field.field, std::move(field.profile_value), unknown ? "" : std::move(field.machine_value),
          unknown      ? FieldState::kUnchecked
          : field.same ? FieldState::kFits
                       : FieldState::kDiffers);
    }
  }

  void serve() {
    add("serve.device", std::string(device_name(config_.device)),
        machine_.device_refusal.empty() ? std::string(device_name(config_.device)) : "host only",
        machine_.device_refusal.empty() ? FieldState::kFits : FieldState::kRefused);
    if (!machine_.device_refusal.empty()) report_.refusals.push_back(machine_.device_refusal);
    if (!machine_.model) {
      report_.refusals.push_back(machine_.model_refusal);
      add("serve.model_path", profile_.serve.model_path, "no model", FieldState::kRefused);
      check_.refusals = check_serve_cpus(config_, machine_.host.cpus);
    } else {
      check_ = check_serve(machine_.model->family->geometry(), machine_.model->formats, config_, machine_.host.memory,
                           machine_.host.cpus);
    }
    for (const Error& refusal : check_.refusals) report_.refusals.emplace_back(refusal.what());
    if (!machine_.text_refusal.empty()) {
      report_.refusals.push_back(machine_.text_refusal);
      add("model.text", "", "", FieldState::kRefused);
    }
    threads();
    if (machine_.model) lengths();
    memory();
    add_other_refusals();
  }

  const Error* refusal_of(const std::string& field) const {
    for (const Error& refusal : check_.refusals) {
      if (refusal.parts().path.starts_with("$." + field)) return &refusal;
    }
    return nullptr;
  }

  // A field that a start checks against a range.
  void ranged(const std::string& field, std::string value, std::string range, bool known) {
    const Error* refusal = refusal_of(field);
    shown_.push_back(field);
    if (refusal != nullptr) range = refusal->parts().allowed;
    add(field, std::move(value), std::move(range),
        refusal != nullptr ? FieldState::kRefused
        : known            ? FieldState::kFits
                           : FieldState::kUnchecked);
  }

  void threads() {
    const CpuBudget& cpus = machine_.host.cpus;
    ranged("serve.threads", std::to_string(config_.threads),
           "1 to " + std::to_string(cpus.usable_cores) + ", the usable cores", true);
    ranged("serve.pinning", config_.pinning.empty() ? "none" : joined(config_.pinning),
           "CPUs of this process: " + joined(cpus.pinning), true);
  }

  void lengths() {
    const bool planned = check_.plan.has_value();
    ranged("serve.max_batch", std::to_string(config_.max_batch), "1 to " + std::to_string(kMaxBatch), true);
    ranged("serve.max_context", std::to_string(config_.max_context),
           "1 to " + std::to_string(machine_.model->family->geometry().max_positions), true);
    ranged("serve.slots", std::to_string(config_.slots),
           planned ? std::to_string(check_.plan->min_slots) + " to " + std::to_string(check_.plan->max_slots) + " fit"
                   : "",
           planned);
  }

  void memory() {
    const MemoryInputs& there = machine_.host.memory;
    const bool known = check_.plan && machine_.device_refusal.empty();
    const auto row = [&](const char* field, int64_t needed, int64_t offered) {
      add(field, known ? mebibytes(needed) + " needed" : "", mebibytes(offered) + " available",
          known ? FieldState::kFits : FieldState::kUnchecked);
    };
    const int64_t on_host = check_.plan ? check_.plan->host_bytes : 0;
    const int64_t on_device = check_.plan ? check_.plan->device_bytes : 0;
    if (config_.device == Device::kHost) {  // slots and banks come out of the same memory
      row("memory.host", on_host + on_device, there.host_memory_bytes);
      return;
    }
    row("memory.host", on_host, there.host_memory_bytes);
    if (machine_.device_refusal.empty()) row("memory.device", on_device, there.device_memory_bytes);
  }

  // What was refused and has no line of its own: the split, look-ahead, a pool that does not fit.
  void add_other_refusals() {
    for (const Error& refusal : check_.refusals) {
      const ErrorParts& parts = refusal.parts();
      const bool shown = std::any_of(shown_.begin(), shown_.end(),
                                     [&](const std::string& field) { return parts.path.starts_with("$." + field); });
      if (shown) continue;
      add(parts.path.starts_with("$.") ? parts.path.substr(2) : "memory", parts.value, parts.allowed,
          FieldState::kRefused);
    }
  }

  const Profile& profile_;
  const EngineConfig& config_;
  const CheckedMachine& machine_;
  ServeCheck check_;
  std::vector<std::string> shown_;
  CheckReport report_;
};

size_t count_of(const CheckReport& report, FieldState state) {
  return static_cast<size_t>(std::count_if(report.fields.begin(), report.fields.end(),
                                           [&](const CheckField& field) { return field.state == state; }));
}

std::string shown(const CheckField& field, const std::string& value) {
  if (!value.empty()) return printable(value);
  return field.state == FieldState::kUnchecked ? "not known" : "none";
}

}  // namespace

std::string_view field_state_name(FieldState state) {
  switch (state) {
    case FieldState::kFits:
      return "fits";
    case FieldState::kDiffers:
      return "differs";
    case FieldState::kRefused:
      return "refused";
    case FieldState::kUnchecked:
      break;
  }
  return "not checked";
}

bool CheckReport::fits() const {
  return !fields.empty() && std::all_of(fields.begin(), fields.end(),
                                        [](const CheckField& field) { return field.state == FieldState::kFits; });
}

CheckReport check_profile(const Profile& profile, const EngineConfig& config, const CheckedMachine& machine) {
  return Check(profile, config, machine).run();
}

std::string check_text(const CheckReport& report, const std::string& profile_path) {
  size_t names = 5, profiles = 7, machines = 4;
  for (const CheckField& field : report.fields) {
    names = std::max(names, field.field.size());
    profiles = std::max(profiles, shown(field, field.profile_value).size());
    machines = std::max(machines, shown(field, field.machine_value).size());
  }
  std::string text = fmt::format("  {:<{}}  {:<{}}  {:<{}}\n", "field", names, "profile", profiles, "here", machines);
  for (const CheckField& field : report.fields) {
    text += fmt::format("{} {:<{}}  {:<{}}  {:<{}}  {}\n", field.state == FieldState::kFits ? ' ' : '!', field.field,
                        names, shown(field, field.profile_value), profiles, shown(field, field.machine_value), machines,
                        field_state_name(field.state));
  }
  if (report.fits()) return text + "\nfits: ft-engine would start with " + printable(profile_path) + "\n";
  text += fmt::format("\ndoes not fit: of {} fields {} differ, {} are refused, {} could not be checked\n",
                      report.fields.size(), count_of(report, FieldState::kDiffers),
                      count_of(report, FieldState::kRefused), count_of(report, FieldState::kUnchecked));
  for (const std::string& refusal : report.refusals) text += "refused: " + refusal + "\n";
  std::string differing;
  for (const CheckField& field : report.fields) {
    if (field.state == FieldState::kDiffers) differing += (differing.empty() ? "" : ",") + field.field;
  }
  if (!differing.empty()) {
    text += "to do: run ft-tune here, or take the risk of what differs with ft-engine --accept-mismatch " + differing +
            "\n";
  }
  return text;
}

OrderedJson check_json(const CheckReport& report, const std::string& profile_path) {
  OrderedJson json;
  json["profile"] = profile_path;
  json["fits"] = report.fits();
  json["fields"] = OrderedJson::array();
  for (const CheckField& field : report.fields) {
    OrderedJson row;
    row["field"] = field.field;
    row["profile"] = field.profile_value;
    row["here"] = field.machine_value;
    row["state"] = field_state_name(field.state);
    json["fields"].push_back(std::move(row));
  }
  json["refusals"] = report.refusals;
  return json;
}

}  // namespace ft
