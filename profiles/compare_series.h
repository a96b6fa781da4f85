// Which series of two profiles are the same metric, and what stands in the way of comparing them. Internal to
// profiles/.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/profile.h"

namespace ft {

// One series with a name that means the same in every profile of the same host, model and options.
struct NamedSeries {
  std::string name;
  const Measurement* measurement = nullptr;
  const Measurement* yardstick = nullptr;  // of the same rounds; null in profiles without
  const Measurement* team = nullptr;       // the same of all threads at once; null in profiles without
  const Candidate* candidate = nullptr;    // of `decode`
  bool is_machine = false;                 // see MachineReading
};

// In order of the profile's measurements, then "served/..": the rates of the chosen candidate, where the two profiles
// chose differently. The profile must outlive the result. `with_served`: see above.
std::vector<NamedSeries> named_series(const Profile& profile, bool with_served);

// The same candidate was chosen, as far as its rates go.
bool same_choice(const Profile& base, const Profile& next);

// Times: microseconds as they are, rates as reciprocals; natural logarithms. Empty for an unknown unit or a value that
// is not above 0.
std::vector<double> log_times(const Measurement& measurement);

// Why the two cannot be compared, empty: they can. Says what differs: unit, point, reduced, mechanism, conditions.
std::string obstacle(const NamedSeries& base, const NamedSeries& next, const Profile& base_profile,
                     const Profile& next_profile);

// Why a metric of one profile has no counterpart in `other`.
std::string absence(const NamedSeries& series, const Profile& of, const Profile& other, std::string_view other_name);

}  // namespace ft
