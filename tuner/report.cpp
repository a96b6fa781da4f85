#include "tuner/report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <vector>

#include "tuner/explain.h"

namespace ft {
namespace {

using Row = std::vector<std::string>;

std::string rate(double tok_s) { return tok_s >= 1000 ? fmt::format("{:.0f}", tok_s) : fmt::format("{:.1f}", tok_s); }

std::string rates(const std::vector<double>& values, size_t point) {
  return point < values.size() ? rate(values[point]) : "-";
}

// " (50%)" when the slots were pinned as a share: every candidate that runs has this count then.
std::string share_asked(const Conditions& conditions) {
  constexpr std::string_view kOption = "--slots ";
  for (const std::string& forced : conditions.forced) {
    if (forced.starts_with(kOption) && forced.ends_with('%')) return " (" + forced.substr(kOption.size()) + ")";
  }
  return "";
}

Row header(const Conditions& conditions) {
  Row row = {"strategy", "threads", "slots", "split"};
  for (const int64_t context : conditions.contexts) {
    for (const int64_t batch : conditions.batches) row.push_back(fmt::format("ctx {} x{}", context, batch));
  }
  row.insert(row.end(), {"hits", "verdict"});
  return row;
}

// predicted -> measured, so that a reader sees the model's error at every point.
Row candidate_row(const Candidate& candidate, size_t points, const std::string& share) {
  Row row = {(candidate.chosen ? "* " : "  ") + candidate.strategy};
  if (candidate.predicted_tok_s.empty()) {
    row.insert(row.end(), points + 4, "-");
  } else {
    row.insert(row.end(),
               {std::to_string(candidate.threads), std::to_string(candidate.slots) + share, candidate.split});
    for (size_t p = 0; p < points; ++p) {
      row.push_back(rates(candidate.predicted_tok_s, p) + " > " + rates(candidate.measured_tok_s, p));
    }
    row.push_back(fmt::format("{:.0f} %", 100 * (candidate.measured_tok_s.empty() ? candidate.predicted_hit_rate
                                                                                  : candidate.measured_hit_rate)));
  }
  row.push_back(candidate.verdict);
  return row;
}

std::string render(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t c = 0; c + 1 < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c)
      text += fmt::format("{:<{}}", row[c], c + 1 < row.size() ? widths[c] + 2 : 0);
    text += "\n";
  }
  return text;
}

}  // namespace

std::string decision_table(const Profile& profile) {
  const Conditions& conditions = profile.conditions;
  const size_t points = conditions.contexts.size() * conditions.batches.size();
  std::vector<Row> rows = {header(conditions)};
  const std::string share = share_asked(conditions);
  for (const Candidate& candidate : profile.candidates) rows.push_back(candidate_row(candidate, points, share));
  std::string text = "decode rates are tokens per second over the whole batch, predicted > measured\n";
  if (const std::string legend = split_legend(profile); !legend.empty()) text += legend + "\n";
  text += render(rows);
  const Decision& d = profile.decision;
  text += fmt::format("\nchoice: {}, {}", d.strategy, d.reason);
  if (!d.runner_up.empty()) {
    text += fmt::format("; runner-up {}, margin {:.2f}x ({:.2f} to {:.2f})", d.runner_up, d.margin, d.margin_low,
                        d.margin_high);
  }
  text +=
      fmt::format("\ncost model: held-out error {:.1f} %, {:.1f} % without fixed costs; {} cells fitted, {} held out\n",
                  100 * profile.cost_model.held_out_error, 100 * profile.cost_model.held_out_error_without_fixed_costs,
                  profile.cost_model.cells_fitted, profile.cost_model.cells_held_out);
  for (const std::string& forced : conditions.forced) text += "forced: " + forced + "\n";
  for (const std::string& warning : d.warnings) text += "warning: " + warning + "\n";
  for (const Finding& finding : conditions.findings) {
    if (finding.level != "warning") continue;
    text += "warning: " + finding.id + ": " + finding.what;
    text += finding.fix.empty() ? "\n" : "; to change it: " + finding.fix + "\n";
  }
  for (const SkippedProbe& skipped : profile.skipped)
    text += "skipped: " + skipped.probe + ": " + skipped.reason + "\n";
  return text;
}

}  // namespace ft
