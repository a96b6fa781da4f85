#include "profiles/compare_series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

namespace ft {
namespace {

// Coordinates that say what came out, or how long a sample was, not what was asked for.
constexpr std::array<std::string_view, 9> kOutcomes = {"bytes",    "candidate",           "fetched_share",
                                                       "hit_rate", "hit_rate_first_half", "hit_rate_second_half",
                                                       "layers",   "others_share",        "threads_worked"};
// Others are the same point within this: working sets follow the free memory, means of a trace its length.
constexpr double kPointTolerance = 0.1;

// Their numbers depend on slots, batch, context and every pinned option.
bool runs_the_engine(std::string_view probe) {
  return probe == "layer_sweep" || probe == "dense" || probe == "host_rows" || probe == "overlap" || probe == "decode";
}

bool reads_the_machine(const Measurement& m) {
  return m.probe == kYardstickProbe || m.probe == "stream" || m.probe == "pcie_linear" ||
         m.name.find("mem_read") != std::string::npos;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text.empty() ? "none" : text;
}

double at(const Measurement& measurement, const char* key) {
  const auto found = measurement.at.find(key);
  return found == measurement.at.end() ? -1 : found->second;
}

// Which candidate a series of `decode` ran. Its name has strategy, slots and threads; candidates that share them differ
// in the split, and stand in the order of the index that `decode` gives them.
class MeasuredCandidates {
 public:
  explicit MeasuredCandidates(const Profile& profile) {
    for (const Candidate& c : profile.candidates) {
      if (c.measured_tok_s.empty()) continue;
      by_name_[c.strategy + ".slots=" + std::to_string(c.slots) + ".threads=" + std::to_string(c.threads)].push_back(
          &c);
    }
    for (const Measurement& m : profile.measurements) {
      if (m.probe == "decode") indices_[name_of(m)].insert(at(m, "candidate"));
    }
  }
  const Candidate* of(const Measurement& decode) const {
    const auto candidates = by_name_.find(name_of(decode));
    if (candidates == by_name_.end()) return nullptr;
    const std::set<double>& indices = indices_.at(name_of(decode));
    const auto rank = static_cast<size_t>(std::distance(indices.begin(), indices.find(at(decode, "candidate"))));
    return rank < candidates->second.size() ? candidates->second[rank] : nullptr;
  }

 private:
  static std::string name_of(const Measurement& decode) { return decode.name.substr(0, decode.name.find(".context=")); }

