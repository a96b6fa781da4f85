#include "profiles/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <tuple>

#include "kernels/base/statistics.h"
#include "profiles/compare_noise.h"
#include "profiles/compare_series.h"
#include "profiles/rank_test.h"

namespace ft {
namespace {

// What two tunings of one build differ by on a quiet machine (scripts/compare-aa says what they do on this one), by the
// start of a metric's name; the first that fits counts.
struct StatedFloor {
  std::string_view prefix;
  double share;
};
constexpr std::array<StatedFloor, 5> kStatedFloors = {{
    {"expert_single/", 0.06},  // one loop over weights; where its memory came to lie made up to 5 %
    {"decode/", 0.05},         // hundreds of turns, interleaved
    {"served/", 0.05},
    // Hand-overs between threads and nothing else: which cores a hypervisor puts the threads on made 2.8 us into 5.1,
    // and no yardstick sees that.
    {"layer_sweep/look_ahead=", 0.40},
    {"", 0.08},  // layers of some microseconds, hand-overs, copies beside computing
}};

// Of times that the yardstick of their round put right: two tunings of one build differ by 1.6 % (standard deviation),
// and of 3540 pairs 8 had a false alarm of a kernel with 3 %, none with 4.5 %.
constexpr double kStatedFloorByYardstick = 0.045;

double stated_floor(const std::string& name, bool by_yardstick, const CompareOptions& options) {
  if (options.floor) return *options.floor;
  if (by_yardstick) return kStatedFloorByYardstick;
  return std::find_if(kStatedFloors.begin(), kStatedFloors.end(),
                      [&](const StatedFloor& floor) { return name.starts_with(floor.prefix); })
      ->share;
}

double half_interquartile_range(const std::vector<double>& values) {
  return (quantile(values, 0.75) - quantile(values, 0.25)) / 2;
}

// Of a version before it, with series that would need it.
bool lacks_team_yardstick(const Profile& profile) {
  bool needed = false;
  for (const Measurement& m : profile.measurements) {
    const auto threads = m.at.find("threads");
    if (threads == m.at.end() || threads->second <= 1) continue;
    if (m.probe == kYardstickProbe) return false;
    needed = true;
  }
  return needed;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

class Comparer {
 public:
  Comparer(const Profile& base, const Profile& next, const CompareOptions& options)
      : base_(base), next_(next), options_(options), noise_(base, next) {}

  ProfileComparison run() {
    compare_identities();
    if (!result_.incomparable.empty()) return std::move(result_);
    note_conditions();
    const bool served = !same_choice(base_, next_);
    const std::vector<NamedSeries> base = named_series(base_, served), next = named_series(next_, served);
    std::map<std::string, const NamedSeries*> by_name;
    for (const NamedSeries& series : next) by_name.emplace(series.name, &series);
    read_machine(base, by_name);
    for (const NamedSeries& series : base) {
      const auto found = by_name.find(series.name);
      const NamedSeries* other = found == by_name.end() ? nullptr : found->second;
      if (found != by_name.end()) by_name.erase(found);
      if (is_asked(series)) add(&series, other);
    }
    for (const NamedSeries& series : next) {
      if (by_name.contains(series.name) && is_asked(series)) add(nullptr, &series);
    }
    judge();
    return std::move(result_);
  }

 private:
  // What a comparison of builds takes for granted; the build itself is expected to differ.
  void compare_identities() {
    for (IdentityDifference& difference : compare_identity(base_.identity, next_.identity)) {
      const bool unknown = difference.profile_value.empty() || difference.machine_value.empty();
      const bool newer_hash = difference.field == "model.data_sample_hash" && unknown;  // absent before version 1.1
      if (!difference.field.starts_with("build.") && !newer_hash) {
        result_.incomparable.push_back("another " + difference.field.substr(0, difference.field.find('.')) + ": " +
                                       difference.field + " is " + shown(difference.profile_value) + " in BASE, " +
                                       shown(difference.machine_value) + " in NEW");
      }
      result_.differences.push_back(std::move(difference));
    }
    if (base_.conditions.device != next_.conditions.device) {
      result_.incomparable.push_back("another device: " + base_.conditions.device + " in BASE, " +
                                     next_.conditions.device + " in NEW");
    }
  }
  static std::string shown(const std::string& value) { return value.empty() ? "none" : "'" + value + "'"; }

  void note_conditions() {
    const auto note = [&](const std::string& text) { result_.notes.push_back(text); };
    const auto choice = [](const Profile& p) {
      return p.serve.strategy + " with " + std::to_string(p.serve.threads) + " threads and " +
             std::to_string(p.serve.slots) + " slots";
    };
    if (!same_choice(base_, next_)) {
      note("the decision changed from " + choice(base_) + " to " + choice(next_) +
           ": what it serves is compared as served/");
    }
    const Conditions& a = base_.conditions;
    const Conditions& b = next_.conditions;
    if (a.budget_seconds != b.budget_seconds) {
      note("budgets differ: " + std::to_string(std::lround(a.budget_seconds)) + " s in BASE, " +
           std::to_string(std::lround(b.budget_seconds)) + " s in NEW");
    }
    if (a.memory != b.memory) note("memory differs: " + a.memory + " in BASE, " + b.memory + " in NEW");
    for (const auto& [name, profile] : {std::pair("BASE", &base_), {"NEW", &next_}}) {
      if (!lacks_team_yardstick(*profile)) continue;
      note(std::string("no yardstick of all threads in ") + name +
           ": of series of several threads, only what the others of their probe did not do is seen");
    }
    base_only_ = warnings(a, b);
    next_only_ = warnings(b, a);
    for (const Excuse& excuse : base_only_) note("only in BASE: " + excuse.text);
    for (const Excuse& excuse : next_only_) note("only in NEW: " + excuse.text);
  }

  // What spoilt numbers of one profile alone.
  struct Excuse {
    std::string text;
    bool took_moments = false;  // of the CPUs, now and then, wherever in the tuning that was
  };
  static std::vector<Excuse> warnings(const Conditions& of, const Conditions& other) {
    std::vector<Excuse> excuses;
    if (of.throttled_usec > 0 && other.throttled_usec == 0) {
      excuses.push_back({"the cgroup throttled it for " + std::to_string(of.throttled_usec) + " us"});
    }
    for (const Finding& finding : of.findings) {
      const bool both = std::any_of(other.findings.begin(), other.findings.end(),
                                    [&](const Finding& f) { return f.id == finding.id && f.level == finding.level; });
      if (finding.level != "warning" || both) continue;
      const bool took_moments = finding.id == "cpu.steal" || finding.id == "cpu.other_load";
      excuses.push_back({finding.id + ": " + finding.what, took_moments});
    }
    return excuses;
  }

  void read_machine(const std::vector<NamedSeries>& base, const std::map<std::string, const NamedSeries*>& next) {
    for (const NamedSeries& series : base) {
      const auto found = next.find(series.name);
      if (found != next.end() && obstacle(series, *found->second, base_, next_).empty()) {
        noise_.add(series, *found->second);
      }
    }
    result_.machine_readings = noise_.readings();
    std::vector<double> ratios;
    for (const MachineReading& reading : result_.machine_readings) ratios.push_back(reading.ratio);
    if (!ratios.empty()) result_.machine = median(ratios);
  }

  bool is_asked(const NamedSeries& series) const {
    if (series.is_machine) return false;
    return options_.metrics.empty() ||
           std::any_of(options_.metrics.begin(), options_.metrics.end(),
                       [&](const std::string& prefix) { return series.name.starts_with(prefix); });
  }

  void add(const NamedSeries* base, const NamedSeries* next) {
    const NamedSeries& any = base != nullptr ? *base : *next;
    MetricComparison metric;
    metric.name = any.name;
    metric.unit = any.measurement->unit;
    const auto describe = [](const NamedSeries* series, double& middle, size_t& samples) {
      if (series == nullptr || series->measurement->values.empty()) return;
      middle = median(series->measurement->values);
      samples = series->measurement->values.size();
    };
    describe(base, metric.base, metric.base_samples);
    describe(next, metric.next, metric.next_samples);
    Blocks blocks;
    if (next == nullptr) {
      metric.reason = absence(any, base_, next_, "NEW");
    } else if (base == nullptr) {
      metric.reason = absence(any, next_, base_, "BASE");
    } else {
      metric.reason = obstacle(*base, *next, base_, next_);
      if (metric.reason.empty()) measure(*base, *next, metric, blocks);
    }
    if (!metric.reason.empty()) metric.verdict = Verdict::kIncomparable;
    result_.metrics.push_back(std::move(metric));
    blocks_.push_back(std::move(blocks));
  }

  struct Blocks {
    std::vector<double> base, next;
    bool finds_free_moments = false;
  };

  void measure(const NamedSeries& base, const NamedSeries& next, MetricComparison& metric, Blocks& blocks) const {
    const Times a = noise_.undisturbed_times(base), b = noise_.undisturbed_times(next);
    if (a.rounds == 0 || b.rounds == 0) {
      metric.reason = "values in '" + metric.unit + "' that are no times or rates above 0";
      return;
    }
    if (std::min(a.rounds, b.rounds) < kMinComparedSamples) {
      metric.reason = "too few samples: " + std::to_string(a.rounds) + " in BASE, " + std::to_string(b.rounds) +
                      " in NEW, at least " + std::to_string(kMinComparedSamples) + " each";
      return;
    }
    if (std::min(a.logs.size(), b.logs.size()) < kMinComparedSamples) {
      const auto part = [](const Times& times) {
        return std::to_string(times.logs.size()) + " of " + std::to_string(times.rounds);
      };
      metric.reason = "the machine ran at its own speed, by the yardstick, in " + part(a) + " rounds of BASE and " +
                      part(b) + " of NEW; at least " + std::to_string(kMinComparedSamples) + " are needed";
      return;
    }
    blocks = {fastest_of_blocks(a.logs), fastest_of_blocks(b.logs), finds_free_moments(*base.measurement)};
    const Shift shift = estimate_shift(blocks.base, blocks.next, kRatioConfidence);
    metric.ratio = std::exp(shift.estimate);
    metric.low = std::exp(shift.low);
    metric.high = std::exp(shift.high);
    const bool by_yardstick = blocks.finds_free_moments && !a.yardstick.empty() && !b.yardstick.empty();
    metric.floor.stated = stated_floor(metric.name, by_yardstick, options_);
    metric.floor.learnt = std::hypot(half_interquartile_range(blocks.base), half_interquartile_range(blocks.next));
    metric.floor.machine = noise_.floor(base, next, a, b);
    if (metric.floor.total() > kUselessFloor) {
      metric.reason = "too noisy: only a difference above " + percent(metric.floor.total()) + " would say anything";
      const double load = other_load(base, next);
      if (load > kLoadNotSeen) metric.reason += "; others kept the CPUs " + percent(load) + " busy meanwhile";
    }
  }

  // Holm (1979): the smallest of n values times n, the next times n - 1, and so on, never less than the one before.
  void judge() {
    std::vector<size_t> order;
    for (size_t i = 0; i < result_.metrics.size(); ++i) {
      MetricComparison& metric = result_.metrics[i];
      if (metric.verdict == Verdict::kIncomparable) continue;
      const Blocks& blocks = blocks_[i];
      const double floor = std::log1p(metric.floor.total());
      metric.p = metric.ratio > 1 ? p_of_greater(blocks.base, blocks.next, floor)
                                  : p_of_greater(blocks.next, blocks.base, floor);
      order.push_back(i);
    }
    for (const bool slower : {true, false}) {
      std::vector<size_t> family;
      for (const size_t i : order) {
        if ((result_.metrics[i].ratio > 1) == slower) family.push_back(i);
      }
      std::sort(family.begin(), family.end(),
                [&](size_t a, size_t b) { return result_.metrics[a].p < result_.metrics[b].p; });
      double least = 0;
      for (size_t rank = 0; rank < family.size(); ++rank) {
        MetricComparison& metric = result_.metrics[family[rank]];
        // All metrics are tested in this direction; those that point the other way come last, with 1.
        least = std::clamp(metric.p * static_cast<double>(order.size() - rank), least, 1.0);
        metric.p = least;
        if (metric.p < kFamilyError) decide(metric, slower, blocks_[family[rank]].finds_free_moments);
      }
    }
    std::stable_sort(result_.metrics.begin(), result_.metrics.end(),
                     [](const MetricComparison& a, const MetricComparison& b) {
                       return std::tuple(a.verdict, -std::abs(std::log(std::max(a.ratio, 1e-9)))) <
                              std::tuple(b.verdict, -std::abs(std::log(std::max(b.ratio, 1e-9))));
                     });
  }

  // A finding of the slower side alone may be all that there is to it; not of what others took now and then where the
  // series found free moments, by the yardstick of each of its rounds.
  void decide(MetricComparison& metric, bool slower, bool found_free_moments) const {
    const std::vector<Excuse>& excuses = slower ? next_only_ : base_only_;
    const auto excuse = std::find_if(excuses.begin(), excuses.end(),
                                     [&](const Excuse& e) { return !(e.took_moments && found_free_moments); });
    if (excuse == excuses.end()) {
      metric.verdict = slower ? Verdict::kRegressed : Verdict::kImproved;
      return;
    }
    metric.verdict = Verdict::kIncomparable;
    metric.reason = (slower ? "slower, but NEW alone was measured so: " : "faster, but BASE alone was measured so: ") +
                    excuse->text;
  }

  const Profile& base_;
  const Profile& next_;
  const CompareOptions& options_;
  MachineNoise noise_;
  ProfileComparison result_;
  std::vector<Blocks> blocks_;  // of result_.metrics
  std::vector<Excuse> base_only_, next_only_;
};

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  constexpr std::array<std::string_view, 4> kNames = {"regressed", "improved", "incomparable", "same"};
  return kNames[static_cast<size_t>(verdict)];
}

size_t ProfileComparison::count(Verdict verdict) const {
  return static_cast<size_t>(std::count_if(metrics.begin(), metrics.end(),
                                           [&](const MetricComparison& metric) { return metric.verdict == verdict; }));
}

int ProfileComparison::exit_code() const {
  if (!incomparable.empty() || count(Verdict::kIncomparable) == metrics.size()) return kExitIncomparable;
  return count(Verdict::kRegressed) > 0 ? kExitRegressed : 0;
}

ProfileComparison compare_profiles(const Profile& base, const Profile& next, const CompareOptions& options) {
  return Comparer(base, next, options).run();
}

}  // namespace ft
