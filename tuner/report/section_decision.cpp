// What was chosen and why; every candidate; what would have to change.
#include <spdlog/fmt/fmt.h>

#include "tuner/explain.h"
#include "tuner/report/elements.h"
#include "tuner/report/sections.h"

namespace ft {

StrategyLook look_of(const std::string& strategy) {
  if (strategy == "resident") return {"c-resident", static_cast<int>(Shape::kCircle)};
  if (strategy == "offload") return {"c-offload", static_cast<int>(Shape::kSquare)};
  if (strategy == "cpu") return {"c-cpu", static_cast<int>(Shape::kTriangle)};
  return {"c-hybrid", static_cast<int>(Shape::kDiamond)};
}

Markup decision_card(const Profile& profile) {
  const Decision& d = profile.decision;
  const Explanation why = explain(profile);
  const Candidate* chosen = chosen_candidate(profile);
  const std::vector<std::string> points = point_names(profile.conditions);
  Markup out;
  for (const std::string& line : why.contradictions) out.append(paragraph(sentence(line), "alert"));
  out.open("p", {{"class", "hero"}})
      .leaf("span", d.strategy, {{"class", std::string("chip ") + look_of(d.strategy).style}});
  const double rate = d.measured_tok_s > 0 ? d.measured_tok_s : d.predicted_tok_s;
  out.leaf("span", rate_text(rate), {{"class", "figure-number"}});
  out.leaf("span", d.measured_tok_s > 0 ? "tok/s measured" : "tok/s predicted", {{"class", "unit"}}).close();
  if (!points.empty()) out.append(paragraph("at " + points[0], "under"));
  std::vector<std::pair<std::string, std::string>> terms;
  terms.emplace_back("Why", d.reason);
  if (d.measured_tok_s > 0) terms.emplace_back("Predicted", rate_text(d.predicted_tok_s) + " tok/s");
  if (d.gap > 0) terms.emplace_back("Measured time over predicted", fmt::format("{:.2f}x", d.gap));
  if (chosen != nullptr) {
    terms.emplace_back("Threads", std::to_string(chosen->threads));
    terms.emplace_back("Slots", std::to_string(chosen->slots));
    terms.emplace_back("Split", chosen->split);
    const bool ran = !chosen->measured_tok_s.empty();
    terms.emplace_back("Hit rate", percent_text(ran ? chosen->measured_hit_rate : chosen->predicted_hit_rate) +
                                       (ran ? " measured" : " predicted"));
  }
  terms.emplace_back("Runner-up", d.runner_up.empty() ? "none" : d.runner_up);
  if (!d.runner_up.empty()) {
    terms.emplace_back("Margin", fmt::format("{:.2f}x ({:.2f} to {:.2f}){}", d.margin, d.margin_low, d.margin_high,
                                             d.tie ? ", a tie: the simpler one was taken" : ""));
  }
  terms.emplace_back("Held-out error", percent_text(profile.cost_model.held_out_error, 1) + ", " +
                                           percent_text(profile.cost_model.held_out_error_without_fixed_costs, 1) +
                                           " without fixed costs");
  for (const std::string& forced : profile.conditions.forced) terms.emplace_back("Forced", forced);
  out.append(term_list(terms));
  if (!d.warnings.empty()) out.leaf("h4", "Warnings").append(bullet_list(d.warnings, "warnings"));
  return out;
}

Markup candidates_section(const Profile& profile) {
  HtmlTable table;
  table.caption = "Every candidate: tokens per second over the whole batch, predicted and, below, measured";
  table.heads = {"strategy", "threads", "slots", "split"};
  table.numeric = {false, true, true, false};
  for (const int64_t context : profile.conditions.contexts) {
    for (const int64_t batch : profile.conditions.batches) {
      table.heads.push_back(fmt::format("ctx {} x{}", context, batch));
      table.numeric.push_back(true);
    }
  }
  const size_t points = table.heads.size() - 4;
  table.heads.insert(table.heads.end(), {"hits", "verdict"});
  table.numeric.push_back(true);
  for (const Candidate& candidate : profile.candidates) {
    if (candidate.chosen) table.strong_row = table.rows.size();
    std::vector<std::string> row = {candidate.strategy};
    const bool runs = !candidate.predicted_tok_s.empty(), ran = !candidate.measured_tok_s.empty();
    row.push_back(runs ? std::to_string(candidate.threads) : "-");
    row.push_back(runs ? std::to_string(candidate.slots) : "-");
    row.push_back(runs ? candidate.split : "-");
    for (size_t p = 0; p < points; ++p) {
      std::string cell = runs && p < candidate.predicted_tok_s.size() ? rate_text(candidate.predicted_tok_s[p]) : "-";
      if (ran && p < candidate.measured_tok_s.size()) cell += "\n" + rate_text(candidate.measured_tok_s[p]);
      row.push_back(std::move(cell));
    }
    row.push_back(runs ? percent_text(ran ? candidate.measured_hit_rate : candidate.predicted_hit_rate) : "-");
    row.push_back(candidate.verdict);
    table.rows.push_back(std::move(row));
  }
  Markup out = draw_table(table);
  if (const std::string legend = split_legend(profile); !legend.empty())
    out.append(paragraph(sentence(legend), "note"));
  return out;
}

Markup changes_section(const Profile& profile) {
  const Explanation why = explain(profile);
  Markup out;
  std::vector<std::string> some, never;
  for (const ChangeNeeded& change : why.changes) (change.factor ? some : never).push_back(change.words);
  if (!why.change_basis.empty())
    out.append(paragraph(sentence(why.change_basis) + " The runner-up: " + sentence(why.runner_up)));
  if (!some.empty()) out.append(bullet_list(some, "steps"));
  if (!never.empty()) {
    out.open("details").leaf("summary", fmt::format("Never, whatever they are changed to ({})", never.size()));
    out.append(bullet_list(never)).close();
  }
  if (why.changes.empty() && why.missing.empty())
    out.append(paragraph("There is no runner-up to compare with.", "note"));
  for (const std::string& line : why.missing) out.append(paragraph(sentence(line), "note"));
  return out;
}

}  // namespace ft
