#include "tuner/explain.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "tuner/decide.h"
#include "tuner/explain_words.h"
#include "tuner/flip.h"
#include "tuner/search.h"
#include "tuner/split_words.h"

namespace ft {
namespace {

std::string rate(double tok_s) { return tok_s >= 1000 ? fmt::format("{:.0f}", tok_s) : fmt::format("{:.1f}", tok_s); }

bool predicted(const Candidate& candidate) { return !candidate.predicted_tok_s.empty(); }
bool measured(const Candidate& candidate) { return !candidate.measured_tok_s.empty(); }

// Bytes of one expert as the probes had it; 0 when none recorded it.
double expert_bytes(const Profile& profile) {
  for (const Measurement& m : profile.measurements) {
    const auto found = m.at.find("expert_bytes");
    if (m.probe == "expert_single" && found != m.at.end()) return found->second;
  }
  return 0;
}

int complexity_of(const Candidate& candidate) {
  EngineConfig config;
  config.strategy = strategy_by_name(candidate.strategy).value_or(Strategy::kResident);
  config.fetch_mechanism = fetch_mechanism_by_name(candidate.fetch_mechanism).value_or(FetchMechanism::kSm);
  if (candidate.max_prefetches_per_layer.value_or(0) > 0) config.look_ahead = LookAhead::kRouter;
  config.promote_bytes_per_layer = describes_promotions(candidate.split) ? 1 : 0;
  return complexity(config);
}

// The lead of the winner over the other at which the other is chosen. A tie goes to the simpler one: a simpler other is
// chosen when it ties, a more complex one when it is ahead by more than a tie. How wide a tie is follows from the
// interval of the measured margin.
double needed_lead(const Profile& profile, const Candidate& winner, const Candidate& other) {
  const Decision& d = profile.decision;
  const bool confirmed = measured(winner) && measured(other) && d.margin > 0 && d.margin_low > 0 && d.margin_high > 0;
  const int difference = complexity_of(other) - complexity_of(winner);
  if (difference == 0) return 1;
  if (difference < 0) return std::max(1 + kTieFraction, confirmed ? d.margin / d.margin_low : 0);
  return std::min(1 - kTieFraction, confirmed ? d.margin / d.margin_high : 1);
}

// At some point the interval of the one is above that of the other: a difference that is no noise.
bool clearly_faster(const Candidate& one, const Candidate& other) {
  const std::vector<double>& low = one.measured_low.empty() ? one.measured_tok_s : one.measured_low;
  const std::vector<double>& high = other.measured_high.empty() ? other.measured_tok_s : other.measured_high;
  if (other.verdict.starts_with("tie")) return false;  // over all points, as the decision saw it (decide.cpp)
  for (size_t p = 0; p < low.size() && p < high.size(); ++p) {
    if (low[p] > high[p]) return true;
  }
  return false;
}

class Explainer {
 public:
  explicit Explainer(const Profile& profile)
      : profile_(profile), winner_(chosen_candidate(profile)), other_(runner_up_candidate(profile)) {}

  Explanation run() {
    if (winner_ == nullptr) {  // rules.cpp refuses such a file; a profile made in a program may lack it
      out_.missing.push_back("no candidate is marked as chosen");
      return std::move(out_);
    }
    contradictions();
    choice();
    out_.warnings = profile_.decision.warnings;
    parts_missing();
    changes();
    return std::move(out_);
  }

