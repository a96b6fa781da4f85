#include "profiles/identity.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"

namespace ft {
namespace {

// Firmware and kernels reserve differently from boot to boot; a machine with other modules differs by far more.
constexpr double kMemoryTolerance = 0.02;

// Every field of the identity once: name, as text, and whether two values are the same.
class Comparison {
 public:
  void text(const char* field, const std::string& profile, const std::string& machine) {
    add(field, profile, machine, profile == machine);
  }
  void integer(const char* field, int64_t profile, int64_t machine) {
    add(field, std::to_string(profile), std::to_string(machine), profile == machine);
  }
  void quota(const char* field, std::optional<double> profile, std::optional<double> machine) {
    const auto shown = [](std::optional<double> cores) { return cores ? std::to_string(*cores) : "none"; };
    // Quotas are written as microseconds per period: hundredths of a core are noise of that division.
    const bool same = profile && machine ? std::abs(*profile - *machine) < 0.01 : profile == machine;
    add(field, shown(profile), shown(machine), same);
  }
  void memory(const char* field, int64_t profile, int64_t machine) {
    const auto larger = static_cast<double>(std::max(profile, machine));
    const double difference = std::abs(static_cast<double>(profile) - static_cast<double>(machine));
    add(field, std::to_string(profile), std::to_string(machine), difference <= kMemoryTolerance * larger);
  }

  std::vector<IdentityField> fields;

  std::vector<IdentityDifference> differences() const {
    std::vector<IdentityDifference> found;
    for (const IdentityField& field : fields) {
      if (!field.same) found.push_back({field.field, field.profile_value, field.machine_value});
    }
    return found;
  }

 private:
  void add(const char* field, std::string profile, std::string machine, bool same) {
    fields.push_back({field, std::move(profile), std::move(machine), same});
  }
};

Comparison compare_all(const Identity& profile, const Identity& machine) {
  Comparison compare;
  const HostIdentity& a = profile.host;
  const HostIdentity& b = machine.host;
  compare.text("host.cpu_model", a.cpu_model, b.cpu_model);
  compare.text("host.isa", a.isa, b.isa);
  compare.integer("host.cores", a.cores, b.cores);
  compare.integer("host.affinity_cores", a.affinity_cores, b.affinity_cores);
  compare.quota("host.quota_cores", a.quota_cores, b.quota_cores);
  compare.integer("host.numa_nodes", a.numa_nodes, b.numa_nodes);
  compare.memory("host.memory_bytes", a.memory_bytes, b.memory_bytes);
  compare.text("host.gpu_uuid", a.gpu_uuid, b.gpu_uuid);
  compare.text("host.gpu_name", a.gpu_name, b.gpu_name);
  compare.text("host.gpu_driver", a.gpu_driver, b.gpu_driver);
  compare.text("host.gpu_link", a.gpu_link, b.gpu_link);
  compare.text("build.version", profile.build.version, machine.build.version);
  compare.text("build.compiler", profile.build.compiler, machine.build.compiler);
  compare.text("build.code_hash", profile.build.code_hash, machine.build.code_hash);
  compare.text("model.config_hash", profile.model.config_hash, machine.model.config_hash);
  compare.text("model.index_hash", profile.model.index_hash, machine.model.index_hash);
  compare.text("model.data_sample_hash", profile.model.data_sample_hash, machine.model.data_sample_hash);
  compare.text("model.family", profile.model.family, machine.model.family);
  compare.text("model.formats", profile.model.formats, machine.model.formats);
  compare.text("model.weights", profile.model.weights, machine.model.weights);
  return compare;
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

void check_accepted(const Comparison& comparison, const std::vector<std::string>& accepted) {
  std::vector<std::string> names;
  for (const IdentityField& field : comparison.fields) names.push_back(field.field);
  for (const std::string& field : accepted) {
    const auto found = std::find(names.begin(), names.end(), field);
    if (found == names.end()) {
      throw Error(ErrorKind::kUsage, {.what = "option refused, no such identity field",
                                      .value = field,
                                      .allowed = joined(names, ", "),
                                      .path = "--accept-mismatch"});
    }
    if (comparison.fields[static_cast<size_t>(found - names.begin())].same) {
      throw Error(ErrorKind::kUsage, {.what = "option refused, the field does not differ",
                                      .value = field,
                                      .action = "leave it out, so that a later difference is noticed",
                                      .path = "--accept-mismatch"});
    }
  }
}

}  // namespace

std::vector<IdentityField> identity_fields(const Identity& profile, const Identity& machine) {
  return compare_all(profile, machine).fields;
}

std::vector<IdentityDifference> compare_identity(const Identity& profile, const Identity& machine) {
  return compare_all(profile, machine).differences();
}

void require_identity(const Identity& profile, const Identity& machine, const std::vector<std::string>& accepted) {
  const Comparison comparison = compare_all(profile, machine);
  check_accepted(comparison, accepted);
  std::vector<std::string> fields;
  std::vector<std::string> sentences;
  for (const IdentityDifference& difference : comparison.differences()) {
    if (contains(accepted, difference.field)) continue;
    fields.push_back(difference.field);
    const auto shown = [](const std::string& value) { return value.empty() ? "none" : "'" + value + "'"; };
    sentences.push_back("$.identity." + difference.field + " is " + shown(difference.profile_value) + ", here it is " +
                        shown(difference.machine_value));
  }
  if (fields.empty()) return;
  // The command must stay complete: add what was accepted already.
  std::vector<std::string> command = accepted;
  command.insert(command.end(), fields.begin(), fields.end());
  throw Error(ErrorKind::kUsage,
              {.what = "profile refused, it was made for something else: " + joined(sentences, "; "),
               .action = "run ft-tune here, or take the risk with --accept-mismatch " + joined(command, ",")});
}

}  // namespace ft
