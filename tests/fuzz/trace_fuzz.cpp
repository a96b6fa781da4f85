// A routing trace: refused with an Error(kUsage), or one that its own check and, independently, the schema accept,
// whose every pick can be looked up and whose statistics are shares.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/experts/routing_trace.h"
#include "kernels/base/error.h"
#include "profiles/profile.h"

namespace {

void check_taken(const ft::RoutingTrace& trace, const ft::Json& json) {
  ft::check_routing_trace(trace, "taken");
  ft::validate_schema(json, "routing_trace", "taken");
  for (int64_t token = 0; token < trace.tokens; ++token) {
    for (int layer = 0; layer < trace.layers; ++layer) {
      for (const int16_t id : trace.at(token, layer)) FT_CHECK(id >= 0 && id < trace.experts);
    }
  }
  const ft::TraceStatistics statistics = ft::trace_statistics(trace);
  FT_CHECK(statistics.next_token_overlap >= 0 && statistics.next_token_overlap <= statistics.within_8);
  FT_CHECK(statistics.within_8 <= 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ft::Json json;
  ft::RoutingTrace trace;
  try {
    json = ft::parse_json({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const ft::Error&) {
    return 0;
  }
  try {
    trace = ft::parse_routing_trace(json, "input");
  } catch (const ft::Error& error) {
    FT_CHECK(error.kind() == ft::ErrorKind::kUsage);
    return 0;
  }
  check_taken(trace, json);
  return 0;
}
