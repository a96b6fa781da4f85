// /proc/self/numa_maps (Documentation/filesystems/proc.rst and numa(7)): lines "ADDRESS POLICY key=value ..", where
// N0=512 are 512 pages of kernelpagesize_kB on node 0.
#include <charconv>
#include <string_view>

#include "kernels/host/conditions.h"
#include "kernels/host/proc_text.h"

namespace ft {
namespace {

constexpr int64_t kMaxPages = int64_t{1} << 40;    // of 4 KiB: 4 PiB
constexpr int64_t kMaxPageKib = int64_t{1} << 21;  // 1 GiB pages are the largest, and some room
constexpr int kMaxNodeIndex = 1023;                // Linux's MAX_NUMNODES is 1024 at most

struct Mapping {
  uint64_t begin = 0;
  std::map<int, int64_t> bytes;
};

std::optional<Mapping> parse_mapping(std::string_view line) {
  const std::vector<std::string_view> words = split_text(line, ' ');
  Mapping mapping;
  const auto [end, code] = std::from_chars(words[0].data(), words[0].data() + words[0].size(), mapping.begin, 16);
  if (code != std::errc() || end != words[0].data() + words[0].size()) return std::nullopt;
  int64_t page_kib = 4;
  for (const std::string_view word : words) {
    constexpr std::string_view kPageSize = "kernelpagesize_kB=";
    if (!word.starts_with(kPageSize)) continue;
    page_kib = parse_proc_number(word.substr(kPageSize.size())).value_or(0);
    if (page_kib < 1 || page_kib > kMaxPageKib) return std::nullopt;
  }
  for (const std::string_view word : words) {
    const size_t equals = word.find('=');
    if (!word.starts_with('N') || equals == std::string_view::npos) continue;
    const auto node = parse_proc_number(word.substr(1, equals - 1));
    const auto pages = parse_proc_number(word.substr(equals + 1));
    if (!node || !pages || *node < 0 || *node > kMaxNodeIndex || *pages < 0 || *pages > kMaxPages) continue;
    if (*pages > INT64_MAX / (page_kib * 1024)) continue;
    mapping.bytes[static_cast<int>(*node)] = *pages * page_kib * 1024;
  }
  return mapping;
}

}  // namespace

std::map<int, int64_t> parse_page_nodes(const std::string& numa_maps, uint64_t begin, uint64_t end) {
  std::map<int, int64_t> bytes;
  Mapping around;  // the last one that begins at or before `begin`
  const auto add = [&bytes](const Mapping& mapping) {
    for (const auto& [node, more] : mapping.bytes) {
      int64_t& sum = bytes[node];
      if (__builtin_add_overflow(sum, more, &sum)) sum = INT64_MAX;
    }
  };
  for (const std::string_view line : split_text(numa_maps, '\n')) {
    std::optional<Mapping> mapping = parse_mapping(line);
    if (!mapping) continue;
    if (mapping->begin <= begin) {
      if (mapping->begin >= around.begin) around = std::move(*mapping);
    } else if (mapping->begin < end) {
      add(*mapping);
    }
  }
  add(around);
  return bytes;
}

std::map<int, int64_t> read_page_nodes(std::span<const std::byte> memory, const std::string& root) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  return parse_page_nodes(read_proc_text(root + "/proc/self/numa_maps"), begin, begin + memory.size());
}

}  // namespace ft