 private:
  void contradictions() {
    const Decision& d = profile_.decision;
    if (measured(*winner_) && d.gap > 0 && (d.gap > kStatedGap || d.gap < 1 / kStatedGap)) {
      std::string text =
          fmt::format("measured contradicts predicted: {} takes {:.2f}x the predicted time", winner_->strategy, d.gap);
      if (const double missing = d.missing_us_per_layer; missing != 0) {
        // The factor is of all points, the time of the first one.
        const bool agree = (missing > 0) == (d.gap > 1);
        text += fmt::format("{}{} a MoE layer {} than the cost model's{}", agree ? ", " : " over all points, though ",
                            microseconds(1e-6 * std::abs(missing)), missing > 0 ? "more" : "less",
                            agree ? "" : " at the first");
      }
      out_.contradictions.push_back(text + "; the measured winner stands");
    }
    const Candidate* first = nullptr;
    for (const Candidate& candidate : profile_.candidates) {
      if (!predicted(candidate) || !measured(candidate)) continue;
      if (first == nullptr || candidate_score(candidate.predicted_tok_s) > candidate_score(first->predicted_tok_s)) {
        first = &candidate;
      }
    }
    if (first == nullptr || first == winner_ || first->strategy == winner_->strategy || !measured(*winner_)) return;
    const double lead = candidate_score(first->predicted_tok_s) / candidate_score(winner_->predicted_tok_s);
    const double behind = candidate_score(winner_->measured_tok_s) / candidate_score(first->measured_tok_s);
    if (lead < 1 + kTieFraction || behind < 1 + kTieFraction || !clearly_faster(*winner_, *first)) return;
    out_.contradictions.push_back(
        fmt::format("the prediction ranked {} first, {} ahead of {}; in the decode runs {} was {} ahead, and stands",
                    first->strategy, percent_more(lead), winner_->strategy, winner_->strategy, percent_more(behind)));
  }

  void choice() {
    const Decision& d = profile_.decision;
    const std::vector<std::string> points = point_names(profile_.conditions);
    out_.choice.push_back("chosen: " + candidate_name(*winner_) + (d.reason.empty() ? "" : ": " + d.reason));
    if (!points.empty() && predicted(*winner_)) {
      const auto better =
          std::count_if(profile_.candidates.begin(), profile_.candidates.end(), [&](const Candidate& c) {
            return predicted(c) && candidate_score(c.predicted_tok_s) > candidate_score(winner_->predicted_tok_s);
          });
      const auto all = std::count_if(profile_.candidates.begin(), profile_.candidates.end(), predicted);
      out_.choice.push_back(
          fmt::format("predicted: {} tok/s at {}, number {} of {} predicted candidates over all points",
                      rate(winner_->predicted_tok_s[0]), points[0], better + 1, all));
    }
    confirmation(points);
    margin();
    for (const std::string& forced : profile_.conditions.forced) {
      out_.choice.push_back("forced: " + forced + ": candidates that it excludes were not compared");
    }
  }

  void confirmation(const std::vector<std::string>& points) {
    const Decision& d = profile_.decision;
    if (!measured(*winner_)) {
      out_.choice.push_back("not confirmed: no decode run of it was measured, the prediction decides");
      return;
    }
    const auto runs = std::count_if(profile_.candidates.begin(), profile_.candidates.end(), measured);
    std::string text = fmt::format("confirmed: {} tok/s measured", rate(winner_->measured_tok_s[0]));
    if (!winner_->measured_low.empty()) {
      text += fmt::format(" ({} to {})", rate(winner_->measured_low[0]), rate(winner_->measured_high[0]));
    }
    if (!points.empty()) text += " at " + points[0];
    text += fmt::format(", {} candidates decoded in turns", runs);
    if (d.gap > 0) text += fmt::format("; measured time is {:.2f}x the predicted one", d.gap);
    out_.choice.push_back(std::move(text));
  }

  void margin() {
    const Decision& d = profile_.decision;
    if (d.runner_up.empty()) {
      out_.choice.push_back("runner-up: none, no other candidate was compared with it");
      return;
    }
    out_.runner_up = other_ == nullptr ? d.runner_up : candidate_name(*other_);
    const bool same = d.runner_up == winner_->strategy;
    std::string text = fmt::format("runner-up: {}{}; the choice is {:.2f}x as fast", out_.runner_up,
                                   same ? " (the same strategy with other settings)" : "", d.margin);
    if (d.margin_low != d.margin_high) text += fmt::format(" ({:.2f} to {:.2f})", d.margin_low, d.margin_high);
    out_.choice.push_back(std::move(text));
    if (d.tie) tie();
  }

