// /proc/stat, /proc/self/stat, /proc/vmstat, /proc/pressure, thermal_throttle: what grows while a machine runs.
#include <algorithm>
#include <array>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/host/conditions.h"
#include "kernels/host/proc_text.h"

namespace ft {
namespace {

// Of one counter: 2^53 ticks are three million years, and eight of them do not overflow.
constexpr int64_t kMaxCounter = int64_t{1} << 53;
// Columns of a "cpuN" line: user nice system idle iowait irq softirq steal. Guests are in user and nice already.
constexpr size_t kTickColumns = 8;
constexpr size_t kIdle = 3, kIowait = 4, kSteal = 7;
// Fields of /proc/PID/stat behind the name in parentheses: state is the first, utime and stime are 14 and 15 of all.
constexpr size_t kUserField = 11, kSystemField = 12;

std::optional<int64_t> parse_counter(std::string_view text) {
  const std::optional<int64_t> value = parse_proc_number(text);
  return value && *value >= 0 && *value <= kMaxCounter ? value : std::nullopt;
}

std::vector<std::string_view> words(std::string_view line) {
  std::vector<std::string_view> found;
  for (const std::string_view word : split_text(line, ' ')) {
    if (!word.empty()) found.push_back(word);
  }
  return found;
}

std::optional<CpuTicks> parse_ticks(std::span<const std::string_view> columns) {
  std::array<int64_t, kTickColumns> values{};
  for (size_t i = 0; i < kTickColumns; ++i) {  // kernels before 2.6.11 have no steal
    const std::optional<int64_t> value = i < columns.size() ? parse_counter(columns[i]) : 0;
    if (!value) return std::nullopt;
    values[i] = *value;
  }
  CpuTicks ticks;
  ticks.idle = values[kIdle] + values[kIowait];
  ticks.steal = values[kSteal];
  for (const int64_t value : values) ticks.busy += value;
  ticks.busy -= ticks.idle + ticks.steal;
  return ticks;
}

void add(std::optional<int64_t>& sum, std::optional<int64_t> more) {
  if (more && *more >= 0 && *more <= kMaxCounter) sum = std::min(kMaxCounter, sum.value_or(0) + *more);
}

std::optional<int64_t> sum_of(std::string_view text, std::string_view key, std::string_view other_key) {
  std::optional<int64_t> sum;
  add(sum, find_proc_number(text, key));
  add(sum, find_proc_number(text, other_key));
  return sum;
}

void read_thermal(std::span<const int> cpus, const std::string& root, HostCounters& counters) {
  for (const int cpu : cpus) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/thermal_throttle/";
    const std::optional<int64_t> events = read_proc_number(folder + "core_throttle_count");
    if (!events) continue;
    add(counters.thermal_events, events);
    add(counters.thermal_events, read_proc_number(folder + "package_throttle_count"));
    add(counters.thermal_ms, read_proc_number(folder + "core_throttle_total_time_ms"));
    add(counters.thermal_ms, read_proc_number(folder + "package_throttle_total_time_ms"));
  }
}

}  // namespace

std::map<int, CpuTicks> parse_cpu_ticks(const std::string& proc_stat) {
  constexpr std::string_view kCpu = "cpu";
  std::map<int, CpuTicks> cpus;
  for (const std::string_view line : split_text(proc_stat, '\n')) {
    if (!line.starts_with(kCpu)) continue;
    const std::vector<std::string_view> columns = words(line);
    const std::optional<int64_t> cpu = parse_proc_number(columns[0].substr(kCpu.size()));  // none: the sum of all
    if (!cpu || *cpu < 0 || *cpu > kMaxCpuIndex || columns.size() < kSteal) continue;
    const std::optional<CpuTicks> ticks = parse_ticks(std::span(columns).subspan(1));
    if (ticks) cpus[static_cast<int>(*cpu)] = *ticks;
  }
  return cpus;
}

std::optional<int64_t> parse_own_ticks(const std::string& proc_self_stat) {
  const size_t name_end = proc_self_stat.rfind(')');  // a name may hold blanks and parentheses
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string_view> fields = words(std::string_view(proc_self_stat).substr(name_end + 1));
  if (fields.size() <= kSystemField) return std::nullopt;
  const std::optional<int64_t> user = parse_counter(fields[kUserField]), system = parse_counter(fields[kSystemField]);
  if (!user || !system) return std::nullopt;
  return *user + *system;
}

HostCounters read_host_counters(std::span<const int> cpus, const std::string& root) {
  HostCounters counters;
  counters.at_seconds = now_seconds();
  counters.cpus = parse_cpu_ticks(read_proc_text(root + "/proc/stat"));
  counters.own_ticks = parse_own_ticks(read_proc_text(root + "/proc/self/stat"));
  counters.throttling = cgroup_throttling(root);
  read_thermal(cpus, root, counters);
  const std::string vmstat = read_proc_text(root + "/proc/vmstat");
  counters.swapped_pages = sum_of(vmstat, "pswpin", "pswpout");
  add(counters.migrated_pages, find_proc_number(vmstat, "numa_pages_migrated"));
  std::optional<int64_t> stalled = cgroup_memory_stall_usec(root);
  if (!stalled) stalled = parse_stall_usec(read_proc_text(root + "/proc/pressure/memory"));
  add(counters.memory_stall_usec, stalled);
  return counters;
}

}  // namespace ft
