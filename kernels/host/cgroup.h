// What control groups let this process use: CPU quota and memory limit, version 1, version 2 and both at once. The
// smallest limit on the way from the process's group up to the mount counts, because each of them holds.
//
// `root` is put before every path that is read ("" for the machine itself), so that tests give recorded trees. Files
// that are missing or hold something unexpected count as no limit: they differ by kernel and by container.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ft {

// Cores' worth of CPU time per period: "200000 100000" is 2.0. None without a quota.
std::optional<double> cgroup_quota_cores(const std::string& root = {});

struct CgroupMemory {
  std::optional<int64_t> limit_bytes;
  std::optional<int64_t> available_bytes;  // limit minus use, file cache not counted as use (it is given up first)
};
CgroupMemory cgroup_memory(const std::string& root = {});

}  // namespace ft