  // With whom. Of decode runs the runner-up is the fastest; a prediction's runner-up is another strategy, also where
  // the choice ties with other settings of its own.
  void tie() {
    const Candidate* with = measured(*winner_) ? other_ : fastest_predicted();
    const bool runner_up = with == other_;
    const bool same = with != nullptr && with->strategy == winner_->strategy;
    out_.choice.push_back(fmt::format(
        "tie{}: the interval{} holds 1, or the two are nearer than {:g} %; {}",
        runner_up || with == nullptr ? "" : " with " + candidate_name(*with),
        measured(*winner_) ? "" : " of the prediction", 100 * kTieFraction,
        same ? "of one strategy a tie goes to the settings without look-ahead and with the simpler way to fetch"
             : "a tie goes to the simpler strategy (resident, offload, cpu, hybrid)"));
  }

  const Candidate* fastest_predicted() const {
    const Candidate* fastest = nullptr;
    for (const Candidate& candidate : profile_.candidates) {
      if (&candidate == winner_ || !predicted(candidate)) continue;
      if (fastest == nullptr ||
          candidate_score(candidate.predicted_tok_s) > candidate_score(fastest->predicted_tok_s)) {
        fastest = &candidate;
      }
    }
    return fastest;
  }

  void parts_missing() {
    if (winner_->parts.empty()) {
      out_.missing.push_back("where a token's time goes: " + age("the parts of a predicted step"));
    }
  }

  std::string age(const std::string& what) const {
    return fmt::format("a profile of version {} does not record {}{}", profile_.version, what,
                       profile_.version.starts_with("1.") && profile_.version < "1.4" ? " (1.4 does)" : "");
  }

  void changes() {
    if (other_ == nullptr) {
      if (!profile_.decision.runner_up.empty()) {
        out_.missing.push_back("what would have to change: no candidate is the runner-up that the decision names");
      }
      return;
    }
    if (winner_->replays.empty() || other_->replays.empty()) {
      out_.missing.push_back("what would have to change: " + age("what the caches of both candidates did"));
      return;
    }
    try {
      compare(side_of(*winner_), side_of(*other_));
    } catch (const Error& error) {
      out_.missing.push_back(std::string("what would have to change: ") + error.what());
    }
  }

  // Throws Error when the record cannot predict again.
  FlipSide side_of(const Candidate& candidate) {
    FlipSide side{candidate_model(profile_, candidate), {}};
    const std::vector<double> rates = predicted_rates(side.model, profile_.conditions.contexts);
    for (size_t p = 0; p < rates.size() && p < candidate.predicted_tok_s.size(); ++p) {
      constexpr double kSame = 1e-6;  // the same arithmetic on the same numbers; a file holds doubles exactly
      const double ratio = rates[p] / candidate.predicted_tok_s[p];
      if (std::abs(ratio - 1) > kSame) disagrees_ = std::max(disagrees_, std::abs(ratio - 1));
    }
    if (!measured(*winner_) || !measured(*other_)) return side;
    const std::vector<int64_t>& batches = profile_.conditions.batches;
    for (size_t p = 0; p < rates.size() && p < candidate.measured_tok_s.size(); ++p) {
      const auto batch = static_cast<double>(batches[p % batches.size()]);
      side.residual.push_back(batch / std::max(candidate.measured_tok_s[p], 1e-9) - batch / rates[p]);
    }
    return side;
  }

  void compare(const FlipSide& winner, const FlipSide& other) {
    const size_t points = profile_.conditions.contexts.size() * profile_.conditions.batches.size();
    if (points == 0 || winner.residual.size() != other.residual.size() || winner.residual.size() % points != 0) {
      out_.missing.push_back("what would have to change: the candidates were not measured at the same points");
      return;
    }
    const double needed = needed_lead(profile_, *winner_, *other_);
    const Flip flip = find_flip(winner, other, profile_.conditions.contexts, needed);
    if (disagrees_ > 0) {
      out_.missing.push_back(fmt::format(
          "the predictions in the profile are up to {:.1f} % off what its parameters give here: it was edited, or made "
          "by another version of the cost model",
          100 * disagrees_));
    }
    const char* tie = needed == 1 ? "" : needed < 1 ? ", as a tie stays with the simpler one" : ", as a tie goes to it";
    const std::string lead = fmt::format("{:.3f}x", flip.lead), bound = fmt::format("{:.3f}x", needed);
    out_.change_basis = fmt::format(
        "{} the choice is {} as fast as the runner-up (geometric mean over all points); below {} the runner-up is "
        "chosen{}",
        winner.residual.empty() ? "by prediction" : "as measured", lead, lead == bound ? "that" : bound, tie);
    if (flip.lead <= needed) {
      out_.missing.push_back(
          "what would have to change: nothing, the runner-up is ahead by more than a tie already; the intervals of the "
          "prediction, which a profile does not keep per candidate, hold both");
      return;
    }
    const double bytes = expert_bytes(profile_);
    for (const FlipTerm& term : flip.terms) {
      const double now = term.other_value > 0 ? term.other_value : term.winner_value;
      if (now <= 0) continue;
      out_.changes.push_back({std::string(term.knob->name), std::string(term.knob->unit), now, term.factor,
                              change_words(term.knob->name, winner.model.device, now, term.factor, bytes)});
    }
  }

