#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "tuner/doctor_checks.h"

namespace ft {
namespace {

using namespace limits;

double gib(double bytes) { return bytes / (1024.0 * 1024 * 1024); }

void add_huge_pages(const HostFacts& facts, std::vector<Check>& checks) {
  const std::string id = "memory.huge_pages";
  const std::string& mode = facts.settings.huge_page_mode;
  if (mode.empty() && facts.pages.bytes == 0) {
    checks.push_back(skipped_check(id, "the kernel does not say whether it has transparent huge pages"));
    return;
  }
  const double share = facts.pages.bytes == 0
                           ? (mode == "never" ? 0 : 1)
                           : static_cast<double>(facts.pages.huge_bytes) / static_cast<double>(facts.pages.bytes);
  std::string what = "transparent huge pages " + (mode.empty() ? "unknown" : mode);
  if (facts.pages.bytes > 0) {
    what += fmt::format(", {:.0f} % of a {} MiB buffer got them", 100 * share, facts.pages.bytes >> 20);
  }
  const CheckState state = share < kHugeShareWarning ? CheckState::kWarning
                           : share < kHugeShareNote  ? CheckState::kNote
                                                     : CheckState::kOk;
  // "always" or "madvise" and still not granted: memory is in too many pieces.
  const std::string fix = mode == "never" ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                                          : "echo 1 > /proc/sys/vm/compact_memory, or free memory";
  checks.push_back(graded_check(id, state, what, fix, 1 - share));
}

void add_reserved_pages(const HostSettings& settings, std::vector<Check>& checks) {
  if (!settings.huge_pages || !settings.huge_page_bytes) return;
  const double bytes = static_cast<double>(*settings.huge_pages) * static_cast<double>(*settings.huge_page_bytes);
  const double share = bytes / std::max(1.0, bytes + static_cast<double>(settings.available_bytes));
  checks.push_back(
      graded_check("memory.reserved_huge_pages", share >= kReservedHugeShareNote ? CheckState::kNote : CheckState::kOk,
                   bytes > 0 ? fmt::format("{} explicit huge pages keep {:.1f} GiB from the engine, which takes none",
                                           *settings.huge_pages, gib(bytes))
                             : "no memory is kept for explicit huge pages",
                   "sysctl vm.nr_hugepages=0", share));
}

void add_swap(const HostSettings& settings, std::vector<Check>& checks) {
  const int64_t out = settings.own_swapped_bytes.value_or(0);
  checks.push_back(
      graded_check("memory.swapped", out > 0 ? CheckState::kWarning : CheckState::kOk,
                   out > 0 ? fmt::format("{:.1f} MiB of this process are in swap", static_cast<double>(out) / (1 << 20))
                           : "nothing of this process is in swap",
                   "free memory, then: swapoff -a && swapon -a", static_cast<double>(out)));
}

void add_locked_limit(const HostFacts& facts, std::vector<Check>& checks) {
  const std::string id = "memory.locked_limit";
  const HostSettings& settings = facts.settings;
  if (!settings.lockable_bytes) {
    checks.push_back(ok_check(id, "memory may be locked without a limit"));
    return;
  }
  const double limit = gib(static_cast<double>(*settings.lockable_bytes));
  if (!facts.pins_memory) {
    checks.push_back(ok_check(id, fmt::format("{:.2f} GiB may be locked; this device needs none", limit)));
    return;
  }
  checks.push_back(graded_check(
      id, *settings.lockable_bytes < settings.available_bytes ? CheckState::kWarning : CheckState::kOk,
      fmt::format(
          "{:.2f} GiB may be locked, {:.1f} GiB are available: a bank that the GPU reads in place must be locked",
          limit, gib(static_cast<double>(settings.available_bytes))),
      "ulimit -l unlimited (limits.conf: memlock), or docker run --ulimit memlock=-1", 1 / std::max(limit, 1e-6)));
}

std::string nodes_text(const std::map<int, int64_t>& bytes_per_node) {
  std::string text;
  for (const auto& [node, bytes] : bytes_per_node) {
    text += fmt::format("{}{:.2f} GiB on node {}", text.empty() ? "" : ", ", gib(static_cast<double>(bytes)), node);
  }
  return text;
}

void add_placement(const PlacedMemory& memory, std::vector<Check>& checks) {
  const std::string id = "numa.placement";
  double all = 0, there = 0;
  for (const auto& [node, bytes] : memory.bytes_per_node) {
    all += static_cast<double>(bytes);
    if (node == memory.planned_node) there += static_cast<double>(bytes);
  }
  if (all <= 0) {
    checks.push_back(skipped_check(id, "/proc/self/numa_maps does not say where " + memory.name + " is"));
    return;
  }
  const double misplaced = 1 - there / all;
  checks.push_back(graded_check(
      id, state_of(misplaced, {kMisplacedNote, kMisplacedWarning}),
      fmt::format("{} belongs on node {}: {}", memory.name, memory.planned_node, nodes_text(memory.bytes_per_node)),
      "free memory on that node (numactl -H), allow it (cpuset.mems, docker run --cpuset-mems), "
      "allow mbind (docker run --cap-add SYS_NICE)",
      misplaced));
}

}  // namespace

void add_memory_facts(const HostFacts& facts, std::vector<Check>& checks) {
  add_huge_pages(facts, checks);
  add_reserved_pages(facts.settings, checks);
  add_swap(facts.settings, checks);
  add_locked_limit(facts, checks);
}

void add_numa_facts(const HostFacts& facts, std::vector<Check>& checks) {
  const HostSettings& settings = facts.settings;
  if (settings.nodes.size() < 2) {
    checks.push_back(ok_check("numa.nodes", settings.nodes.empty() ? "the kernel shows no NUMA nodes" : "one node"));
    return;
  }
  std::vector<int> without;
  for (const int node : settings.cpu_nodes) {
    const auto& allowed = settings.memory_nodes;
    const bool has = node < 0 || allowed.empty() || std::find(allowed.begin(), allowed.end(), node) != allowed.end();
    if (!has && std::find(without.begin(), without.end(), node) == without.end()) without.push_back(node);
  }
  checks.push_back(graded_check(
      "numa.nodes", without.empty() ? CheckState::kOk : CheckState::kWarning,
      without.empty()
          ? fmt::format("{} nodes, each that computes has memory", settings.nodes.size())
          : fmt::format("threads compute on node {}, whose memory this process may not use", without.front()),
      "docker run --cpuset-mems, cpuset.mems, or numactl --membind: the nodes of the CPUs",
      static_cast<double>(without.size())));
  const int64_t balancing = settings.numa_balancing.value_or(0);
  checks.push_back(graded_check("numa.balancing", balancing == 0 ? CheckState::kOk : CheckState::kNote,
                                balancing == 0 ? "the kernel does not move pages between nodes by itself"
                                               : "automatic NUMA balancing is on: the kernel unmaps and moves pages",
                                "sysctl kernel.numa_balancing=0", static_cast<double>(balancing != 0)));
  std::vector<NamedChecks> placed;
  for (const PlacedMemory& memory : facts.placed) {
    placed.push_back({memory.name, {}});
    add_placement(memory, placed.back().checks);
  }
  for (Check& check : worst_checks(placed)) checks.push_back(std::move(check));
}

Check check_reads(const ExpertReads& reads, const std::string& why_not) {
  const std::string id = "counters.dram";
  constexpr const char* kAllow = "modprobe msr, and run as root on the machine itself";
  if (!why_not.empty()) return skipped_check(id, why_not, kAllow);
  if (reads.expected_bytes <= 0) return skipped_check(id, "the counter of memory traffic stopped working");
  const double ratio = reads.counted_bytes / reads.expected_bytes;
  const std::string what = fmt::format("expert kernels read {:.2f} GB for {:.2f} GB of weights ({:.2f})",
                                       reads.counted_bytes * 1e-9, reads.expected_bytes * 1e-9, ratio);
  if (!reads.cold) return skipped_check(id, what + ": the experts fit the cache in part, so nothing follows from it");
  const bool good = ratio >= kReadsLow && ratio <= kReadsHigh;
  return graded_check(id, good ? CheckState::kOk : CheckState::kWarning, what,
                      "measure again without other load; if it stays, expert_single's rates are not those of memory",
                      std::abs(ratio - 1));
}

void add_memory_interval(const HostCounters& before, const HostCounters& after, std::vector<Check>& checks) {
  const double seconds = std::max(1e-3, after.at_seconds - before.at_seconds);
  const auto grown = [](std::optional<int64_t> then, std::optional<int64_t> now) {
    return then && now ? std::optional(std::max<int64_t>(0, *now - *then)) : std::nullopt;
  };
  if (const auto pages = grown(before.swapped_pages, after.swapped_pages)) {
    checks.push_back(graded_check("memory.swap",
                                  *pages >= kSwappedPagesWarning ? CheckState::kWarning
                                  : *pages > 0                   ? CheckState::kNote
                                                                 : CheckState::kOk,
                                  *pages > 0 ? fmt::format("{} went to or came from swap", counted(*pages, "page"))
                                             : "no page went to or came from swap",
                                  "end what uses the memory (ps -eo pid,rss,comm --sort=-rss | head), or swapoff -a",
                                  static_cast<double>(*pages)));
  } else {
    checks.push_back(skipped_check("memory.swap", "/proc/vmstat cannot be read"));
  }
  if (const auto stalled = grown(before.memory_stall_usec, after.memory_stall_usec)) {
    const double share = static_cast<double>(*stalled) / 1e6 / seconds;
    checks.push_back(
        graded_check("memory.pressure", state_of(share, {kStallNote, kStallWarning}),
                     fmt::format("tasks waited for memory {:.1f} % of the time", 100 * share),
                     "end what uses the memory, or raise the limit: docker update --memory, MemoryMax=", share));
  } else {
    checks.push_back(
        skipped_check("memory.pressure", "this kernel does not measure pressure (psi=1 on its command line)"));
  }
  const int64_t moved = grown(before.migrated_pages, after.migrated_pages).value_or(0);
  const double rate = static_cast<double>(moved) / seconds;
  if (moved > 0) {
    checks.push_back(graded_check("numa.migrations",
                                  rate >= kMigratedPagesWarning ? CheckState::kWarning : CheckState::kNote,
                                  fmt::format("the kernel moved {} pages between nodes, {:.0f} a second", moved, rate),
                                  "sysctl kernel.numa_balancing=0", rate));
  }
}

}  // namespace ft
