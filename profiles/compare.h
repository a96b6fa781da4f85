// Two profiles, metric by metric, from their raw samples: did a build become slower? The question behind it is always
// whether a difference is more than two tunings of one build would show, and the samples of one tuning do not say that:
// they were taken within seconds, in one process. So
//
//   values  A series is cut into 8 to 10 stretches of time, and the fastest sample of each is what is compared: what
//           other processes and neighbours add to a time is not the build's. (A build that makes only some samples
//           slower is not seen; medians are shown.)
//   floor   A difference must be beyond the sum of
//             stated   what two tunings of one build on a quiet machine differ by, for each class of metrics
//             learnt   what the metric moved within either tuning: half the interquartile range of its values
//             machine  what the machine did meanwhile: the yardsticks of the same rounds (probes/yardstick.h), for
//                      series of several threads also that of all threads at once, plain reads and STREAM, how busy
//                      other processes kept the CPUs, and what the yardsticks lost on average of all rounds, as
//                      neighbours take cache and memory in rounds in which they leave the yardstick alone. Older
//                      profiles lack the yardstick of all threads: what such series of one probe did together stands
//                      for it, and hides a build that slowed them all.
//                      Nothing for kernels alone, the fastest of short bursts: their times are put right by the
//                      yardstick of their round, and that others took the CPUs now and then is no excuse for them
//           A floor above one half says nothing any more: incomparable.
//   test    An exact rank-sum test must say that NEW's values lie beyond BASE's and the floor, with Holm's correction:
//           one false alarm among 200 metrics fails a whole job, so the error of the family is what is bounded, not the
//           share of false ones among the alarms (Benjamini and Hochberg).
//
// All times: a rate counts as its reciprocal, and ratios are NEW over BASE, so that above 1 is slower.
//
// Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/profile.h"

namespace ft {

inline constexpr size_t kMinComparedSamples = 8;  // of a side: 8 against 8 can reach 1 in 12870, 7 only 1 in 3432
inline constexpr double kFamilyError = 0.05;      // of a false alarm among all metrics, per direction
inline constexpr double kRatioConfidence = 0.95;  // of the interval that is shown, each metric for itself
inline constexpr double kUselessFloor = 0.5;      // a floor of so much says nothing any more

inline constexpr int kExitRegressed = 1;
inline constexpr int kExitIncomparable = 3;

enum class Verdict : uint8_t { kRegressed, kImproved, kIncomparable, kSame };  // as they are listed
std::string_view verdict_name(Verdict verdict);

struct CompareOptions {
  std::vector<std::string> metrics;  // prefixes of the names of those to compare; empty: all
  std::optional<double> floor;       // a share; takes the place of the stated ones
};

struct NoiseFloor {  // shares
  double stated = 0, learnt = 0, machine = 0;
  double total() const { return stated + learnt + machine; }
};

struct MetricComparison {
  std::string name;  // "expert_single/nvfp4.avx512.gate_up.threads=2"
  std::string unit;
  Verdict verdict = Verdict::kSame;
  std::string reason;         // of kIncomparable
  double base = 0, next = 0;  // medians, in the metric's unit; 0 where there are no samples
  size_t base_samples = 0, next_samples = 0;
  double ratio = 0, low = 0, high = 0;  // of time, NEW over BASE; 0 where it cannot be told
  NoiseFloor floor;
  double p = 1;  // of the direction that the ratio points in, after Holm's correction
};

// What no build changes: the yardsticks, STREAM, plain reads, plain copies. Shown, not judged.
struct MachineReading {
  std::string name;
  double ratio = 1;  // of time, NEW over BASE
};

struct ProfileComparison {
  std::vector<std::string> incomparable;         // as a whole, and why; then nothing below is filled but differences
  std::vector<IdentityDifference> differences;   // of identity; those of `build` are what a comparison is for
  std::vector<std::string> notes;                // conditions and decisions that differ
  double machine = 1;                            // the median of its readings
  std::vector<MachineReading> machine_readings;  // in order of BASE
  std::vector<MetricComparison> metrics;         // by verdict, then the largest change first
  size_t count(Verdict verdict) const;
  // 0 no regression, kExitRegressed, kExitIncomparable (as a whole, or no metric could be compared).
  int exit_code() const;
};

ProfileComparison compare_profiles(const Profile& base, const Profile& next, const CompareOptions& options);

}  // namespace ft
