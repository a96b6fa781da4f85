#include "tuner/decide.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "tuner/explain_words.h"
#include "tuner/measurements.h"
#include "tuner/prediction.h"

namespace ft {
namespace {

constexpr double kConfidence = 0.95;

// What decode measured of one candidate, point by point in the order of the profile.
struct Measured {
  size_t ranked = 0;
  std::vector<const Measurement*> points;
  double score = 0;  // geometric mean of the medians
};

bool fetches(Strategy strategy) { return strategy == Strategy::kOffload || strategy == Strategy::kHybrid; }

double hit_rate(const Measured& measured) {
  const auto found = measured.points[0]->at.find("hit_rate");
  return found == measured.points[0]->at.end() ? 0 : found->second;
}

// Ratio a / b of the rates, over the rounds of all points, paired: interleaved rounds meet the same drift. That one
// wins by more at one point than at another is no noise, so the rounds of a point are taken about its median, spread by
// what taking it out loses of their variance; one round a point says nothing of noise, and then how points differ must
// do.
Interval rate_ratio(const Measured& a, const Measured& b) {
  std::vector<std::vector<double>> logs(a.points.size());
  double center = 0;
  size_t fewest = SIZE_MAX;
  for (size_t p = 0; p < a.points.size(); ++p) {
    const std::vector<double>&left = a.points[p]->values, &right = b.points[p]->values;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) logs[p].push_back(std::log(left[i] / right[i]));
    fewest = std::min(fewest, logs[p].size());
    center += median(logs[p]) / static_cast<double>(a.points.size());
  }
  std::vector<double> all;
  for (const std::vector<double>& point : logs) {
    const auto rounds = static_cast<double>(point.size());
    for (const double log : point) {
      all.push_back(fewest > 1 ? center + (log - median(point)) * std::sqrt(rounds / (rounds - 1)) : log);
    }
  }
  const Interval ratio = median_interval(all, kConfidence);
  return {std::exp(ratio.low), std::exp(ratio.high)};
}

// Told apart are two whose interval lies on the side of 1 where their medians are, too. On a machine whose speed jumps
// the medians of all rounds and the paired ratios can point opposite ways (measured: 1.05 against 0.94 to 0.99).
bool tied(const Measured& a, const Measured& b) {
  const Interval ratio = rate_ratio(a, b);
  const bool apart = a.score > b.score ? ratio.low > 1 : ratio.high < 1;
  return !apart || std::abs(a.score / b.score - 1) < kTieFraction;
}

class Decider {
 public:
  explicit Decider(const DecideInput& input) : input_(input), ranked_(input.search->ranked) {
    FT_CHECK(!ranked_.empty());
    collect();
  }

  Decided run() {
    result_.decision.forced = input_.forced;
    result_.decision.warnings = input_.search->remarks;
    for (size_t index = 0; index < input_.measured.size(); ++index) {
      const std::string refused = refusal_of(input_.measurements, index);
      if (refused.empty()) continue;
      const EngineConfig& config = ranked_[input_.measured[index]].config;
      result_.decision.warnings.push_back(fmt::format("decode runs of {} with {} threads were refused: {}",
                                                      strategy_name(config.strategy), config.threads, refused));
    }
    if (measured_.empty()) {
      by_prediction();
    } else {
      by_measurement();
    }
    result_.decision.strategy = strategy_name(ranked_[result_.chosen].config.strategy);
    result_.decision.predicted_tok_s = ranked_[result_.chosen].tok_s[0];
    make_candidates();
    return std::move(result_);
  }