  const Profile& profile_;
  const Candidate* winner_;
  const Candidate* other_;
  double disagrees_ = 0;
  Explanation out_;
};

}  // namespace

double candidate_score(const std::vector<double>& rates) {
  if (rates.empty()) return 0;
  double sum = 0;
  for (const double value : rates) sum += std::log(std::max(value, 1e-12));
  return std::exp(sum / static_cast<double>(rates.size()));
}

const Candidate* chosen_candidate(const Profile& profile) {
  for (const Candidate& candidate : profile.candidates) {
    if (candidate.chosen) return &candidate;
  }
  return nullptr;
}

// The decision names a strategy. Of several candidates with it the one whose margin is the decision's.
const Candidate* runner_up_candidate(const Profile& profile) {
  const Candidate* winner = chosen_candidate(profile);
  const Candidate* best = nullptr;
  double best_distance = 0;
  for (const Candidate& candidate : profile.candidates) {
    if (&candidate == winner || winner == nullptr || candidate.strategy != profile.decision.runner_up) continue;
    if (!predicted(candidate)) continue;
    const bool both = measured(*winner) && measured(candidate);
    const double margin = both ? candidate_score(winner->measured_tok_s) / candidate_score(candidate.measured_tok_s)
                               : candidate_score(winner->predicted_tok_s) / candidate_score(candidate.predicted_tok_s);
    // Where the winner was measured the runner-up was too: an unmeasured one comes last.
    const double distance = std::abs(margin - profile.decision.margin) + (measured(*winner) && !both ? 1e6 : 0);
    if (best != nullptr && distance >= best_distance) continue;
    best = &candidate;
    best_distance = distance;
  }
  return best;
}

std::string candidate_name(const Candidate& candidate) {
  if (!predicted(candidate)) return candidate.strategy;
  std::string text = fmt::format("{}, {} thread{}, {} slots", candidate.strategy, candidate.threads,
                                 candidate.threads == 1 ? "" : "s", candidate.slots);
  if (!candidate.split.empty()) text += ", " + candidate.split;
  const auto says = [&](std::string_view words) { return candidate.split.find(words) != std::string::npos; };
  if (!candidate.fetch_mechanism.empty() && !says("; copy engine")) text += ", by " + candidate.fetch_mechanism;
  if (candidate.max_prefetches_per_layer.value_or(0) > 0 && !says("; prefetch ")) {
    text += fmt::format(", {} ahead", *candidate.max_prefetches_per_layer);
  }
  return text;
}

std::string split_legend(const Profile& profile) {
  const bool needed = std::any_of(profile.candidates.begin(), profile.candidates.end(),
                                  [](const Candidate& c) { return c.split.starts_with(kSplitByChanges); });
  if (!needed) return "";
  return "split: of one layer's misses; \"fetch 1 more at 2, 5\" fetches none of 1, one of 2 to 4 and two of 5 or "
         "more; "
         "the CPU computes the others";
}

std::vector<std::string> point_names(const Conditions& conditions) {
  std::vector<std::string> names;
  for (const int64_t context : conditions.contexts) {
    for (const int64_t batch : conditions.batches) {
      names.push_back(fmt::format("context {}, {} sequence{}", context, batch, batch == 1 ? "" : "s"));
    }
  }
  return names;
}

Explanation explain(const Profile& profile) { return Explainer(profile).run(); }

}  // namespace ft
