#include "tuner/machine_state.h"

#include <spdlog/fmt/fmt.h>

#include <ctime>
#include <fstream>

#include "kernels/host/host_memory.h"

namespace ft {
namespace {

// "key value" lines, as in cpu.stat.
int64_t value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

std::string own_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "/";
}

}  // namespace

int64_t throttled_usec() {
  const int64_t v2 = value_of("/sys/fs/cgroup" + own_cgroup() + "/cpu.stat", "throttled_usec");
  if (v2 > 0) return v2;
  return value_of("/sys/fs/cgroup/cpu/cpu.stat", "throttled_time") / 1000;  // v1 counts nanoseconds
}

std::string memory_text() {
  constexpr int64_t kProbeBytes = 64 << 20;
  HostBuffer buffer(kProbeBytes);
  for (int64_t i = 0; i < buffer.bytes(); i += 4096) buffer.data()[i] = std::byte{1};
  const PageReport report = page_report(buffer);
  return fmt::format("transparent huge pages {}: {:.0f} % of a 64 MiB buffer", report.huge_page_mode,
                     100.0 * static_cast<double>(report.huge_bytes) / static_cast<double>(report.bytes));
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
