// Checked against: tables worked out by hand, each limit of tuner/doctor.h at its value and one step past it.
#include "tuner/doctor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tuner/condition_watch.h"

namespace ft {
namespace {

const Check& find(const std::vector<Check>& checks, std::string_view id) {
  const auto at = std::find_if(checks.begin(), checks.end(), [&](const Check& check) { return check.id == id; });
  REQUIRE_MESSAGE(at != checks.end(), id);
  return *at;
}

std::string state(const std::vector<Check>& checks, std::string_view id) {
  const Check& check = find(checks, id);
  // What can be changed says how, and nothing else does.
  const bool spoilt = check.state == CheckState::kNote || check.state == CheckState::kWarning;
  if (check.state != CheckState::kSkipped) CHECK(check.fix.empty() != spoilt);
  CHECK(!check.what.empty());
  return std::string(check_state_name(check.state));
}

// Two cores for ten seconds: 1000 ticks each, idle unless changed.
struct Interval {
  HostSettings settings;
  HostCounters before, after;

  Interval() {
    settings.cpus = {0, 1};
    settings.siblings = {{0}, {1}};
    before.at_seconds = 100;
    after.at_seconds = 110;
    before.own_ticks = after.own_ticks = 7;
    before.throttling.throttled_usec = after.throttling.throttled_usec = 5000;
    before.throttling.throttled_periods = after.throttling.throttled_periods = 2;
    before.swapped_pages = after.swapped_pages = 10;
    before.memory_stall_usec = after.memory_stall_usec = 99;
    for (const int cpu : {0, 1, 2, 3}) {
      before.cpus[cpu] = {500, 9000, 20};
      after.cpus[cpu] = {500, 10000, 20};
    }
  }
  void busy(int cpu, int64_t ticks) {
    after.cpus[cpu].busy += ticks;
    after.cpus[cpu].idle -= ticks;
  }
  void stolen(int cpu, int64_t ticks) {
    after.cpus[cpu].steal += ticks;
    after.cpus[cpu].idle -= ticks;
  }
  std::string state_of(std::string_view id) const { return state(check_interval(settings, before, after), id); }
};

HostFacts plain_facts() {
  HostFacts facts;
  facts.settings.cpus = {0, 1};
  facts.settings.siblings = {{0}, {1}};
  facts.settings.frequencies.resize(2);
  facts.settings.cpu_nodes = {0, 0};
  facts.settings.huge_page_mode = "madvise";
  facts.settings.available_bytes = int64_t{8} << 30;
  facts.settings.nodes = {0};
  facts.settings.memory_nodes = {0};
  return facts;
}

std::string fact_state(const HostFacts& facts, std::string_view id) { return state(check_facts(facts), id); }

}  // namespace

TEST_CASE("a quiet interval has no findings") {
  const Interval quiet;
  for (const Check& check : check_interval(quiet.settings, quiet.before, quiet.after)) {
    CAPTURE(check.id);
    CHECK((check.state == CheckState::kOk || check.id == "cpu.thermal"));
  }
  CHECK(other_load(quiet.settings, quiet.before, quiet.after) == 0.0);
}

TEST_CASE("load of other processes: shares of 2000 ticks") {
  struct Case {
    int64_t ticks;
    const char* state;
  };
  for (const Case& one : {Case{39, "ok"}, Case{40, "note"}, Case{99, "note"}, Case{100, "warning"}}) {
    CAPTURE(one.ticks);
    Interval interval;
    interval.busy(0, one.ticks);
    CHECK(interval.state_of("cpu.other_load") == one.state);
    // The same time, had by this process.
    interval.after.own_ticks = 7 + one.ticks;
    CHECK(interval.state_of("cpu.other_load") == "ok");
    interval.after.own_ticks = 7 + one.ticks + 5;  // counted more exactly than that of CPUs
    CHECK(interval.state_of("cpu.other_load") == "ok");
  }
}

TEST_CASE("load of other processes: half a core is too much on a machine of any size") {
  Interval interval;
  interval.settings.cpus.clear();
  for (int cpu = 0; cpu < 32; ++cpu) {
    interval.settings.cpus.push_back(cpu);
    interval.before.cpus[cpu] = {0, 0, 0};
    interval.after.cpus[cpu] = {0, 1000, 0};
  }
  interval.busy(3, 499);  // 1.6 % of 32 cores
  CHECK(interval.state_of("cpu.other_load") == "ok");
  interval.busy(3, 1);
  CHECK(interval.state_of("cpu.other_load") == "warning");
}

TEST_CASE("an interval too short for shares is not judged") {
  Interval interval;
  for (const int cpu : {0, 1}) interval.after.cpus[cpu] = {500 + 49, 9000, 20};
  CHECK(interval.state_of("cpu.other_load") == "skipped");
  CHECK(interval.state_of("cpu.steal") == "skipped");
  interval.after.cpus[0].busy += 2;
  CHECK(interval.state_of("cpu.other_load") == "warning");
  interval.after.own_ticks.reset();
  CHECK(interval.state_of("cpu.other_load") == "skipped");
  interval.after.cpus.clear();
  CHECK(interval.state_of("cpu.steal") == "skipped");
}

TEST_CASE("a counter that went back, as of a CPU that was offline, is no load") {
  Interval interval;
  interval.after.cpus[0] = {0, 1000, 0};
  interval.after.throttling.throttled_usec = 0;
  CHECK(interval.state_of("cpu.other_load") == "ok");
  CHECK(interval.state_of("cpu.steal") == "ok");
  CHECK(interval.state_of("cpu.throttled") == "ok");
}

TEST_CASE("load of the other hardware threads: 1000 ticks each") {
  Interval interval;
  interval.settings.siblings = {{0, 2}, {1, 3}};
  interval.busy(3, 49);
  CHECK(interval.state_of("cpu.sibling_load") == "ok");
  interval.busy(3, 1);
  CHECK(interval.state_of("cpu.sibling_load") == "warning");
  CHECK(
      find(check_interval(interval.settings, interval.before, interval.after), "cpu.sibling_load").what.find("CPU 3") !=
      std::string::npos);
}

TEST_CASE("time that the hypervisor kept: shares of 2000 ticks") {
  struct Case {
    int64_t ticks;
    const char* state;
  };
  for (const Case& one : {Case{9, "ok"}, Case{10, "note"}, Case{39, "note"}, Case{40, "warning"}}) {
    CAPTURE(one.ticks);
    Interval interval;
    interval.stolen(1, one.ticks);
    CHECK(interval.state_of("cpu.steal") == one.state);
  }
}

TEST_CASE("throttling: any stop is a note, half a percent of 20 s of CPU time a warning") {
  struct Case {
    int64_t usec, periods;
    const char* state;
  };
  for (const Case& one : {Case{0, 0, "ok"}, Case{1, 0, "note"}, Case{0, 1, "note"}, Case{99'999, 3, "note"},
                          Case{100'000, 3, "warning"}}) {
    CAPTURE(one.usec);
    Interval interval;
    *interval.after.throttling.throttled_usec += one.usec;
    *interval.after.throttling.throttled_periods += one.periods;
    CHECK(interval.state_of("cpu.throttled") == one.state);
  }
  Interval unknown;
  unknown.after.throttling = {};
  CHECK(unknown.state_of("cpu.throttled") == "ok");
  unknown.settings.quota_cores = 2;
  CHECK(unknown.state_of("cpu.throttled") == "skipped");
}

TEST_CASE("heat: any event") {
  Interval interval;
  CHECK(interval.state_of("cpu.thermal") == "skipped");
  interval.before.thermal_events = interval.after.thermal_events = 1000;
  CHECK(interval.state_of("cpu.thermal") == "ok");
  interval.after.thermal_events = 1001;
  CHECK(interval.state_of("cpu.thermal") == "warning");
}

TEST_CASE("memory: swap, pressure, pages that moved between nodes") {
  const auto swapped = [](int64_t pages) {
    Interval interval;
    *interval.after.swapped_pages += pages;
    return interval.state_of("memory.swap");
  };
  CHECK(swapped(0) == "ok");
  CHECK(swapped(1) == "note");
  CHECK(swapped(255) == "note");
  CHECK(swapped(256) == "warning");
  const auto stalled = [](int64_t usec) {
    Interval interval;
    *interval.after.memory_stall_usec += usec;
    return interval.state_of("memory.pressure");
  };
  CHECK(stalled(9'999) == "ok");
  CHECK(stalled(10'000) == "note");
  CHECK(stalled(99'999) == "note");
  CHECK(stalled(100'000) == "warning");
  const auto moved = [](int64_t pages) {
    Interval interval;
    interval.before.migrated_pages = 5;
    interval.after.migrated_pages = 5 + pages;
    return interval.state_of("numa.migrations");
  };
  CHECK(moved(1) == "note");
  CHECK(moved(2559) == "note");
  CHECK(moved(2560) == "warning");
  Interval unknown;
  unknown.before.swapped_pages.reset();
  unknown.before.memory_stall_usec.reset();
  CHECK(unknown.state_of("memory.swap") == "skipped");
  CHECK(unknown.state_of("memory.pressure") == "skipped");
}

TEST_CASE("clocks: against the base clock, and among each other") {
  HostSettings settings;
  const auto states = [&](std::vector<double> ghz, std::string_view id) {
    return state(check_clock(settings, ghz), id);
  };
  CHECK(states({}, "cpu.clock") == "skipped");
  CHECK(states({0, 0}, "cpu.clock") == "skipped");
  CHECK(states({0.4}, "cpu.clock") == "ok");  // nothing to compare with
  settings.model_ghz = 2.0;
  CHECK(states({1.901}, "cpu.clock") == "ok");
  CHECK(states({1.899}, "cpu.clock") == "warning");
  settings.frequencies.resize(2);
  settings.frequencies[1].base_khz = 1'000'000;
  CHECK(states({1.899}, "cpu.clock") == "ok");
  CHECK(states({4.0, 3.61}, "cpu.clock_spread") == "ok");
  CHECK(states({3.59, 4.0}, "cpu.clock_spread") == "note");
  CHECK(states({3.01, 4.0}, "cpu.clock_spread") == "note");
  CHECK(states({4.0, 2.99}, "cpu.clock_spread") == "warning");
}

TEST_CASE("quotas, siblings that both compute") {
  HostFacts facts = plain_facts();
  CHECK(fact_state(facts, "cpu.quota") == "ok");
  facts.settings.quota_cores = 1.0;
  CHECK(fact_state(facts, "cpu.quota") == "note");
  facts.settings.quota_cores = 0.99;
  CHECK(fact_state(facts, "cpu.quota") == "warning");
  CHECK(fact_state(facts, "cpu.siblings") == "ok");
  facts.settings.siblings = {{0, 2}, {1, 3}};
  CHECK(fact_state(facts, "cpu.siblings") == "ok");
  facts.settings.siblings = {{0, 1}, {0, 1}};
  CHECK(fact_state(facts, "cpu.siblings") == "warning");
  facts.settings.siblings = {{0}, {}};
  CHECK(fact_state(facts, "cpu.siblings") == "skipped");
}

TEST_CASE("governors by driver") {
  struct Case {
    const char* driver;
    const char* governor;
    const char* preference;
    const char* state;
  };
  for (const Case& one :
       {Case{"", "", "", "skipped"}, Case{"intel_pstate", "performance", "", "ok"},
        Case{"intel_pstate", "powersave", "performance", "ok"},
        Case{"intel_pstate", "powersave", "balance_performance", "note"},
        Case{"amd-pstate-epp", "powersave", "performance", "ok"}, Case{"acpi-cpufreq", "schedutil", "", "note"},
        Case{"acpi-cpufreq", "powersave", "", "warning"}, Case{"acpi-cpufreq", "performance", "", "ok"}}) {
    CAPTURE(one.driver);
    CAPTURE(one.governor);
    HostFacts facts = plain_facts();
    facts.settings.frequencies = {{"intel_pstate", "performance", "", {}, {}, {}},
                                  {one.driver, one.governor, one.preference, {}, {}, {}}};
    if (std::string(one.driver).empty()) facts.settings.frequencies[0] = {};
    CHECK(fact_state(facts, "cpu.governor") == one.state);
  }
}

TEST_CASE("clock limits and turbo") {
  HostFacts facts = plain_facts();
  for (CpuFrequency& frequency : facts.settings.frequencies) {
    frequency = {"intel_pstate", "performance", "", 2'000'000, 4'000'000, 4'000'000};
  }
  CHECK(fact_state(facts, "cpu.frequency_limit") == "ok");
  facts.settings.frequencies[1].limit_khz = 3'960'001;
  CHECK(fact_state(facts, "cpu.frequency_limit") == "ok");
  facts.settings.frequencies[1].limit_khz = 3'959'999;
  CHECK(fact_state(facts, "cpu.frequency_limit") == "warning");
  CHECK(find(check_facts(facts), "cpu.frequency_limit").fix == "cpupower frequency-set -u 4000000kHz");
  CHECK(fact_state(facts, "cpu.turbo") == "skipped");
  facts.settings.turbo = true;
  CHECK(fact_state(facts, "cpu.turbo") == "ok");
  facts.settings.turbo = false;
  CHECK(fact_state(facts, "cpu.turbo") == "note");
}

TEST_CASE("huge pages: what the mode promises, what a buffer got") {
  HostFacts facts = plain_facts();
  CHECK(fact_state(facts, "memory.huge_pages") == "ok");
  facts.settings.huge_page_mode = "never";
  CHECK(fact_state(facts, "memory.huge_pages") == "warning");
  CHECK(find(check_facts(facts), "memory.huge_pages").fix.find("madvise") != std::string::npos);
  facts.settings.huge_page_mode = "always";
  facts.pages.bytes = 1000;
  for (const auto& [bytes, expected] :
       {std::pair(950, "ok"), std::pair(949, "note"), std::pair(800, "note"), std::pair(799, "warning")}) {
    const int granted = bytes;
    CAPTURE(granted);
    facts.pages.huge_bytes = granted;
    CHECK(fact_state(facts, "memory.huge_pages") == expected);
  }
  facts.settings.huge_page_mode.clear();
  facts.pages = {};
  CHECK(fact_state(facts, "memory.huge_pages") == "skipped");
}

TEST_CASE("explicit huge pages, swap, locked memory") {
  HostFacts facts = plain_facts();
  facts.settings.huge_pages = 0;
  facts.settings.huge_page_bytes = 1 << 20;
  CHECK(fact_state(facts, "memory.reserved_huge_pages") == "ok");
  facts.settings.available_bytes = int64_t{99} << 20;
  facts.settings.huge_pages = 1;  // of 100 MiB
  CHECK(fact_state(facts, "memory.reserved_huge_pages") == "note");
  facts.settings.available_bytes = int64_t{100} << 20;
  CHECK(fact_state(facts, "memory.reserved_huge_pages") == "ok");
  facts.settings.huge_pages = INT64_MAX;  // of a damaged file
  CHECK(fact_state(facts, "memory.reserved_huge_pages") == "note");

  facts.settings.own_swapped_bytes = 0;
  CHECK(fact_state(facts, "memory.swapped") == "ok");
  facts.settings.own_swapped_bytes = 1;
  CHECK(fact_state(facts, "memory.swapped") == "warning");

  CHECK(fact_state(facts, "memory.locked_limit") == "ok");
  facts.settings.lockable_bytes = facts.settings.available_bytes - 1;
  CHECK(fact_state(facts, "memory.locked_limit") == "ok");
  facts.pins_memory = true;
  CHECK(fact_state(facts, "memory.locked_limit") == "warning");
  facts.settings.lockable_bytes = facts.settings.available_bytes;
  CHECK(fact_state(facts, "memory.locked_limit") == "ok");
}

TEST_CASE("NUMA: nodes without memory, balancing, misplaced pages") {
  HostFacts facts = plain_facts();
  CHECK(fact_state(facts, "numa.nodes") == "ok");
  facts.settings.nodes = {0, 1};
  facts.settings.cpu_nodes = {0, 1};
  facts.settings.memory_nodes = {0, 1};
  CHECK(fact_state(facts, "numa.nodes") == "ok");
  CHECK(fact_state(facts, "numa.balancing") == "ok");
  facts.settings.memory_nodes = {0};
  CHECK(fact_state(facts, "numa.nodes") == "warning");
  facts.settings.numa_balancing = 1;
  CHECK(fact_state(facts, "numa.balancing") == "note");
  const auto placed = [&](int64_t elsewhere) {
    facts.placed = {{"banks", 0, {{0, 1000}}}, {"banks", 1, {{0, elsewhere}, {1, 1000 - elsewhere}}}};
    return fact_state(facts, "numa.placement");
  };
  CHECK(placed(19) == "ok");
  CHECK(placed(21) == "note");
  CHECK(placed(99) == "note");
  CHECK(placed(101) == "warning");
  facts.placed = {{"banks", 0, {}}};
  CHECK(fact_state(facts, "numa.placement") == "skipped");
}

TEST_CASE("bytes counted over bytes expected, or why not and the command") {
  const auto counted = [](double bytes) { return state({check_reads({1000, bytes, true}, "")}, "counters.dram"); };
  CHECK(counted(899) == "warning");
  CHECK(counted(900) == "ok");
  CHECK(counted(1250) == "ok");
  CHECK(counted(1251) == "warning");
  CHECK(state({check_reads({1000, 100, false}, "")}, "counters.dram") == "skipped");
  CHECK(state({check_reads({}, "")}, "counters.dram") == "skipped");
  const Check none = check_reads({}, "cannot open /dev/cpu/0/msr");
  CHECK(none.what == "cannot open /dev/cpu/0/msr");
  CHECK(none.fix.find("modprobe msr") != std::string::npos);
}

TEST_CASE("several intervals: the worst of each check, with the names of those alike") {
  const auto check = [](const char* id, CheckState state, double size) {
    return Check{.id = id,
                 .state = state,
                 .what = std::string(id) + " " + std::to_string(static_cast<int>(size)),
                 .fix = "f",
                 .size = size};
  };
  const NamedChecks intervals[] = {{"first", {check("a", CheckState::kOk, 1), check("b", CheckState::kSkipped, 0)}},
                                   {"second", {check("a", CheckState::kWarning, 3), check("b", CheckState::kOk, 2)}},
                                   {"third", {check("a", CheckState::kNote, 9), check("b", CheckState::kSkipped, 0)}},
                                   {"fourth", {check("a", CheckState::kWarning, 7)}}};
  const std::vector<Check> worst = worst_checks(intervals);
  REQUIRE(worst.size() == 2);
  CHECK(worst[0].what == "a 7 (second, fourth)");
  CHECK(worst[0].state == CheckState::kWarning);
  CHECK(worst[1].what == "b 2");
  CHECK(worst[1].state == CheckState::kOk);
}

TEST_CASE("findings: warnings first, as many as a profile holds") {
  std::vector<Check> checks = {{.id = "a.ok", .state = CheckState::kOk, .what = "w", .fix = {}, .size = 0},
                               {.id = "a.note", .state = CheckState::kNote, .what = "w1", .fix = "f1", .size = 0},
                               {.id = "a.skipped", .state = CheckState::kSkipped, .what = "w", .fix = {}, .size = 0},
                               {.id = "b.warning", .state = CheckState::kWarning, .what = "w2", .fix = {}, .size = 0}};
  const std::vector<Finding> findings = findings_of(checks);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].id == "b.warning");
  CHECK(findings[0].level == "warning");
  CHECK(findings[1].level == "note");
  CHECK(findings[1].what == "w1");
  CHECK(findings[1].fix == "f1");
  CHECK(any_warning(checks));
  checks.pop_back();
  CHECK_FALSE(any_warning(checks));
  checks.assign(kMaxFindings + 1, {.id = "x.y", .state = CheckState::kNote, .what = "w", .fix = "f", .size = 0});
  CHECK(findings_of(checks).size() == kMaxFindings);
  checks.resize(kMaxFindings);
  CHECK(findings_of(checks).size() == kMaxFindings);
}

TEST_CASE("a run that goes on keeps what was found before, the worse of each") {
  const std::vector<Finding> now = {{"a", "note", "now", ""}, {"b", "warning", "now", ""}};
  const std::vector<Finding> earlier = {
      {"a", "warning", "then", ""}, {"b", "note", "then", ""}, {"c", "warning", "then", ""}};
  const std::vector<Finding> merged = merged_findings(now, earlier);
  REQUIRE(merged.size() == 3);
  CHECK((merged[0].what == "then" && merged[0].level == "warning"));
  CHECK((merged[1].what == "now" && merged[1].level == "warning"));
  CHECK(merged[2].id == "c");
  CHECK(merged_findings(now, {})[0].id == "b");  // warnings first
}

TEST_CASE("samples taken while the machine was disturbed say so") {
  Interval interval;
  *interval.after.throttling.throttled_usec += 1;
  interval.busy(0, 40);  // a note: not worth a remark
  std::vector<std::string> remarks = {"kept"};
  add_remarks(check_interval(interval.settings, interval.before, interval.after), remarks);
  REQUIRE(remarks.size() == 2);
  CHECK(remarks[1].starts_with("cpu.throttled: a CPU quota stopped"));
  interval.busy(0, 60);
  add_remarks(check_interval(interval.settings, interval.before, interval.after), remarks);
  REQUIRE(remarks.size() == 4);
  CHECK(remarks[2].starts_with("cpu.other_load: other processes had 0.10 of 2 cores (5.0 % of their time)"));
}

TEST_CASE("the text: grouped, one line a check and one a command") {
  const std::vector<Check> checks = {
      {.id = "cpu.a", .state = CheckState::kOk, .what = "fine", .fix = {}, .size = 0},
      {.id = "memory.longer", .state = CheckState::kSkipped, .what = "no file", .fix = {}, .size = 0},
      {.id = "cpu.b", .state = CheckState::kWarning, .what = "bad", .fix = "do it", .size = 0}};
  CHECK(doctor_text(checks) ==
        "ok       cpu.a          fine\n"
        "warning  cpu.b          bad\n"
        "                        > do it\n"
        "\n"
        "skipped  memory.longer  no file\n"
        "\nwarnings 1, notes 0, ok 1, skipped 1\n");
  const OrderedJson json = doctor_json(checks);
  CHECK(json["warnings"] == 1);
  CHECK(json["checks"][2]["state"] == "warning");
  CHECK(json["checks"][2]["fix"] == "do it");
}

}  // namespace ft
