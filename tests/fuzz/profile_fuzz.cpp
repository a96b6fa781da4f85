// Any bytes as a profile, a samples file, a machine and a routing trace: refused with an Error or read; never a crash.
// valijson and our explanation of violations judge independently, and what was read must survive being written.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/error.h"
#include "profiles/compare_report.h"
#include "profiles/samples.h"
#include "profiles/schema_validation.h"

namespace {

void check_judges_agree(const ft::Json& json, const std::string& schema) {
  const bool explained = ft::find_violation(json, ft::built_in_schema(schema)).has_value();
  bool refused = false;
  try {
    ft::validate_schema(json, schema, "input");
  } catch (const ft::Error&) {
    refused = true;
  }
  FT_CHECK(refused == explained);
}

void check_profile(const ft::Json& json) {
  try {
    const ft::Profile profile = ft::parse_profile(json, "input");
    const std::string text = ft::profile_to_json(profile).dump();
    const ft::Profile again = ft::parse_profile(ft::parse_json(text, "written"), "written");
    FT_CHECK(ft::profile_to_json(again).dump() == text);
    const ft::ProfileComparison comparison = ft::compare_profiles(profile, again, {});
    FT_CHECK(comparison.count(ft::Verdict::kRegressed) == 0);
    for (const char* format : {"text", "markdown", "json", "junit"}) ft::compare_report(comparison, format);
  } catch (const ft::Error& error) {
    FT_CHECK(error.kind() == ft::ErrorKind::kUsage);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ft::Json json;
  try {
    json = ft::parse_json({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const ft::Error&) {
    return 0;
  }
  for (const char* schema :
       {"profile", "samples", "machine", "recorded_decision", "recorded_inputs", "routing_trace"}) {
    check_judges_agree(json, schema);
  }
  check_profile(json);
  try {
    ft::parse_samples(json, "input");
  } catch (const ft::Error&) {
    return 0;
  }
  return 0;
}
