// libFuzzer target of the JSON entry points. Beyond "no crash, no sanitizer report": both value types agree on what is
// accepted, nothing is accepted that nlohmann's own parser refuses, and what is accepted survives a round trip.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace {

constexpr ft::JsonLimits kSmallLimits{1u << 16, 8, 200, 40};  // small enough for a fuzzer to reach each of them

template <class Parse>
auto accepted(Parse parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const ft::Error& error) {
    for (const char* c = error.what(); *c != '\0'; ++c) FT_CHECK(*c >= 0x20 && *c < 0x7f);  // printable ASCII
    return std::nullopt;
  }
}

void check(std::string_view text, const ft::JsonLimits& limits) {
  const auto sorted = accepted([&] { return ft::parse_json(text, "fuzz", limits); });
  const auto ordered = accepted([&] { return ft::parse_ordered_json(text, "fuzz", limits); });
  FT_CHECK(sorted.has_value() == ordered.has_value());
  if (!sorted.has_value()) return;
  FT_CHECK(nlohmann::json::accept(text));
  FT_CHECK(ft::Json(*ordered) == *sorted);
  FT_CHECK(ft::parse_ordered_json(ordered->dump(), "again", ft::kFileJsonLimits).dump() == ordered->dump());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text, ft::kFileJsonLimits);
  check(text, kSmallLimits);
  return 0;
}