  std::map<std::string, std::vector<const Candidate*>> by_name_;
  std::map<std::string, std::set<double>> indices_;
};

std::string point_text(const Measurement& decode) {
  return "context=" + number(at(decode, "context")) + ".batch=" + number(at(decode, "batch"));
}

std::string series_name(const Measurement& m, const Candidate* candidate) {
  if (m.probe == kYardstickProbe) return m.name;  // "yardstick.copy.threads=2"
  if (candidate == nullptr) return m.probe + "/" + m.name;
  return m.probe + "/" + candidate->strategy + ".slots=" + std::to_string(candidate->slots) +
         ".threads=" + std::to_string(candidate->threads) + " (" + candidate->split + ") " + point_text(m);
}

std::string different_point(const Measurement& base, const Measurement& next) {
  const auto is_outcome = [](const std::string& key) {
    return std::find(kOutcomes.begin(), kOutcomes.end(), key) != kOutcomes.end();
  };
  for (const auto& [key, value] : base.at) {
    const auto found = next.at.find(key);
    if (is_outcome(key) || found == next.at.end()) continue;
    if (std::abs(value - found->second) > kPointTolerance * std::max(std::abs(value), std::abs(found->second))) {
      return "another point: " + key + " is " + number(value) + " in BASE, " + number(found->second) + " in NEW";
    }
  }
  return {};
}

// How the yardstick was read is part of what its readings mean; of an older version they mean something else.
std::string different_yardstick(const Measurement& base, const Measurement& next) {
  const auto text = [](const Measurement& yardstick) {
    return "version " + number(at(yardstick, "version")) + ", the fastest of " +
           number(std::max(1.0, at(yardstick, "best_of")));
  };
  if (text(base) == text(next)) return {};
  return "another yardstick: " + text(base) + " in BASE, " + text(next) + " in NEW; tune BASE's build again";
}

std::string different_conditions(const Conditions& base, const Conditions& next) {
  const auto differ = [](const std::string& what, const std::string& a, const std::string& b) {
    return what + " differ: " + a + " in BASE, " + b + " in NEW";
  };
  if (base.forced != next.forced) return differ("pinned options", joined(base.forced), joined(next.forced));
  if (base.device_memory_limit_bytes != next.device_memory_limit_bytes) {
    const auto limit = [](std::optional<int64_t> bytes) { return bytes ? std::to_string(*bytes) : "none"; };
    return differ("device memory limits", limit(base.device_memory_limit_bytes), limit(next.device_memory_limit_bytes));
  }
  if (base.routing_source != next.routing_source) {
    return differ("expert choices", base.routing_source, next.routing_source);
  }
  // The largest of either decides how much memory keys and values take, and so the slots and all addresses.
  const auto largest = [](const std::vector<int64_t>& values) {
    return values.empty() ? std::string("none") : std::to_string(*std::max_element(values.begin(), values.end()));
  };
  if (largest(base.contexts) != largest(next.contexts)) {
    return differ("largest contexts", largest(base.contexts), largest(next.contexts));
  }
  if (largest(base.batches) != largest(next.batches)) {
    return differ("largest batches", largest(base.batches), largest(next.batches));
  }
  return {};
}

std::string different_mechanism(const Candidate& base, const Candidate& next) {
  if (!base.fetch_mechanism.empty() && !next.fetch_mechanism.empty() && base.fetch_mechanism != next.fetch_mechanism) {
    return "fetched by " + base.fetch_mechanism + " in BASE, by " + next.fetch_mechanism + " in NEW";
  }
  if (base.max_prefetches_per_layer != next.max_prefetches_per_layer) {
    const auto shown = [](std::optional<int> count) { return std::to_string(count.value_or(0)); };
    return "prefetches of a layer: " + shown(base.max_prefetches_per_layer) + " in BASE, " +
           shown(next.max_prefetches_per_layer) + " in NEW";
  }
  return {};
}

const Candidate* chosen(const Profile& profile) {
  const auto found = std::find_if(profile.candidates.begin(), profile.candidates.end(),
                                  [](const Candidate& candidate) { return candidate.chosen; });
  return found == profile.candidates.end() ? nullptr : &*found;
}

}  // namespace

std::vector<NamedSeries> named_series(const Profile& profile, bool with_served) {
  std::vector<NamedSeries> all;
  size_t group = 0;  // where the series begin that a yardstick is for
  std::map<std::string, int> seen;
  const MeasuredCandidates candidates(profile);
  for (const Measurement& m : profile.measurements) {
    if (m.probe != kYardstickProbe && !all.empty() && all.back().measurement->probe == kYardstickProbe) {
      group = all.size();
    }
    NamedSeries one;
    one.measurement = &m;
    if (m.probe == "decode") one.candidate = candidates.of(m);
    one.name = series_name(m, one.candidate);
    if (const int count = ++seen[one.name]; count > 1) one.name += " #" + std::to_string(count);
    one.is_machine = reads_the_machine(m);
    all.push_back(std::move(one));
    if (m.probe != kYardstickProbe) continue;
    const bool of_team = at(m, "threads") > 1;
    for (size_t i = group; i < all.size(); ++i) (of_team ? all[i].team : all[i].yardstick) = &m;
  }
  if (!with_served) return all;
  const Candidate* served = chosen(profile);
  const size_t measured = all.size();
  for (size_t i = 0; i < measured; ++i) {
    if (served == nullptr || all[i].candidate != served) continue;
    NamedSeries one = all[i];
    one.name = "served/" + point_text(*one.measurement);
    all.push_back(std::move(one));
  }
  return all;
}

bool same_choice(const Profile& base, const Profile& next) {
  const Candidate* a = chosen(base);
  const Candidate* b = chosen(next);
  if (a == nullptr || b == nullptr) return a == b;
  return a->strategy == b->strategy && a->threads == b->threads && a->slots == b->slots && a->split == b->split;
}

std::vector<double> log_times(const Measurement& measurement) {
  const bool rate = measurement.unit == "GB/s" || measurement.unit == "tok/s";
  const bool time = measurement.unit == "us" || measurement.unit == "ms" || measurement.unit == "s";
  std::vector<double> logs;
  if (!rate && !time) return logs;
  for (const double value : measurement.values) {
    if (!(value > 0)) return {};
    logs.push_back(rate ? -std::log(value) : std::log(value));
  }
  return logs;
}

std::string obstacle(const NamedSeries& base, const NamedSeries& next, const Profile& base_profile,
                     const Profile& next_profile) {
  const Measurement& a = *base.measurement;
  const Measurement& b = *next.measurement;
  if (a.unit != b.unit) return "another unit: " + a.unit + " in BASE, " + b.unit + " in NEW";
  std::string reason = different_point(a, b);
  if (reason.empty() && base.yardstick != nullptr && next.yardstick != nullptr) {
    reason = different_yardstick(*base.yardstick, *next.yardstick);
  }
  if (reason.empty() && a.reduced != b.reduced) {
    reason = std::string("shortened to fit the budget in ") + (a.reduced ? "BASE" : "NEW") + " only";
  }
  if (reason.empty() && runs_the_engine(a.probe)) {
    reason = different_conditions(base_profile.conditions, next_profile.conditions);
  }
  if (reason.empty() && base.candidate != nullptr && next.candidate != nullptr && base.name.find("served/") != 0) {
    reason = different_mechanism(*base.candidate, *next.candidate);
  }
  return reason;
}

std::string absence(const NamedSeries& series, const Profile& of, const Profile& other, std::string_view other_name) {
  const std::string& probe = series.measurement->probe;
  for (const SkippedProbe& skipped : other.skipped) {
    if (skipped.probe == probe) return "skipped in " + std::string(other_name) + ": " + skipped.reason;
  }
  const auto differ = [&](const char* what, const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    if (a == b) return std::string();
    std::vector<std::string> listed;
    listed.reserve(b.size());
    for (const int64_t value : b) listed.push_back(std::to_string(value));
    return "not in " + std::string(other_name) + ", whose " + what + " are " + joined(listed);
  };
  std::string reason;
  if (runs_the_engine(probe)) reason = differ("contexts", of.conditions.contexts, other.conditions.contexts);
  if (reason.empty() && runs_the_engine(probe)) {
    reason = differ("batches", of.conditions.batches, other.conditions.batches);
  }
  return reason.empty() ? "not in " + std::string(other_name) : reason;
}

}  // namespace ft
