#include "tuner/report/page.h"

#include <spdlog/fmt/fmt.h>

#include "kernels/base/error.h"
#include "tuner/explain.h"
#include "tuner/report/elements.h"
#include "tuner/report/sections.h"

namespace ft {
namespace {

struct Section {
  const char* id;
  const char* title;
  const char* lead;
  Markup (*draw)(const Profile&);
};
constexpr Section kSections[] = {
    {"decision", "Decision", "", decision_card},
    {"candidates", "Candidates", "", candidates_section},
    {"changes", "What would have to change",
     "For the runner-up to win: one cost at a time, nearest first, the candidates as they are.", changes_section},
    {"predicted", "Predicted against measured", "", predicted_section},
    {"time", "Where a token's time goes", "", time_section},
    {"ceilings", "Ceilings and what is achieved", "", ceilings_section},
    {"sweep", "Sweep and fit", "", sweep_section},
    {"routing", "Hits and misses", "", routing_section},
    {"conditions", "Conditions and findings", "", conditions_section},
};

std::string model_name(const Profile& profile) {
  const std::string& path = profile.serve.model_path;
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return profile.identity.model.family;
  const size_t slash = path.rfind('/', end);
  return path.substr(slash == std::string::npos ? 0 : slash + 1,
                     end - (slash == std::string::npos ? 0 : slash + 1) + 1);
}

std::string machine_name(const Profile& profile) {
  const HostIdentity& host = profile.identity.host;
  return profile.serve.device == "cuda" && !host.gpu_name.empty() ? host.gpu_name : host.cpu_model;
}

// Profiles by what people compare first.
Markup side_by_side(std::span<const ReportedProfile> profiles) {
  HtmlTable table;
  table.caption = "The profiles side by side";
  table.heads = {""};
  table.numeric = {false};
  for (const ReportedProfile& one : profiles) {
    table.heads.push_back(one.name);
    table.numeric.push_back(true);
  }
  const auto row = [&](const std::string& name, auto value) {
    std::vector<std::string> cells = {name};
    for (const ReportedProfile& one : profiles) cells.push_back(value(one.profile));
    table.rows.push_back(std::move(cells));
  };
  row("model", [](const Profile& p) { return model_name(p); });
  row("machine", [](const Profile& p) { return machine_name(p); });
  row("strategy", [](const Profile& p) { return p.decision.strategy; });
  row("threads, slots", [](const Profile& p) { return fmt::format("{}, {}", p.serve.threads, p.serve.slots); });
  const std::vector<std::string> points = point_names(profiles[0].profile.conditions);
  for (size_t i = 0; i < points.size(); ++i) {  // points that the first one has; others only where theirs are the same
    row("tok/s at " + points[i], [&](const Profile& p) {
      const Candidate* chosen = chosen_candidate(p);
      const std::vector<std::string> names = point_names(p.conditions);
      if (chosen == nullptr || i >= names.size() || names[i] != points[i]) return std::string("-");
      if (i < chosen->measured_tok_s.size()) return rate_text(chosen->measured_tok_s[i]);
      return i < chosen->predicted_tok_s.size() ? rate_text(chosen->predicted_tok_s[i]) + " predicted"
                                                : std::string("-");
    });
  }
  row("runner-up, margin", [](const Profile& p) {
    return p.decision.runner_up.empty() ? std::string("none")
                                        : fmt::format("{}, {:.2f}x", p.decision.runner_up, p.decision.margin);
  });
  row("measured time over predicted",
      [](const Profile& p) { return p.decision.gap > 0 ? fmt::format("{:.2f}x", p.decision.gap) : "-"; });
  row("held-out error", [](const Profile& p) { return percent_text(p.cost_model.held_out_error, 1); });
  row("ceiling, GB/s",
      [](const Profile& p) { return p.serve.ceiling_gbps > 0 ? fmt::format("{:.1f}", p.serve.ceiling_gbps) : "-"; });
  row("made", [](const Profile& p) { return p.conditions.created; });
  return draw_table(table);
}

void draw_header(Markup& page, std::span<const ReportedProfile> profiles) {
  page.open("header").leaf("p", "ft-tune report", {{"class", "brand"}});
  const Profile& first = profiles[0].profile;
  if (profiles.size() == 1) {
    page.leaf("h1", model_name(first) + " on " + machine_name(first));
    page.append(paragraph(profiles[0].name + ", made " + first.conditions.created, "under"));
  } else {
    page.leaf("h1", fmt::format("{} profiles side by side", profiles.size()));
  }
  page.open("nav", {{"aria-label", "Sections"}});
  for (const Section& section : kSections) page.leaf("a", section.title, {{"href", std::string("#") + section.id}});
  page.close().close();
}

}  // namespace

std::string report_page(std::span<const ReportedProfile> profiles) {
  FT_CHECK(!profiles.empty());
  Markup page;
  page.open("html", {{"lang", "en"}, {"xmlns", "http://www.w3.org/1999/xhtml"}}).open("head");
  page.empty("meta", {{"charset", "utf-8"}});
  page.empty("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
  page.empty("meta", {{"name", "color-scheme"}, {"content", "light dark"}});
  page.leaf("title", "ft-tune report: " + profiles[0].name);
  page.open("style").constant(report_style()).close().close();
  page.open("body").open("main");
  draw_header(page, profiles);
  if (profiles.size() > 1) {
    page.open("section", {{"id", "side"}}).leaf("h2", "Side by side").append(side_by_side(profiles)).close();
  }
  for (const Section& section : kSections) {
    page.open("section", {{"id", section.id}}).leaf("h2", section.title);
    if (section.lead[0] != '\0') page.append(paragraph(section.lead, "lead"));
    page.open("div", {{"class", profiles.size() > 1 ? "panels many" : "panels"}});
    for (const ReportedProfile& one : profiles) {
      page.open("article", {{"class", "panel"}});
      if (profiles.size() > 1) page.leaf("h3", one.name);
      page.append(section.draw(one.profile)).close();
    }
    page.close().close();
  }
  page.close().close().close();
  return "<!DOCTYPE html>\n" + page.str() + "\n";
}

}  // namespace ft
