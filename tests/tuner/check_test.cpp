// Checked against: fields and verdicts written by hand for one profile, changed one field at a time, on a machine that
// is plain data; the memory plan is the engine's own.
#include "tuner/check.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/model/checkpoint.h"
#include "engine/program/serve_config.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The machine that sample() was tuned on.
CheckedMachine machine() {
  CheckedMachine here;
  here.host.cpus = {
      .affinity_cpus = 4, .affinity_cores = 4, .quota_cores = {}, .usable_cores = 4, .pinning = {0, 1, 2, 3}};
  here.host.memory = {.device = Device::kHost, .device_memory_bytes = 0, .host_memory_bytes = 1024 * kMiB};
  here.host.identity.cpu_model = "Example CPU";
  here.host.identity.cores = 4;
  here.host.identity.memory_bytes = 2048 * kMiB;
  here.build = {"0.1.0", "gcc", "c0de"};
  WeightSource source;
  source.model_path = std::string(std::getenv("FT_TEST_DATA")) + "/tiny-moe";
  here.model = inspect_model(source);
  return here;
}

Profile sample(const CheckedMachine& here) {
  Profile profile;
  profile.identity = {here.host.identity, here.build, here.model->identity};
  profile.serve.device = "host";
  profile.serve.strategy = "resident";
  profile.serve.model_path = "/models/tiny-moe";
  profile.serve.threads = 4;
  profile.serve.pinning = {3, 2, 1, 0};
  profile.serve.slots = 192;
  profile.serve.max_batch = 8;
  profile.serve.max_context = 4096;
  return profile;
}

CheckReport check(const Profile& profile, const CheckedMachine& here) {
  return check_profile(profile, engine_config_from_serve(profile.serve, ""), here);
}

const CheckField& field(const CheckReport& report, const std::string& name) {
  for (const CheckField& field : report.fields) {
    if (field.field == name) return field;
  }
  FAIL("no field " << name);
  return report.fields.front();
}

