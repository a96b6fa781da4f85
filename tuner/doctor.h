// What the readings of conditions mean: each check is ok, a note, a warning, or skipped with the reason, and names the
// command that changes what was found. Pure: readings come from kernels/host/conditions.h and
// kernels/cuda/conditions.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/json.h"
#include "kernels/cuda/conditions.h"
#include "kernels/host/conditions.h"
#include "kernels/host/host_memory.h"
#include "probes/expert_reads.h"
#include "profiles/profile.h"

namespace ft {

enum class CheckState : uint8_t { kSkipped, kOk, kNote, kWarning };  // the worse the larger
std::string_view check_state_name(CheckState state);                 // "skipped", "ok", "note", "warning"

struct Check {
  std::string id;  // "cpu.throttled": what stands before the point is its group
  CheckState state = CheckState::kOk;
  std::string what;  // what was seen, with its value; skipped: why
  std::string fix;   // the command that changes it; empty: ok, or none is known
  double size = 0;   // how bad: larger is worse among checks of one id
};

// Limits. Shares are of the time of the CPUs that compute.
namespace limits {
// Other processes. The choice is between candidates that differ by percents, and a layer waits for its slowest core. A
// tick is 10 ms, so 2 % are as little as an interval of half a second can show.
inline constexpr double kOtherLoadNote = 0.02;
inline constexpr double kOtherLoadWarning = 0.05;
inline constexpr double kOtherLoadCoresWarning = 0.5;  // of one core, however many there are: one worker loses half
inline constexpr int64_t kLeastTicks = 50;             // per CPU: below, shares of time are not judged
inline constexpr double kSiblingLoadWarning = 0.05;    // a busy sibling takes up to half of a core
// Stops by a quota last up to its period, 100 ms: few samples meet them, and those are worthless.
inline constexpr double kThrottledWarning = 0.005;
// Time that the hypervisor gave away: like other load, but idle machines have some.
inline constexpr double kStealNote = 0.005;
inline constexpr double kStealWarning = 0.02;
// Clock. Bandwidths follow it less than in proportion, so small changes are within the noise of samples.
inline constexpr double kBelowBaseWarning = 0.05;  // under the base clock, which every core holds unless limited
inline constexpr double kClockSpreadNote = 0.10;   // (highest - lowest) / highest of the readings
inline constexpr double kClockSpreadWarning = 0.25;
inline constexpr double kLimitBelowHardware = 0.01;  // kernels round frequencies to steps
// Memory.
inline constexpr double kStallNote = 0.001;  // of the interval: some task waited for memory
inline constexpr double kStallWarning = 0.01;
inline constexpr int64_t kSwappedPagesWarning = 256;  // 1 MiB: about a third of one expert
inline constexpr double kMigratedPagesWarning = 256;  // per second, by NUMA balancing
// Of a buffer that was asked to have huge pages. Reading experts of 0.9 MB in a mixed order from 4 KiB pages took 1.23
// times as long as from huge ones (1 GiB, one core of a Sapphire Rapids VM): 1 and 5 % of the time.
inline constexpr double kHugeShareNote = 0.95;
inline constexpr double kHugeShareWarning = 0.8;
inline constexpr double kReservedHugeShareNote = 0.01;  // of available memory: kept from the banks, which take none
inline constexpr double kMisplacedNote = 0.02;          // share of bytes on another node than planned
inline constexpr double kMisplacedWarning = 0.10;       // not measured: no machine with two nodes has run it
inline constexpr double kLeastQuotaCores = 1.0;         // below, even one thread is stopped
// Bytes counted over bytes expected. Below: weights came from a cache, or the counter misses some channels. Above:
// every blob ends in prefetches beyond it, and pages are walked; a quarter more is a kernel that reads something twice.
inline constexpr double kReadsLow = 0.9;
inline constexpr double kReadsHigh = 1.25;
// GPU.
inline constexpr int kGpuBusyNotePercent = 2;
inline constexpr int kGpuBusyWarningPercent = 5;
inline constexpr int kGpuDegreesBelowSlowdown = 5;     // closer than that to the limit: the next probe may meet it
inline constexpr double kGpuViolationWarning = 0.005;  // share of the time with lowered clocks
inline constexpr double kPowerLimitNote = 0.99;        // of the default limit
}  // namespace limits

// Memory that was put on a node, and where its pages are.
struct PlacedMemory {
  std::string name;  // "banks"
  int planned_node = 0;
  std::map<int, int64_t> bytes_per_node;  // empty: not known
};

// What is read once.
struct HostFacts {
  HostSettings settings;
  PageReport pages;                  // of a buffer that was asked to have huge pages; bytes 0: not tried
  std::vector<PlacedMemory> placed;  // with one node: not looked at
  bool pins_memory = false;          // a GPU will read host memory in place
};
std::vector<Check> check_facts(const HostFacts& facts);

// Of expert kernels under the memory controllers' count. why_not: there is no counter, and the reason; else empty.
Check check_reads(const ExpertReads& reads, const std::string& why_not);

// What two readings say about the time between them. core_ghz: readings of measure_core_ghz(), 0 where not known.
std::vector<Check> check_interval(const HostSettings& settings, const HostCounters& before, const HostCounters& after);
std::vector<Check> check_clock(const HostSettings& settings, std::span<const double> core_ghz);

// Share of the CPU time of settings.cpus that other processes had; none when the interval is too short to say.
std::optional<double> other_load(const HostSettings& settings, const HostCounters& before, const HostCounters& after);

// after.power_limited_ns and the like are compared with before's when both are given.
struct GpuReadings {
  cuda::GpuConditions before, after;
  double seconds = 0;  // between them
  PciLink link;        // at the reading; under load when loaded_gts is not 0
  bool link_under_load = false;
  bool own_process = false;  // this process uses the GPU: it is one of the processes, and its load is no finding
};
std::vector<Check> check_gpu(const GpuReadings& readings);

// Checks of several intervals as one list: the worst of each id, with the names of the intervals that were alike bad.
struct NamedChecks {
  std::string name;
  std::vector<Check> checks;
};
std::vector<Check> worst_checks(std::span<const NamedChecks> intervals);

// Notes and warnings, warnings first; at most as many as a profile holds.
std::vector<Finding> findings_of(std::span<const Check> checks);
inline constexpr size_t kMaxFindings = 64;

bool any_warning(std::span<const Check> checks);
std::string doctor_text(std::span<const Check> checks);
OrderedJson doctor_json(std::span<const Check> checks);

}  // namespace ft