 private:
  void collect() {
    for (size_t index = 0; index < input_.measured.size(); ++index) {
      Measured entry;
      entry.ranked = input_.measured[index];
      double sum = 0;
      for (const int64_t context : input_.contexts) {
        for (const int64_t batch : input_.batches) {
          const Measurement* series = decode_series(input_.measurements, index, context, batch);
          if (series == nullptr) continue;
          entry.points.push_back(series);
          sum += std::log(median(series->values));
        }
      }
      if (entry.points.size() != input_.contexts.size() * input_.batches.size()) continue;  // interrupted
      entry.score = std::exp(sum / static_cast<double>(entry.points.size()));
      measured_.push_back(std::move(entry));
    }
    std::stable_sort(measured_.begin(), measured_.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    merge_equal();
  }

  // Two that engaged the same are one, the simpler: what differs in their rates is noise.
  void merge_equal() {
    for (size_t i = 0; i < measured_.size(); ++i) {
      for (size_t j = measured_.size(); j-- > i + 1;) {
        if (!engaged_the_same(measured_[i].points, measured_[j].points)) continue;
        if (simplicity(measured_[j]) < simplicity(measured_[i])) std::swap(measured_[i], measured_[j]);
        same_as_[measured_[j].ranked] = measured_[i].ranked;
        duplicates_.push_back(std::move(measured_[j]));
        measured_.erase(measured_.begin() + static_cast<std::ptrdiff_t>(j));
      }
    }
    std::stable_sort(measured_.begin(), measured_.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
  }

  int simplicity(const Measured& entry) const { return complexity(ranked_[entry.ranked].config); }

  void by_prediction() {
    Decision& d = result_.decision;
    result_.chosen = 0;
    d.tie = input_.search->tie;
    d.warnings.push_back("not confirmed: no decode run was measured, the prediction decides");
    d.reason = "best prediction" + std::string(d.tie ? " among ties, and simplest" : "");
    if (ranked_.size() < 2) return;
    // Another strategy says more than another slot count of the same one.
    size_t second = 1;
    for (size_t i = ranked_.size() - 1; i > 0; --i) {
      if (ranked_[i].config.strategy != ranked_[0].config.strategy) second = i;
    }
    d.runner_up = strategy_name(ranked_[second].config.strategy);
    d.margin = ranked_[0].score / ranked_[second].score;
    d.margin_low = d.margin_high = d.margin;
  }

  void by_measurement() {
    Decision& d = result_.decision;
    size_t winner = 0;
    for (size_t i = 1; i < measured_.size(); ++i) {
      if (simplicity(measured_[i]) < simplicity(measured_[winner]) && tied(measured_[i], measured_[0])) winner = i;
    }
    d.tie = winner != 0;
    const Measured best = measured_[winner];
    result_.chosen = best.ranked;
    d.measured_tok_s = median(best.points[0]->values);
    d.reason = d.tie ? "tie with the fastest measured candidate, and simpler" : "fastest in the confirming decode runs";
    if (measured_.size() > 1) {
      const Measured& second = measured_[winner == 0 ? 1 : 0];
      const Interval ratio = rate_ratio(best, second);
      d.runner_up = strategy_name(ranked_[second.ranked].config.strategy);
      d.margin = best.score / second.score;
      d.margin_low = std::min(d.margin, ratio.low);
      d.margin_high = std::max(d.margin, ratio.high);
    }
    const Measured* predicted_best = measured_of(0);
    if (best.ranked != 0 && !(predicted_best != nullptr && tied(*predicted_best, best))) {
      const CandidatePrediction &predicted = ranked_[0], &found = ranked_[best.ranked];
      const bool splits_differ = predicted.config.strategy == found.config.strategy && predicted.split != found.split;
      const auto name = [&](const CandidatePrediction& candidate) {
        const std::string_view strategy = strategy_name(candidate.config.strategy);
        return splits_differ ? fmt::format("{} ({})", strategy, candidate.split) : std::string(strategy);
      };
      d.warnings.push_back(
          fmt::format("the prediction ranked {} first; the decode runs say {}", name(predicted), name(found)));
    }
    state_gap(best);
    note_unfilled();
    note_remarks();
  }

  // Over the points whose context was filled: decoding at another one than was predicted says nothing of the model.
  struct Gap {
    int points = 0;
    double factor = 1;        // measured over predicted time
    double first_factor = 1;  // the same at the first such point, which may lie on the other side of 1
    double missing_us = 0;    // of a step there
    bool is_stated() const { return factor > kStatedGap || factor < 1 / kStatedGap; }
  };
  Gap gap_of(const Measured& entry) const {
    const std::vector<double>& predicted = ranked_[entry.ranked].tok_s;
    Gap gap;
    double sum = 0;
    for (size_t p = 0; p < entry.points.size(); ++p) {
      if (!is_filled(*entry.points[p])) continue;
      const double measured = median(entry.points[p]->values);
      if (gap.points++ == 0) {
        const auto batch = static_cast<double>(input_.batches[p % input_.batches.size()]);
        gap.first_factor = predicted[p] / measured;
        gap.missing_us = 1e6 * batch * (1 / measured - 1 / predicted[p]);
      }
      sum += std::log(predicted[p] / measured);
    }
    if (gap.points > 0) gap.factor = std::exp(sum / gap.points);
    return gap;
  }
  double missing_us_per_layer(const Gap& gap) const {
    return gap.is_stated() && input_.moe_layers > 0 ? gap.missing_us / input_.moe_layers : 0;
  }

  // "measured time is 1.40x the predicted one (+72.1 us a MoE layer at the first point)".
  std::string gap_words(const Gap& gap) const {
    const double missing = missing_us_per_layer(gap);
    const std::string time = (missing < 0 ? "-" : "+") + microseconds(1e-6 * std::abs(missing)) + " a MoE layer";
    const bool agree = (gap.factor > 1) == (gap.first_factor > 1);
    return fmt::format("measured time is {:.2f}x the predicted one ({})", gap.factor,
                       agree ? time + " at the first point"
                             : fmt::format("over all points; {:.3f}x at the first, {}", gap.first_factor, time));
  }

  void state_gap(const Measured& best) {
    Decision& d = result_.decision;
    const Gap gap = gap_of(best);
    d.gap = gap.points > 0 ? gap.factor : 0;
    if (gap.points == 0) d.warnings.push_back("the prediction was not checked: the budget filled no context");
    d.missing_us_per_layer = missing_us_per_layer(gap);
    if (gap.is_stated()) {
      d.warnings.push_back(gap_words(gap) +
                           ": the cost model does not explain this machine; the measured winner stands");
    }
    // A loser that was predicted well off is the same misfit: the prediction might have chosen it.
    for (const Measured& entry : measured_) {
      const Gap other = gap_of(entry);
      if (entry.ranked == best.ranked || !other.is_stated()) continue;
      const EngineConfig& config = ranked_[entry.ranked].config;
      d.warnings.push_back(
          fmt::format("{} with {} threads: {}", strategy_name(config.strategy), config.threads, gap_words(other)));
    }
  }

  // One warning for all candidates: they share the filled cache.
  void note_unfilled() {
    std::map<int64_t, int64_t> filled;  // by context asked for: the least
    for (const Measured& entry : measured_) {
      for (const Measurement* point : entry.points) {
        if (is_filled(*point)) continue;
        const auto asked = static_cast<int64_t>(point->at.at("context"));
        const auto got = static_cast<int64_t>(point->at.at("context_filled"));
        const auto [known, added] = filled.try_emplace(asked, got);
        if (!added) known->second = std::min(known->second, got);
      }
    }
    for (const auto& [asked, got] : filled) {
      result_.decision.warnings.push_back(
          fmt::format("decode runs at context {} had {} tokens only: a larger --budget fills it", asked, got));
    }
  }

  // One warning per remark, with the first series that has it and how many do.
  void note_remarks() {
    std::map<std::string, std::pair<std::string, int>> seen;
    for (const Measured& entry : measured_) {
      for (const Measurement* point : entry.points) {
        for (const std::string& remark : point->remarks) {
          ++seen.try_emplace(remark, point->name, 0).first->second.second;
        }
      }
    }
    for (const auto& [remark, where] : seen) {
      const std::string others = where.second == 1 ? "" : fmt::format(" and {} more", where.second - 1);
      result_.decision.warnings.push_back(fmt::format("{}{}: {}", where.first, others, remark));
    }
  }

  void make_candidates() {
    std::vector<size_t> order = {result_.chosen};
    for (size_t i = 0; i < ranked_.size(); ++i) {
      if (i != result_.chosen) order.push_back(i);
    }
    for (const size_t i : order) {
      const CandidatePrediction& prediction = ranked_[i];
      Candidate candidate;
      candidate.strategy = strategy_name(prediction.config.strategy);
      candidate.threads = prediction.config.threads;
      candidate.slots = prediction.config.slots;
      candidate.split = prediction.split;
      if (prediction.config.device == Device::kCuda && fetches(prediction.config.strategy)) {
        candidate.fetch_mechanism = fetch_mechanism_name(prediction.config.fetch_mechanism);
      }
      if (prediction.config.look_ahead != LookAhead::kOff) {
        candidate.max_prefetches_per_layer = prediction.config.max_prefetches_per_layer;
      }
      candidate.predicted_tok_s = prediction.tok_s;
      candidate.parts = cost_parts(prediction.parts);
      add_replays(i, candidate);
      candidate.predicted_hit_rate = prediction.hit_rate[0];
      candidate.chosen = i == result_.chosen;
      candidate.verdict = candidate.chosen ? "chosen" : verdict_of(i);
      add_measured(i, candidate);
      result_.candidates.push_back(std::move(candidate));
    }
    for (const RejectedStrategy& rejected : input_.search->rejected) {
      Candidate candidate;
      candidate.strategy = strategy_name(rejected.strategy);
      candidate.verdict = rejected.reason;
      result_.candidates.push_back(std::move(candidate));
    }
  }

  // Of what was worth a decode run: the others would make a profile large.
  void add_replays(size_t index, Candidate& candidate) const {
    const CandidatePrediction& prediction = ranked_[index];
    if (prediction.replays == nullptr) return;
    if (std::find(input_.measured.begin(), input_.measured.end(), index) == input_.measured.end()) return;
    for (size_t b = 0; b < prediction.replays->size(); ++b) {
      candidate.replays.push_back(replay_record((*prediction.replays)[b], input_.batches[b]));
    }
  }

  const Measured* measured_of(size_t ranked) const {
    for (const Measured& entry : measured_) {
      if (entry.ranked == ranked) return &entry;
    }
    return nullptr;
  }

  std::string verdict_of(size_t index) const {
    const auto same = same_as_.find(index);
    if (same != same_as_.end()) {
      const EngineConfig& config = ranked_[same->second].config;
      return fmt::format("the same as {} with {} threads and {} slots: they engaged the same",
                         strategy_name(config.strategy), config.threads, config.slots);
    }
    for (size_t asked = 0; asked < input_.measured.size(); ++asked) {
      const std::string refused = input_.measured[asked] == index ? refusal_of(input_.measurements, asked) : "";
      if (!refused.empty()) return "its decode runs were refused: " + refused;
    }
    const Measured* mine = measured_of(index);
    const Measured* best = measured_of(result_.chosen);
    if (mine == nullptr || best == nullptr) {
      const double ratio = ranked_[index].score / ranked_[result_.chosen].score;
      if (ratio <= 1) return "predicted " + percent_more(1 / ratio) + " slower";
      const bool cut = std::find(input_.measured.begin(), input_.measured.end(), index) != input_.measured.end();
      return fmt::format("predicted {} faster, {}", percent_more(ratio),
                         cut ? "its decode runs were cut off" : "not run: another of its strategy was");
    }
    if (tied(*mine, *best)) {
      // Ties are no chain: a simpler one may tie with the choice and still be slower than the fastest, which decides.
      return simplicity(*mine) < simplicity(*best) ? "tie with the choice, but slower than the fastest"
                                                   : "tie with the choice, which is not more complex";
    }
    if (mine->score > best->score) {
      return fmt::format("measured {} faster, within the interval of the fastest",
                         percent_more(mine->score / best->score));
    }
    return "measured " + percent_more(best->score / mine->score) + " slower";
  }

  void add_measured(size_t index, Candidate& candidate) const {
    const Measured* entry = measured_of(index);
    for (const Measured& duplicate : duplicates_) {
      if (duplicate.ranked == index) entry = &duplicate;
    }
    if (entry == nullptr) return;
    for (const Measurement* point : entry->points) {
      const Interval interval = positive_median_interval(point->values, kConfidence);
      candidate.measured_tok_s.push_back(median(point->values));
      candidate.measured_low.push_back(std::min(interval.low, candidate.measured_tok_s.back()));
      candidate.measured_high.push_back(std::max(interval.high, candidate.measured_tok_s.back()));
    }
    candidate.measured_hit_rate = hit_rate(*entry);
    const Gap gap = gap_of(*entry);
    if (gap.points > 0) candidate.gap = gap.factor;
    if (gap.is_stated()) candidate.missing_us_per_layer = missing_us_per_layer(gap);
  }

  const DecideInput& input_;
  const std::vector<CandidatePrediction>& ranked_;
  std::vector<Measured> measured_;    // best score first
  std::vector<Measured> duplicates_;  // engaged the same as one of measured_
  std::map<size_t, size_t> same_as_;  // index into ranked -> that of the one that stands for it
  Decided result_;
};

}  // namespace

Decided decide(const DecideInput& input) { return Decider(input).run(); }

}  // namespace ft
