#include "tuner/flip.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int kStepsPerDoubling = 8;
constexpr int kBisections = 40;  // far below what is printed

double& cost_value(CandidateModel& model, CostTerm term) { return model.cost[term]; }

std::vector<FlipKnob> make_knobs() {
  std::vector<FlipKnob> knobs;
  for (const CostTermInfo& term : cost_terms()) {
    if (term.term >= CostTerm::kCopyEngineFixed) continue;
    knobs.push_back(
        {term.name, term.unit, [id = term.term](CandidateModel& m) -> double& { return cost_value(m, id); }});
  }
  knobs.push_back({"dense_fixed", "s", [](CandidateModel& m) -> double& { return m.dense.fixed; }});
  knobs.push_back({"dense_per_token", "s", [](CandidateModel& m) -> double& { return m.dense.per_token; }});
  knobs.push_back({"dense_per_position", "s", [](CandidateModel& m) -> double& { return m.dense.per_position; }});
  knobs.push_back(
      {"dense_per_further_position", "s", [](CandidateModel& m) -> double& { return m.dense.per_further_position; }});
  return knobs;
}

// Logarithm of the geometric mean of the rates, but for a constant that is the same for both sides: minus the mean
// logarithm of the seconds of a step.
double log_score(const FlipSide& side, const CandidateModel& model, const std::vector<int64_t>& contexts) {
  double sum = 0;
  size_t point = 0;
  for (const int64_t context : contexts) {
    for (const ReplayResult& replay : model.replays) {
      double seconds = step_seconds(model.cost, model.dense, model.device, context, replay);
      if (!side.residual.empty()) seconds += side.residual[point];
      sum -= std::log(std::max(seconds, kLeastStepSeconds));
      ++point;
    }
  }
  FT_CHECK(point > 0 && (side.residual.empty() || side.residual.size() == point));
  return sum / static_cast<double>(point);
}

double scaled_score(const FlipSide& side, const FlipKnob& knob, double factor, const std::vector<int64_t>& contexts) {
  CandidateModel model = side.model;
  knob.value(model) *= factor;
  return log_score(side, model, contexts);
}

double bisect(const std::function<double(double)>& lead, double needed, double outside, double inside) {
  for (int i = 0; i < kBisections; ++i) {
    const double middle = std::sqrt(outside * inside);
    (lead(middle) <= needed ? inside : outside) = middle;
  }
  return inside;
}

}  // namespace

std::span<const FlipKnob> flip_knobs() {
  static const std::vector<FlipKnob> knobs = make_knobs();
  return knobs;
}

std::optional<double> nearest_flip(const std::function<double(double)>& lead, double needed) {
  const int steps = kStepsPerDoubling * static_cast<int>(std::log2(kFlipRange));
  const auto factor_at = [](int step) { return std::exp2(static_cast<double>(step) / kStepsPerDoubling); };
  for (int step = 1; step <= steps; ++step) {
    std::optional<double> nearest;
    for (const int way : {-1, 1}) {
      if (lead(factor_at(way * step)) > needed) continue;
      const double factor = bisect(lead, needed, factor_at(way * (step - 1)), factor_at(way * step));
      if (!nearest || std::abs(std::log(factor)) < std::abs(std::log(*nearest))) nearest = factor;
    }
    if (nearest) return nearest;
  }
  return std::nullopt;
}

Flip find_flip(const FlipSide& winner, const FlipSide& other, const std::vector<int64_t>& contexts, double needed) {
  FT_CHECK(winner.model.replays.size() == other.model.replays.size());
  Flip flip;
  flip.needed = needed;
  flip.lead = std::exp(log_score(winner, winner.model, contexts) - log_score(other, other.model, contexts));
  const FlipSide bare_winner{winner.model, {}}, bare_other{other.model, {}};
  flip.predicted_lead =
      std::exp(log_score(bare_winner, winner.model, contexts) - log_score(bare_other, other.model, contexts));
  if (flip.lead <= needed) return flip;
  for (const FlipKnob& knob : flip_knobs()) {
    CandidateModel winner_model = winner.model, other_model = other.model;
    FlipTerm term{&knob, knob.value(winner_model), knob.value(other_model), std::nullopt};
    if (term.winner_value == 0 && term.other_value == 0) continue;
    term.factor = nearest_flip(
        [&](double factor) {
          return std::exp(scaled_score(winner, knob, factor, contexts) - scaled_score(other, knob, factor, contexts));
        },
        needed);
    flip.terms.push_back(term);
  }
  std::stable_sort(flip.terms.begin(), flip.terms.end(), [](const FlipTerm& a, const FlipTerm& b) {
    if (!a.factor || !b.factor) return a.factor.has_value() && !b.factor.has_value();
    return std::abs(std::log(*a.factor)) < std::abs(std::log(*b.factor));
  });
  return flip;
}

}  // namespace ft