// The names of what does not fit.
std::vector<std::string> bad(const CheckReport& report) {
  std::vector<std::string> names;
  for (const CheckField& field : report.fields) {
    if (field.state != FieldState::kFits) names.push_back(field.field);
  }
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("on the machine that it was made for every field fits") {
  const CheckedMachine here = machine();
  const CheckReport report = check(sample(here), here);
  CHECK(report.fits());
  CHECK(bad(report) == Names{});
  CHECK(report.refusals.empty());
  CHECK(report.fields.size() == 27);  // 20 of the identity, 6 of serve, memory
  CHECK(field(report, "serve.slots").machine_value == "32 to 192 fit");
  CHECK(field(report, "serve.pinning").profile_value == "3, 2, 1, 0");
  CHECK(field(report, "memory.host").machine_value == "1024.0 MiB available");
  CHECK(check_text(report, "p.json").ends_with("\nfits: ft-engine would start with p.json\n"));
}

TEST_CASE("a field of the identity that differs is named with both values and the option that accepts it") {
  const CheckedMachine here = machine();
  Profile profile = sample(here);
  profile.identity.host.cores = 64;
  profile.identity.build.code_hash = "beef";
  const CheckReport report = check(profile, here);
  CHECK(!report.fits());
  CHECK(bad(report) == Names{"host.cores", "build.code_hash"});
  CHECK(field(report, "host.cores").profile_value == "64");
  CHECK(field(report, "host.cores").machine_value == "4");
  const std::string text = check_text(report, "p.json");
  CHECK(text.find("! host.cores") != std::string::npos);
  CHECK(text.find("of 27 fields 2 differ, 0 are refused, 0 could not be checked\n") != std::string::npos);
  CHECK(text.find("--accept-mismatch host.cores,build.code_hash\n") != std::string::npos);
}

TEST_CASE("every refusal of a start has a line, more than one at a time") {
  const CheckedMachine here = machine();
  Profile profile = sample(here);
  profile.serve.threads = 5;
  profile.serve.pinning = {0, 1, 2, 3, 9};
  profile.serve.max_context = 4097;
  const CheckReport report = check(profile, here);
  CHECK(bad(report) == Names{"serve.threads", "serve.pinning", "serve.max_context", "serve.slots", "memory.host"});
  CHECK(field(report, "serve.threads").state == FieldState::kRefused);
  CHECK(field(report, "serve.threads").machine_value == "1 to 4, the usable cores");
  CHECK(field(report, "serve.max_context").machine_value == "1 to 4096");
  CHECK(field(report, "serve.slots").state == FieldState::kUnchecked);  // no plan without lengths
  REQUIRE(report.refusals.size() == 3);
  CHECK(report.refusals[1].find("$.serve.pinning[4] is '9'") != std::string::npos);
  profile.serve.threads = 4;
  profile.serve.pinning = {0, 1, 2, 3};
  profile.serve.max_context = 4096;
  CHECK(check(profile, here).fits());  // at the bound
}

TEST_CASE("what has no line of its own gets one when it is refused") {
  const CheckedMachine here = machine();
  Profile profile = sample(here);
  profile.serve.strategy = "cpu";
  profile.serve.slots = 0;
  profile.serve.fetch_of_misses = {0, 0, 0};
  CHECK(bad(check(profile, here)) == Names{"serve.slots", "memory.host", "serve.fetch_of_misses"});
}

TEST_CASE("memory: the bytes of the plan fit, one less does not") {
  CheckedMachine here = machine();
  const Profile profile = sample(here);
  const EngineConfig config = engine_config_from_serve(profile.serve, "");
  const MemoryPlan plan = plan_memory(here.model->family->geometry(), here.model->formats, config, here.host.memory);
  here.host.memory.host_memory_bytes = plan.host_bytes + plan.device_bytes;
  CHECK(check(profile, here).fits());
  here.host.memory.host_memory_bytes -= 1;
  const CheckReport report = check(profile, here);
  CHECK(!report.fits());
  REQUIRE(report.refusals.size() == 1);
  CHECK(report.refusals[0].find("memory") != std::string::npos);
}

TEST_CASE("without a model or a device the rest is still compared") {
  CheckedMachine here = machine();
  Profile profile = sample(here);
  here.model.reset();
  here.model_refusal = "no such folder";
  CheckReport report = check(profile, here);
  CHECK(!report.fits());
  CHECK(report.refusals == std::vector<std::string>{"no such folder"});
  CHECK(field(report, "model.family").state == FieldState::kUnchecked);
  CHECK(field(report, "host.cores").state == FieldState::kFits);
  CHECK(field(report, "serve.threads").state == FieldState::kFits);
  profile.serve.threads = 5;
  CHECK(field(check(profile, here), "serve.threads").state == FieldState::kRefused);

  here = machine();
  here.host.memory.device = Device::kCuda;
  here.device_refusal = "no CUDA device can be used";
  profile = sample(here);
  profile.serve.device = "cuda";
  report = check(profile, here);
  CHECK(!report.fits());
  CHECK(field(report, "serve.device").state == FieldState::kRefused);
  CHECK(field(report, "memory.host").state == FieldState::kUnchecked);
}

TEST_CASE("as JSON: every field with a state, and whether it fits") {
  const CheckedMachine here = machine();
  Profile profile = sample(here);
  profile.identity.build.compiler = "clang";
  const OrderedJson json = check_json(check(profile, here), "p.json");
  CHECK(json["fits"] == false);
  CHECK(json["profile"] == "p.json");
  CHECK(json["fields"].size() == 27);
  int differing = 0;
  for (const auto& row : json["fields"]) {
    if (row["state"] == "fits") continue;
    ++differing;
    CHECK(row["field"] == "build.compiler");
    CHECK(row["profile"] == "clang");
    CHECK(row["here"] == "gcc");
  }
  CHECK(differing == 1);
}

}  // namespace ft
