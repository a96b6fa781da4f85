#include "tuner/machine_state.h"

#include <spdlog/fmt/fmt.h>

#include <ctime>

#include "kernels/host/cgroup.h"
#include "kernels/host/host_memory.h"

namespace ft {

int64_t throttled_usec() { return cgroup_throttling().throttled_usec.value_or(0); }

std::string memory_text() {
  const PageReport report = try_huge_pages();
  return fmt::format("transparent huge pages {}: {:.0f} % of a 64 MiB buffer", report.huge_page_mode,
                     100.0 * static_cast<double>(report.huge_bytes) / static_cast<double>(report.bytes));
}

PageReport try_huge_pages() {
  constexpr int64_t kBytes = 64 << 20, kPage = 4096;
  HostBuffer buffer(kBytes);
  for (int64_t i = 0; i < buffer.bytes(); i += kPage) buffer.data()[i] = std::byte{1};
  return page_report(buffer);
}

std::string likwid_text(const LikwidStatus& status) {
  if (!status.topology && !status.counters) return status.reason.empty() ? "not used" : status.reason;
  std::string text = std::string("used: ") + (status.topology ? "topology" : "");
  if (status.counters) text += status.topology ? ", counters" : "counters";
  return status.reason.empty() ? text : text + "; " + status.reason;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace ft
