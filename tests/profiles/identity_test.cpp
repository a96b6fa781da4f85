// Checked against: one changed field at a time, named by hand.
#include "profiles/identity.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/profiles/sample_profile.h"

namespace {

using ft::Identity;

struct Change {
  const char* field;
  std::function<void(Identity&)> apply;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> list = {
      {"host.cpu_model", [](Identity& i) { i.host.cpu_model += "x"; }},
      {"host.isa", [](Identity& i) { i.host.isa = "avx2"; }},
      {"host.cores", [](Identity& i) { ++i.host.cores; }},
      {"host.affinity_cores", [](Identity& i) { ++i.host.affinity_cores; }},
      {"host.quota_cores", [](Identity& i) { i.host.quota_cores.reset(); }},
      {"host.numa_nodes", [](Identity& i) { ++i.host.numa_nodes; }},
      {"host.memory_bytes", [](Identity& i) { i.host.memory_bytes *= 2; }},
      {"host.gpu_uuid", [](Identity& i) { i.host.gpu_uuid.clear(); }},
      {"host.gpu_name", [](Identity& i) { i.host.gpu_name += "x"; }},
      {"host.gpu_driver", [](Identity& i) { i.host.gpu_driver += "x"; }},
      {"host.gpu_link", [](Identity& i) { i.host.gpu_link += "x"; }},
      {"build.version", [](Identity& i) { i.build.version += "x"; }},
      {"build.compiler", [](Identity& i) { i.build.compiler += "x"; }},
      {"build.code_hash", [](Identity& i) { i.build.code_hash += "x"; }},
      {"model.config_hash", [](Identity& i) { i.model.config_hash += "x"; }},
      {"model.index_hash", [](Identity& i) { i.model.index_hash.clear(); }},
      {"model.data_sample_hash", [](Identity& i) { i.model.data_sample_hash += "x"; }},
      {"model.family", [](Identity& i) { i.model.family += "x"; }},
      {"model.formats", [](Identity& i) { i.model.formats += "x"; }},
      {"model.weights", [](Identity& i) { i.model.weights += "x"; }},
  };
  return list;
}

std::string refusal(const Identity& machine, const std::vector<std::string>& accepted) {
  try {
    ft::require_identity(sample_profile().identity, machine, accepted);
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an identity equals itself") {
  const Identity identity = sample_profile().identity;
  CHECK(ft::compare_identity(identity, identity).empty());
  CHECK(refusal(identity, {}) == "");
}

TEST_CASE("every field that differs is named, alone and together") {
  Identity all = sample_profile().identity;
  for (const Change& change : changes()) {
    CAPTURE(change.field);
    Identity machine = sample_profile().identity;
    change.apply(machine);
    const auto differences = ft::compare_identity(sample_profile().identity, machine);
    REQUIRE(differences.size() == 1);
    CHECK(differences[0].field == change.field);
    CHECK(differences[0].profile_value != differences[0].machine_value);
    CHECK(refusal(machine, {}).find(std::string("$.identity.") + change.field + " is ") != std::string::npos);
    CHECK(refusal(machine, {change.field}) == "");
    change.apply(all);
  }
  const std::string message = refusal(all, {});
  std::string command = "--accept-mismatch ";
  for (const Change& change : changes()) command += (command.ends_with(' ') ? "" : ",") + std::string(change.field);
  CHECK(message.ends_with(command));
  for (const Change& change : changes())
    CHECK(message.find(std::string("$.identity.") + change.field) != std::string::npos);
}

TEST_CASE("values of both sides are shown") {
  Identity machine = sample_profile().identity;
  machine.host.cores = 2;
  machine.model.index_hash = "";
  CHECK(refusal(machine, {}) ==
        "profile refused, it was made for something else: $.identity.host.cores is '16', here it is '2'; "
        "$.identity.model.index_hash is '1de8', here it is none; run ft-tune here, or take the risk with "
        "--accept-mismatch host.cores,model.index_hash");
  CHECK(refusal(machine, {"host.cores"}).ends_with("--accept-mismatch host.cores,model.index_hash"));
  CHECK(refusal(machine, {"host.cores"}).find("$.identity.host.cores") == std::string::npos);
}

TEST_CASE("memory may differ by two percent") {
  Identity machine = sample_profile().identity;
  const int64_t memory = machine.host.memory_bytes;
  machine.host.memory_bytes = memory - memory / 50;
  CHECK(refusal(machine, {}) == "");
  machine.host.memory_bytes -= 2;
  CHECK(refusal(machine, {}).find("host.memory_bytes") != std::string::npos);
}

TEST_CASE("quotas are compared to a hundredth of a core") {
  Identity machine = sample_profile().identity;
  machine.host.quota_cores = 7.5 + 0.009;
  CHECK(refusal(machine, {}) == "");
  machine.host.quota_cores = 7.5 + 0.011;
  CHECK(refusal(machine, {}).find("host.quota_cores") != std::string::npos);
}

TEST_CASE("accepting what is no field, or does not differ, is an error") {
  Identity machine = sample_profile().identity;
  machine.host.cores = 2;
  CHECK(refusal(machine, {"host.cores", "cores"})
            .starts_with("option refused, no such identity field: --accept-mismatch is 'cores'"));
  CHECK(refusal(machine, {"cores"}).find("host.cpu_model, host.isa") != std::string::npos);
  CHECK(refusal(machine, {"host.cores", "host.isa"})
            .starts_with("option refused, the field does not differ: --accept-mismatch is 'host.isa'"));
}
