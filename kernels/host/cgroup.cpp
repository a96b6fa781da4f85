#include "kernels/host/cgroup.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/host/proc_text.h"

namespace ft {
namespace {

constexpr int kMaxDepth = 64;  // folders walked up from a group to its mount
// Version 1 writes "no limit" as the largest multiple of the page size; no machine has this much.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 60;
constexpr int64_t kMaxCounter = int64_t{1} << 56;  // us or periods: two thousand years, so that sums cannot overflow

// mountinfo writes space, tab, newline and backslash as three octal digits.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 3 < text.size();
    if (!escaped) {
      out += text[i];
      continue;
    }
    const int code = (text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0');
    out += static_cast<char>(code);
    i += 3;
  }
  return out;
}

bool contains(std::string_view list, std::string_view item) {
  const std::vector<std::string_view> parts = split_text(list, ',');
  return std::find(parts.begin(), parts.end(), item) != parts.end();
}

// Where the process stands in one hierarchy: folders from its own group up to the mount point, nearest first.
struct Hierarchy {
  bool version_2 = false;
  std::vector<std::string> folders;
};

struct Mount {
  std::string root;   // the group that is mounted: not "/" in containers without a namespace of their own
  std::string point;  // where
};

// Fields of mountinfo, proc(5): id parent major:minor ROOT POINT options [tags...] - TYPE source SUPER-OPTIONS.
std::optional<Mount> find_mount(const std::string& mountinfo, bool version_2, std::string_view controller) {
  for (const std::string_view line : split_text(mountinfo, '\n')) {
    const std::vector<std::string_view> fields = split_text(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string_view type = dash[1];
    const bool match = version_2 ? type == "cgroup2" : type == "cgroup" && contains(dash[3], controller);
    if (match) return Mount{unescape(fields[3]), unescape(fields[4])};
  }
  return std::nullopt;
}

std::vector<std::string> folders_up(const std::string& root, const Mount& mount, std::string group) {
  if (mount.root != "/" && group.compare(0, mount.root.size(), mount.root) == 0) group.erase(0, mount.root.size());
  // A group outside of what is mounted ("/../other"): only the mount point itself can be read.
  if (group.find("/..") != std::string::npos) group.clear();
  while (!group.empty() && group.back() == '/') group.pop_back();
  std::vector<std::string> folders;
  for (int i = 0; i < kMaxDepth; ++i) {
    folders.push_back(root + mount.point + group);
    if (group.empty()) break;
    group.erase(group.rfind('/'));
  }
  return folders;
}

std::vector<Hierarchy> find_hierarchies(const std::string& root, std::string_view controller) {
  const std::string groups = read_proc_text(root + "/proc/self/cgroup");
  const std::string mountinfo = read_proc_text(root + "/proc/self/mountinfo");
  std::vector<Hierarchy> found;
  for (const std::string_view line : split_text(groups, '\n')) {  // id:controllers:path, path may hold colons
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && !contains(controllers, controller)) continue;
    const std::optional<Mount> mount = find_mount(mountinfo, version_2, controller);
    if (!mount.has_value()) continue;
    found.push_back({version_2, folders_up(root, *mount, std::string(line.substr(second + 1)))});
  }
  return found;
}

template <class T>
void lower(std::optional<T>& limit, std::optional<T> candidate) {
  if (candidate.has_value() && (!limit.has_value() || *candidate < *limit)) limit = candidate;
}

std::optional<double> folder_quota(const std::string& folder, bool version_2) {
  std::optional<int64_t> quota;
  std::optional<int64_t> period;
  if (version_2) {  // "max 100000" or "200000 100000"
    const std::string text = read_proc_text(folder + "/cpu.max");
    const size_t space = text.find(' ');
    if (space == std::string::npos) return std::nullopt;
    quota = parse_proc_number(std::string_view(text).substr(0, space));
    period = parse_proc_number(std::string_view(text).substr(space + 1));
  } else {
    quota = read_proc_number(folder + "/cpu.cfs_quota_us");  // -1: none
    period = read_proc_number(folder + "/cpu.cfs_period_us");
  }
  if (!quota.has_value() || !period.has_value() || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

int64_t file_cache_bytes(const std::string& folder, bool version_2) {
  int64_t bytes = 0;
  const std::string text = read_proc_text(folder + "/memory.stat");
  for (const std::string_view line : split_text(text, '\n')) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view key = line.substr(0, space);
    const bool counts = version_2 ? key == "inactive_file" || key == "active_file"
                                  : key == "total_inactive_file" || key == "total_active_file";
    if (counts) bytes += parse_proc_number(line.substr(space + 1)).value_or(0);
  }
  return bytes;
}

void add_folder_memory(const std::string& folder, bool version_2, CgroupMemory& memory) {
  std::optional<int64_t> limit = read_proc_number(folder + (version_2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (version_2) lower(limit, read_proc_number(folder + "/memory.high"));  // above it the kernel slows the process down
  if (!limit.has_value() || *limit < 0 || *limit >= kUnlimitedBytes) return;
  lower(memory.limit_bytes, limit);
  const int64_t used =
      read_proc_number(folder + (version_2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  const int64_t in_use = std::max<int64_t>(used - file_cache_bytes(folder, version_2), 0);
  lower(memory.available_bytes, std::optional<int64_t>(std::max<int64_t>(*limit - in_use, 0)));
}

void add(std::optional<int64_t>& sum, std::optional<int64_t> more) {
  if (more.has_value() && *more >= 0) sum = std::min(kMaxCounter, sum.value_or(0) + std::min(*more, kMaxCounter));
}

}  // namespace

CgroupThrottling cgroup_throttling(const std::string& root) {
  CgroupThrottling sum;
  for (const Hierarchy& hierarchy : find_hierarchies(root, "cpu")) {
    for (const std::string& folder : hierarchy.folders) {
      const std::string text = read_proc_text(folder + "/cpu.stat");
      const std::optional<int64_t> nanoseconds = find_proc_number(text, "throttled_time");  // version 1
      const std::optional<int64_t> usec = nanoseconds && *nanoseconds >= 0 ? std::optional(*nanoseconds / 1000)
                                                                           : find_proc_number(text, "throttled_usec");
      add(sum.throttled_usec, usec);
      add(sum.throttled_periods, find_proc_number(text, "nr_throttled"));
      add(sum.periods, find_proc_number(text, "nr_periods"));
    }
  }
  return sum;
}

std::optional<int64_t> cgroup_memory_stall_usec(const std::string& root) {
  for (const Hierarchy& hierarchy : find_hierarchies(root, "memory")) {
    if (!hierarchy.version_2 || hierarchy.folders.empty()) continue;
    const auto stalled = parse_stall_usec(read_proc_text(hierarchy.folders.front() + "/memory.pressure"));
    if (stalled) return stalled;
  }
  return std::nullopt;
}

std::optional<int64_t> parse_stall_usec(std::string_view text) {
  constexpr std::string_view kTotal = "total=";
  for (const std::string_view line : split_text(text, '\n')) {
    if (!line.starts_with("some ")) continue;
    const size_t at = line.find(kTotal);
    return at == std::string_view::npos ? std::nullopt : parse_proc_number(line.substr(at + kTotal.size()));
  }
  return std::nullopt;
}

std::optional<double> cgroup_quota_cores(const std::string& root) {
  std::optional<double> quota;
  for (const Hierarchy& hierarchy : find_hierarchies(root, "cpu")) {
    for (const std::string& folder : hierarchy.folders) lower(quota, folder_quota(folder, hierarchy.version_2));
  }
  return quota;
}

CgroupMemory cgroup_memory(const std::string& root) {
  CgroupMemory memory;
  for (const Hierarchy& hierarchy : find_hierarchies(root, "memory")) {
    for (const std::string& folder : hierarchy.folders) add_folder_memory(folder, hierarchy.version_2, memory);
  }
  return memory;
}

}  // namespace ft
