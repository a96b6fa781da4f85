// Texts of /proc and /sys: whatever they hold, every parser gives readings within their ranges, or none.
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/error.h"
#include "kernels/host/cgroup.h"
#include "kernels/host/conditions.h"
#include "kernels/host/proc_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const auto& [cpu, ticks] : ft::parse_cpu_ticks(text)) {
    FT_CHECK(cpu >= 0 && cpu <= ft::kMaxCpuIndex);
    FT_CHECK(ticks.busy >= 0 && ticks.idle >= 0 && ticks.steal >= 0 && ticks.total() >= ticks.busy);
  }
  FT_CHECK(ft::parse_own_ticks(text).value_or(0) >= 0);
  for (const auto& [node, bytes] : ft::parse_page_nodes(text, 0x1000, UINT64_MAX)) {
    FT_CHECK(node >= 0 && node < 1024 && bytes >= 0);
  }
  const double ghz = ft::parse_model_ghz(text).value_or(1);
  FT_CHECK(ghz >= 0.1 && ghz <= 20);
  int last = -1;
  for (const int cpu : ft::parse_cpu_list(text).value_or(std::vector<int>{})) {
    FT_CHECK(cpu > last && cpu <= ft::kMaxCpuIndex);
    last = cpu;
  }
  ft::parse_stall_usec(text);
  ft::find_proc_number(text, "SwapTotal");
  FT_CHECK(ft::plain_word(ft::chosen_word(text)).size() <= 64);
  return 0;
}
