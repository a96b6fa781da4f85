// Predicted against measured, and where a step's time goes.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/base/statistics.h"
#include "tuner/explain.h"
#include "tuner/explain_words.h"
#include "tuner/report/elements.h"
#include "tuner/report/sections.h"

namespace ft {
namespace {

constexpr double kBand = 0.1;      // drawn around y = x
constexpr size_t kMaxStacked = 6;  // candidates whose parts are drawn

// The parts in the order in which they are drawn, with their colours; others follow.
constexpr std::pair<const char*, const char*> kParts[] = {
    {"dense", "p-dense"},     {"attention", "p-attention"},
    {"experts", "p-experts"}, {"fetch", "p-fetch"},
    {"cpu", "p-cpu"},         {"synchronization", "p-synchronization"},
    {"merge", "p-merge"},     {"sampling", "p-sampling"},
    {"idle", "p-idle"}};

std::string part_words(const std::string& name) {
  if (name == "experts") return "experts in slots";
  if (name == "cpu") return "experts on the CPU";
  if (name == "fetch") return "fetching experts";
  return name;
}

std::string short_name(const Candidate& candidate) {
  return fmt::format("{}, {} thread{}, {} slots", candidate.strategy, candidate.threads,
                     candidate.threads == 1 ? "" : "s", candidate.slots);
}

double seconds_of(const Candidate& candidate, const std::string& part, size_t point) {
  for (const CostPart& one : candidate.parts) {
    if (one.name == part) return point < one.seconds.size() ? one.seconds[point] : 0;
  }
  return 0;
}

double step_of(const Candidate& candidate, size_t point) {
  double sum = 0;
  for (const CostPart& part : candidate.parts) sum += point < part.seconds.size() ? part.seconds[point] : 0;
  return sum;
}

int64_t batch_of(const Conditions& conditions, size_t point) {
  return conditions.batches.empty() ? 1 : conditions.batches[point % conditions.batches.size()];
}

// The chosen one, those that were measured, then the others as they are ranked.
std::vector<const Candidate*> top_candidates(const Profile& profile) {
  std::vector<const Candidate*> top;
  for (const bool measured : {true, false}) {
    for (const Candidate& candidate : profile.candidates) {
      if (candidate.parts.empty() || candidate.measured_tok_s.empty() == measured) continue;
      if (top.size() < kMaxStacked) top.push_back(&candidate);
    }
  }
  std::stable_partition(top.begin(), top.end(), [](const Candidate* candidate) { return candidate->chosen; });
  return top;
}

Markup stacked(const Profile& profile, const std::vector<const Candidate*>& top, size_t point, const std::string& name,
               const std::vector<std::pair<std::string, std::string>>& parts) {
  StackedChart chart;
  double longest = 0;
  for (const Candidate* candidate : top) longest = std::max(longest, step_of(*candidate, point));
  const bool in_ms = longest >= 0.01;
  chart.unit = in_ms ? "ms" : "us";
  chart.title = "Predicted time of a step by part, " + name;
  for (const auto& [part, style] : parts) {
    chart.parts.push_back(part_words(part));
    chart.styles.push_back(style);
  }
  for (const Candidate* candidate : top) {
    StackedBar bar;
    bar.label = (candidate->chosen ? "* " : "") + short_name(*candidate);
    const double scale = in_ms ? 1e3 : 1e6;
    const auto time = [&](double seconds) { return fmt::format("{:.{}f}", seconds * scale, in_ms ? 1 : 0); };
    bar.value_text = time(step_of(*candidate, point)) + " " + chart.unit;
    if (point < candidate->measured_tok_s.size() && candidate->measured_tok_s[point] > 0) {
      const double seconds =
          static_cast<double>(batch_of(profile.conditions, point)) / candidate->measured_tok_s[point];
      bar.value_text += ", measured " + time(seconds);
    }
    for (const auto& [part, style] : parts) bar.values.push_back(seconds_of(*candidate, part, point) * scale);
    chart.bars.push_back(std::move(bar));
  }
  return draw_stacked(chart);
}

}  // namespace

Markup predicted_section(const Profile& profile) {
  const std::vector<std::string> points = point_names(profile.conditions);
  XyChart chart;
  chart.title = "Predicted against measured tokens per second, with a band of 10 % around equality";
  chart.x_label = "predicted tok/s";
  chart.y_label = "measured tok/s";
  chart.x_log = chart.y_log = chart.square = true;
  chart.band = kBand;
  HtmlTable table;
  table.caption = "Measured over predicted rate at every point";
  table.heads = {"candidate"};
  table.numeric = {false};
  for (const int64_t context : profile.conditions.contexts) {
    for (const int64_t batch : profile.conditions.batches) {
      table.heads.push_back(fmt::format("ctx {} x{}", context, batch));
      table.numeric.push_back(true);
    }
  }
  std::map<std::string, ChartSeries> series;
  std::vector<double> errors;
  for (const Candidate& candidate : profile.candidates) {
    if (candidate.measured_tok_s.empty()) continue;
    std::vector<std::string> row(table.heads.size(), "-");
    row[0] = short_name(candidate);
    for (size_t p = 0; p < candidate.measured_tok_s.size() && p < candidate.predicted_tok_s.size(); ++p) {
      const double predicted = candidate.predicted_tok_s[p], measured = candidate.measured_tok_s[p];
      if (predicted <= 0 || measured <= 0) continue;
      const std::string point = p < points.size() ? points[p] : "";
      errors.push_back(std::abs(predicted / measured - 1));
      ChartSeries& one = series[candidate.strategy];
      one.name = candidate.strategy;
      one.style = look_of(candidate.strategy).style;
      one.shape = static_cast<Shape>(look_of(candidate.strategy).shape);
      one.points.push_back({predicted, measured,
                            fmt::format("{}, {}: predicted {}, measured {} tok/s", short_name(candidate), point,
                                        rate_text(predicted), rate_text(measured))});
      if (p + 1 < row.size()) row[p + 1] = fmt::format("{:.2f}", measured / predicted);
    }
    table.rows.push_back(std::move(row));
  }
  if (errors.empty()) {
    return paragraph("No decode run was measured: the prediction was not confirmed.", "note");
  }
  for (auto& [strategy, one] : series) chart.series.push_back(std::move(one));
  Figure figure;
  figure.text = fmt::format(
      "{} decode measurements: the prediction is off by {} in the median and {} at most; {} are "
      "within the band of 10 %. Above the line the engine was faster than predicted.",
      errors.size(), percent_text(median(errors), 1), percent_text(*std::max_element(errors.begin(), errors.end()), 1),
      std::count_if(errors.begin(), errors.end(), [](double error) { return error <= kBand; }));
  figure.legend = legend_of(chart);
  figure.charts.push_back(draw_chart(chart));
  figure.table = std::move(table);
  return draw_figure(figure);
}

Markup time_section(const Profile& profile) {
  const std::vector<const Candidate*> top = top_candidates(profile);
  if (top.empty()) {
    return paragraph(
        "A profile of version " + profile.version + " does not record the parts of a predicted step (1.4 does).",
        "note");
  }
  std::vector<std::pair<std::string, std::string>> parts;
  const auto used = [&](const std::string& name) {
    return std::any_of(top.begin(), top.end(), [&](const Candidate* candidate) {
      return std::any_of(candidate->parts.begin(), candidate->parts.end(),
                         [&](const CostPart& p) { return p.name == name; });
    });
  };
  for (const auto& [name, style] : kParts) {
    if (used(name)) parts.emplace_back(name, style);
  }
  const std::vector<std::string> points = point_names(profile.conditions);
  Figure figure;
  figure.text =
      "As predicted. A step gives one token to each sequence; work that runs beside longer work costs nothing.";
  for (const auto& [name, style] : parts) figure.legend.push_back({part_words(name), style, Shape::kSquare});
  figure.table.caption = "Microseconds of a step by part";
  figure.table.heads = {"candidate", "point"};
  figure.table.numeric = {false, false};
  for (const auto& [name, style] : parts) {
    figure.table.heads.push_back(name);
    figure.table.numeric.push_back(true);
  }
  figure.table.heads.emplace_back("step");
  figure.table.numeric.push_back(true);
  for (const Candidate* candidate : top) {
    for (size_t p = 0; p < points.size(); ++p) {
      std::vector<std::string> row = {short_name(*candidate), points[p]};
      for (const auto& [name, style] : parts)
        row.push_back(fmt::format("{:.1f}", 1e6 * seconds_of(*candidate, name, p)));
      row.push_back(fmt::format("{:.1f}", 1e6 * step_of(*candidate, p)));
      figure.table.rows.push_back(std::move(row));
    }
  }
  Markup out;
  std::vector<size_t> drawn = {0};
  if (points.size() > 1) drawn.push_back(points.size() - 1);
  for (const size_t p : drawn) {
    if (p >= points.size()) continue;
    Markup headed;
    headed.open("div").leaf("p", "At " + points[p], {{"class", "plot-title"}});
    headed.append(stacked(profile, top, p, points[p], parts)).close();
    figure.charts.push_back(headed);
  }
  return draw_figure(figure);
}

}  // namespace ft
