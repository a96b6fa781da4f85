// What control groups let this process use: CPU quota and memory limit, version 1, version 2 and both at once; and how
// much they held it back. The smallest limit on the way from the process's group up to the mount counts, because each
// of them holds.
//
// `root` is put before every path that is read ("" for the machine itself), so that tests give recorded trees. Files
// that are missing or hold something unexpected count as no limit: they differ by kernel and by container.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ft {

// Cores' worth of CPU time per period: "200000 100000" is 2.0. None without a quota.
std::optional<double> cgroup_quota_cores(const std::string& root = {});

// Counters since the groups exist, summed from the process's group up to the mount: each level stops its CPUs by
// itself. The time is that of CPUs: two that stand still for a second are two seconds. None: no group tells.
struct CgroupThrottling {
  std::optional<int64_t> periods, throttled_periods, throttled_usec;
};
CgroupThrottling cgroup_throttling(const std::string& root = {});

// Time in which some task of the group waited for memory (pressure stall information), version 2 only.
std::optional<int64_t> cgroup_memory_stall_usec(const std::string& root = {});
// The same from the text of /proc/pressure/memory or memory.pressure: total= of its line "some".
std::optional<int64_t> parse_stall_usec(std::string_view text);

struct CgroupMemory {
  std::optional<int64_t> limit_bytes;
  std::optional<int64_t> available_bytes;  // limit minus use, file cache not counted as use (it is given up first)
};
CgroupMemory cgroup_memory(const std::string& root = {});

}  // namespace ft
