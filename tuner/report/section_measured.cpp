// What was measured: ceilings and what is achieved of them, and the sweep with the fitted lines.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "tuner/cells.h"
#include "tuner/explain.h"
#include "tuner/explain_words.h"
#include "tuner/measurements.h"
#include "tuner/prediction.h"
#include "tuner/report/elements.h"
#include "tuner/report/sections.h"

namespace ft {
namespace {

constexpr double kBand = 0.1;

double at(const Measurement& m, const char* key) {
  const auto found = m.at.find(key);
  return found == m.at.end() ? 0 : found->second;
}

// The thread count that the profile serves with, or the largest one that the probe measured.
double threads_shown(const Profile& profile, std::string_view probe) {
  double most = 0;
  for (const Measurement& m : profile.measurements) {
    if (m.probe != probe || m.values.empty()) continue;
    if (at(m, "threads") == profile.serve.threads) return profile.serve.threads;
    most = std::max(most, at(m, "threads"));
  }
  return most;
}

std::string words_of(const Measurement& m) {
  const std::string first = m.name.substr(0, m.name.find('.'));
  if (m.probe == "stream") return first == "mem_read" ? "reading memory" : "STREAM " + first;
  if (m.probe == "pcie_linear") {
    return first == "h2d" ? "link, to the device" : first == "d2h" ? "link, to the host" : "link, both ways at once";
  }
  if (m.probe == "pcie_gather") {
    return fmt::format("{} experts fetched by {}", at(m, "n"), first == "sm_gather" ? "the GPU" : "the copy engine");
  }
  const size_t threads = m.name.find(".threads=");
  const std::string variant = m.name.substr(0, threads);
  if (m.probe == "expert_single") {
    return variant.ends_with("mem_read") ? "reading one expert's bytes" : "one expert on the CPU, " + variant;
  }
  return first == "both"  ? "CPU experts beside copies, together"
         : first == "cpu" ? "CPU experts alone"
                          : "copies alone";
}

const char* style_of(const Measurement& m) {
  if (m.probe == "stream" || m.name.find("mem_read") != std::string::npos) return "c-memory";
  if (m.probe == "expert_single") return "c-cpu";
  return m.probe == "overlap" ? "c-hybrid" : "c-offload";
}

// Of a series over sizes only the largest says what the ceiling is.
bool is_largest(const Profile& profile, const Measurement& m) {
  const char* size = m.probe == "pcie_gather" ? "n" : "bytes";
  if (m.probe != "pcie_gather" && m.probe != "pcie_linear") return true;
  const auto kind = [](const Measurement& one) { return one.name.substr(0, one.name.find('.')); };
  return std::none_of(profile.measurements.begin(), profile.measurements.end(), [&](const Measurement& other) {
    return other.probe == m.probe && !other.values.empty() && kind(other) == kind(m) && at(other, size) > at(m, size);
  });
}

// GB/s of expert weights that the chosen candidate moves through what the ceiling is of: all of them on the host, those
// that are not in slots on a GPU. Empty where the profile does not tell.
std::optional<double> achieved_gbps(const Profile& profile) {
  const Candidate* chosen = chosen_candidate(profile);
  if (chosen == nullptr || chosen->replays.empty() || chosen->measured_tok_s.empty()) return std::nullopt;
  double bytes = 0;
  for (const Measurement& m : profile.measurements) {
    if (m.probe == "expert_single") bytes = std::max(bytes, at(m, "expert_bytes"));
  }
  const CandidateReplay& replay = chosen->replays[0];
  double layers = 0, experts = 0, model_layers = 0;
  for (const ReplayedCounts& counts : replay.counts) {
    const auto times = static_cast<double>(counts.times);
    layers += times;
    experts += times * (counts.fetched + counts.cpu + (profile.serve.device == "host" ? counts.hits : 0));
  }
  for (const Parameter& parameter : profile.cost_model.parameters) {
    if (parameter.name == kMoeLayersParameter) model_layers = parameter.value;
  }
  if (bytes <= 0 || layers <= 0 || model_layers <= 0 || replay.batch < 1) return std::nullopt;
  const double steps = chosen->measured_tok_s[0] / static_cast<double>(replay.batch);
  return experts / layers * model_layers * bytes * steps * 1e-9;
}

}  // namespace

Markup ceilings_section(const Profile& profile) {
  BarChart chart;
  chart.title = "Rates that were measured, in GB/s, and the ceiling of reading experts";
  chart.unit = "GB/s";
  HtmlTable table;
  table.caption = "Rates in GB/s: median and the range that holds 80 % of the samples";
  table.heads = {"what", "median", "10 %", "90 %", "samples"};
  table.numeric = {false, true, true, true, true};
  const auto add = [&](const Measurement& m) {
    const double middle = median(m.values), low = quantile(m.values, 0.1), high = quantile(m.values, 0.9);
    chart.bars.push_back({words_of(m), fmt::format("{:.1f}", middle), middle, low, high, style_of(m)});
    table.rows.push_back({words_of(m) + (at(m, "warm") > 0 ? " (warm)" : ""), fmt::format("{:.2f}", middle),
                          fmt::format("{:.2f}", low), fmt::format("{:.2f}", high), std::to_string(m.values.size())});
  };
  for (const char* probe : {"stream", "pcie_linear", "pcie_gather", "expert_single", "overlap"}) {
    const double threads = threads_shown(profile, probe);
    for (const Measurement& m : profile.measurements) {
      if (m.probe != probe || m.values.empty() || m.unit != "GB/s" || at(m, "node") != 0) continue;
      if (at(m, "threads") == threads && is_largest(profile, m)) add(m);
    }
  }
  if (chart.bars.empty()) return paragraph("No rate was measured.", "note");
  if (const std::optional<double> achieved = achieved_gbps(profile)) {
    chart.bars.push_back(
        {"experts while decoding, as chosen", fmt::format("{:.1f}", *achieved), *achieved, {}, {}, "c-served"});
    table.rows.push_back({"experts while decoding, as chosen", fmt::format("{:.2f}", *achieved), "-", "-", "-"});
  }
  if (profile.serve.ceiling_gbps > 0) {
    chart.mark = profile.serve.ceiling_gbps;
    chart.mark_label = fmt::format("ceiling {:.1f}", profile.serve.ceiling_gbps);
  }
  Figure figure;
  figure.text = fmt::format(
      "Medians with {} thread{} where the CPU works; the thin line holds 80 % of the samples. The ceiling is the rate "
      "at "
      "which the chosen strategy could read experts that are in no slot.{}",
      profile.serve.threads, profile.serve.threads == 1 ? "" : "s",
      profile.serve.device == "host" ? " Experts that fit the caches are read faster than memory." : "");
  figure.charts.push_back(draw_bars(chart));
  figure.table = std::move(table);
  return draw_figure(figure);
}

namespace {

struct Arm {
  const char* name;
  const char* style;
  Shape shape;
  int LayerCounts::*experts;
};
constexpr Arm kArms[] = {{"in slots", "c-resident", Shape::kCircle, &LayerCounts::hits},
                         {"fetched", "c-offload", Shape::kSquare, &LayerCounts::fetched},
                         {"on the CPU", "c-cpu", Shape::kTriangle, &LayerCounts::cpu}};

bool only(const LayerCounts& counts, const Arm& arm) {
  return counts.promoted == 0 && counts.prefetched == 0 &&
         counts.hits + counts.fetched + counts.cpu == counts.*arm.experts;
}

// One arm alone over the number of experts: what was measured, and what the fitted model makes of the same counts.
XyChart arms_chart(const std::vector<SweepCell>& cells, const CostParameters& cost, Device device, int tokens) {
  XyChart chart;
  chart.title = fmt::format(
      "Microseconds of a layer against its experts with {} tokens: marks are measured, lines fitted", tokens);
  chart.x_label = "experts of a layer";
  chart.y_label = "us a layer";
  chart.x_from_zero = chart.y_from_zero = true;
  for (const Arm& arm : kArms) {
    std::vector<SweepCell> mine;
    for (const SweepCell& cell : cells) {
      if (cell.counts.tokens == tokens && only(cell.counts, arm)) mine.push_back(cell);
    }
    std::stable_sort(mine.begin(), mine.end(), [&](const SweepCell& a, const SweepCell& b) {
      return a.counts.*arm.experts < b.counts.*arm.experts;
    });
    if (mine.empty() || mine.back().counts.*arm.experts == 0) continue;
    ChartSeries fitted{"", arm.style, Shape::kNone, false, true, false, {}};
    ChartSeries measured{std::string("alone ") + arm.name, arm.style, arm.shape, false, false, false, {}};
    for (const SweepCell& cell : mine) {
      const int experts = cell.counts.*arm.experts;
      const double predicted = layer_seconds(cost, device, cell.counts);
      fitted.points.push_back({static_cast<double>(experts), 1e6 * predicted, ""});
      measured.points.push_back({static_cast<double>(experts), 1e6 * cell.seconds,
                                 fmt::format("{} experts {}: {} measured, {} fitted", experts, arm.name,
                                             microseconds(cell.seconds), microseconds(predicted))});
    }
    chart.series.push_back(std::move(fitted));
    chart.series.push_back(std::move(measured));
  }
  return chart;
}

std::string cell_name(const LayerCounts& n) {
  return fmt::format("{} token{}: {} hits, {} fetched, {} CPU{}", n.tokens, n.tokens == 1 ? "" : "s", n.hits, n.fetched,
                     n.cpu, n.promoted > 0 ? fmt::format(", {} promoted", n.promoted) : "");
}

// All cells, mixed ones too: fitted against measured.
Figure residuals(const std::vector<SweepCell>& cells, const CostParameters& cost, Device device,
                 const CostModelRecord& record) {
  XyChart chart;
  chart.title = "Fitted against measured microseconds of all cells, with a band of 10 %";
  chart.x_label = "fitted us a layer";
  chart.y_label = "measured us a layer";
  chart.x_log = chart.y_log = chart.square = true;
  chart.band = kBand;
  ChartSeries fitted{"took part in the fit", "c-memory", Shape::kCircle, false, false, false, {}};
  ChartSeries held{"held out", "c-held", Shape::kDiamond, true, false, false, {}};
  Figure figure;
  figure.table.caption = "Cells of the sweep, microseconds a layer";
  figure.table.heads = {"cell", "measured", "fitted", "measured / fitted", "held out"};
  figure.table.numeric = {false, true, true, true, false};
  for (const SweepCell& cell : cells) {
    const double predicted = layer_seconds(cost, device, cell.counts);
    if (!(predicted > 0) || !(cell.seconds > 0)) continue;
    const std::string name = cell_name(cell.counts);
    (cell.held_out ? held : fitted).points.push_back({1e6 * predicted, 1e6 * cell.seconds, name});
    figure.table.rows.push_back({name, fmt::format("{:.2f}", 1e6 * cell.seconds),
                                 fmt::format("{:.2f}", 1e6 * predicted),
                                 fmt::format("{:.2f}", cell.seconds / predicted), cell.held_out ? "yes" : ""});
  }
  chart.series = {std::move(fitted), std::move(held)};
  figure.title = "How well the model fits";
  figure.text = fmt::format(
      "Cells that took no part in the fit are off by {} in the median; by {} with every fixed cost "
      "forced to zero.",
      percent_text(record.held_out_error, 1), percent_text(record.held_out_error_without_fixed_costs, 1));
  figure.legend = legend_of(chart);
  figure.charts.push_back(draw_chart(chart));
  return figure;
}

HtmlTable parameters_table(const CostModelRecord& record) {
  HtmlTable table;
  table.caption = "Parameters of the cost model with their 95 % intervals";
  table.heads = {"parameter", "value", "low", "high", "held-out error without it"};
  table.numeric = {false, true, true, true, true};
  for (const Parameter& p : record.parameters) {
    const bool seconds = p.unit == "s";
    const auto shown = [&](double value) { return seconds ? microseconds(value) : fmt::format("{:.3g}", value); };
    table.rows.push_back({p.name, shown(p.value), shown(p.low), shown(p.high),
                          p.held_out_error_without ? percent_text(*p.held_out_error_without, 1) : ""});
  }
  return table;
}

}  // namespace

Markup sweep_section(const Profile& profile) try {
  const auto threads = static_cast<int>(std::clamp(threads_shown(profile, "layer_sweep"), 0.0, double{kMaxThreads}));
  const std::vector<Samples> samples = samples_of(profile.measurements, "layer_sweep");
  if (samples.empty() || threads == 0) return paragraph("The sweep was not measured.", "note");
  const std::vector<SweepCell> cells = sweep_cells(samples, threads);
  const CostParameters cost = model_of(profile.cost_model, threads).cost;
  const Device device = device_of(profile);
  Figure lines;
  lines.title = "The sweep with the fitted lines";
  lines.text = fmt::format(
      "All MoE layers in sequence on {} thread{}: one expert takes {} in a slot, {} on the CPU, {} to fetch. The step "
      "from no expert to one is steeper by the fixed cost of an arm.",
      threads, threads == 1 ? "" : "s", microseconds(cost[CostTerm::kSlotPerExpert]),
      microseconds(cost[CostTerm::kCpuPerExpert]), microseconds(cost[CostTerm::kLinkPerExpert]));
  std::set<int> tokens;
  for (const SweepCell& cell : cells) tokens.insert(cell.counts.tokens);
  std::vector<int> drawn = {*tokens.begin()};
  if (tokens.size() > 1) drawn.push_back(*tokens.rbegin());
  for (const int count : drawn) {
    const XyChart chart = arms_chart(cells, cost, device, count);
    if (lines.legend.empty()) lines.legend = legend_of(chart);
    Markup headed;
    headed.open("div").leaf("p", fmt::format("With {} token{} in a step", count, count == 1 ? "" : "s"),
                            {{"class", "plot-title"}});
    lines.charts.push_back(headed.append(draw_chart(chart)).close());
  }
  lines.table = parameters_table(profile.cost_model);
  Markup out = draw_figure(lines);
  return out.append(draw_figure(residuals(cells, cost, device, profile.cost_model)));
} catch (const Error& error) {
  return paragraph(std::string("The fitted lines cannot be drawn: ") + error.what(), "note");
}

}  // namespace ft
