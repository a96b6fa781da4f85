// How the files of the doctor write their checks.
#pragma once

#include <string>
#include <utility>

#include "tuner/doctor.h"

namespace ft {

inline Check ok_check(std::string id, std::string what) {
  return {.id = std::move(id), .state = CheckState::kOk, .what = std::move(what), .fix = {}, .size = 0};
}
inline Check skipped_check(std::string id, std::string why, std::string fix = {}) {
  return {.id = std::move(id), .state = CheckState::kSkipped, .what = std::move(why), .fix = std::move(fix), .size = 0};
}

// By two limits, each of which is reached at its value. The fix goes with notes and warnings only.
struct Limits {
  double note, warning;
};
inline CheckState state_of(double size, Limits limits) {
  if (size >= limits.warning) return CheckState::kWarning;
  return size >= limits.note ? CheckState::kNote : CheckState::kOk;
}
inline Check graded_check(std::string id, CheckState state, std::string what, std::string fix, double size = 0) {
  if (state == CheckState::kOk) fix.clear();
  return {.id = std::move(id), .state = state, .what = std::move(what), .fix = std::move(fix), .size = size};
}

// "1 core", "2 cores"
inline std::string counted(int64_t count, const std::string& noun, const std::string& plural = {}) {
  return std::to_string(count) + " " + (count == 1 ? noun : plural.empty() ? noun + "s" : plural);
}

// In doctor_cpu.cpp, doctor_memory.cpp.
void add_cpu_facts(const HostFacts& facts, std::vector<Check>& checks);
void add_memory_facts(const HostFacts& facts, std::vector<Check>& checks);
void add_numa_facts(const HostFacts& facts, std::vector<Check>& checks);
void add_memory_interval(const HostCounters& before, const HostCounters& after, std::vector<Check>& checks);

}  // namespace ft
