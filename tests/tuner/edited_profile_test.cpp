// A profile that somebody edited is refused by the reader or explained and drawn: never a crash, never a page that is
// not well formed. Checked against: every number of a full profile replaced, one at a time, by extreme ones, every list
// emptied and doubled, every text made hostile.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tests/profiles/sample_profile.h"
#include "tests/tuner/well_formed.h"
#include "tuner/cost_model.h"
#include "tuner/explain.h"
#include "tuner/prediction.h"
#include "tuner/report/page.h"

namespace ft {
namespace {

// The sample with a model that predicts its candidates again, and cells of a sweep.
Profile full_profile() {
  Profile profile = sample_profile();
  profile.cost_model.parameters.clear();
  const auto add = [&](std::string_view name, std::string_view unit, double value) {
    profile.cost_model.parameters.push_back(
        {std::string(name) + ".threads=2", std::string(unit), value, value, value, 0.1});
  };
  for (const CostTermInfo& term : cost_terms()) add(term.name, term.unit, term.unit == "s" ? 1e-5 : 0.2);
  for (const char* name : {"dense_fixed", "dense_per_token", "dense_per_position", "dense_per_further_position"}) {
    add(name, "s", 1e-7);
  }
  profile.cost_model.parameters.push_back({std::string(kMoeLayersParameter), "1", 6, 6, 6, {}});
  for (Candidate& candidate : profile.candidates) {
    CandidateReplay four = candidate.replays[0];
    four.batch = 4;
    for (ReplayedCounts& counts : four.counts) counts.tokens = 4;
    candidate.replays.push_back(four);
  }
  profile.candidates[1].replays[0].counts[0].cpu = profile.candidates[1].replays[0].counts[0].cpu_picks = 4;
  profile.candidates[1].measured_tok_s = profile.candidates[1].measured_low =
      profile.candidates[1].measured_high = {7, 13, 5, 11};
  for (int experts = 0; experts < 4; ++experts) {
    Measurement cell;
    cell.probe = "layer_sweep";
    cell.name = "cell " + std::to_string(experts);
    cell.unit = "us";
    cell.values = {20.0 + 10 * experts, 21.0 + 10 * experts};
    cell.stop_reason = "samples";
    const auto count = static_cast<double>(experts);
    cell.at = {{"threads", 2}, {"tokens", 1}, {"hits", count}, {"hit_picks", count}};
    profile.measurements.push_back(cell);
  }
  return profile;
}

// Refused, or explained and drawn.
bool survives(const OrderedJson& json) {
  Profile profile;
  try {
    profile = parse_profile(parse_json(json.dump(), "edited"), "edited");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUsage);
    return false;
  }
  CHECK(!explain_text(profile).empty());
  CHECK(explain_json(profile).is_object());
  const ReportedProfile one[] = {{"edited.json", profile}};
  const std::string problem = well_formed(report_page(one));
  CHECK(problem == "");
  return true;
}

// Calls `edit` with a copy of `root` and a pointer to every value in it, `root` itself aside.
void for_every_value(const OrderedJson& root, const std::function<void(const OrderedJson::json_pointer&)>& visit,
                     const OrderedJson::json_pointer& at = OrderedJson::json_pointer()) {
  const OrderedJson& value = root.at(at);
  if (!at.empty()) visit(at);
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) for_every_value(root, visit, at / key);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) for_every_value(root, visit, at / i);
  }
}

}  // namespace

TEST_CASE("the profile that is edited below goes through all of explain and report") {
  const Profile profile = full_profile();
  CHECK(survives(profile_to_json(profile)));
  CHECK(!explain(profile).changes.empty());
  const ReportedProfile one[] = {{"full.json", profile}};
  const std::string page = report_page(one);
  for (const char* words :
       {"The sweep with the fitted lines", "Hit rate against slots", "plot-title", "class=\"part "}) {
    CHECK(page.find(words) != std::string::npos);
  }
}

TEST_CASE("any one value of a profile may be anything") {
  const OrderedJson root = profile_to_json(full_profile());
  int read = 0, refused = 0;
  const auto check = [&](const OrderedJson::json_pointer& at, const OrderedJson& value) {
    OrderedJson edited = root;
    edited[at] = value;
    CAPTURE(at.to_string());
    CAPTURE(value.dump().substr(0, 60));
    (survives(edited) ? read : refused) += 1;
  };
  for_every_value(root, [&](const OrderedJson::json_pointer& at) {
    const OrderedJson& value = root.at(at);
    if (value.is_number()) {
      for (const double number : {0.0, -1.0, 1e-320, 1e300, 1.7e308, 7.0, 2147483648.0}) {
        check(at,
              value.is_number_integer() && number == static_cast<double>(static_cast<int64_t>(std::min(number, 1e18)))
                  ? OrderedJson(static_cast<int64_t>(number))
                  : OrderedJson(number));
      }
    } else if (value.is_string()) {
      check(at, "<b>&\"'\x01");
      check(at, "");
    } else if (value.is_array() && !value.empty()) {
      check(at, OrderedJson::array());
      OrderedJson doubled = value;
      for (const auto& item : value) doubled.push_back(item);
      check(at, doubled);
    } else if (value.is_boolean()) {
      check(at, !value.get<bool>());
    }
  });
  CHECK(read > 300);
  CHECK(refused > 300);
}

}  // namespace ft
