// What caches of every size do with the recorded routing: hit rate against slots, and how many misses a layer has.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tuner/explain.h"
#include "tuner/report/elements.h"
#include "tuner/report/sections.h"

namespace ft {
namespace {

constexpr size_t kMaxColumns = 128;  // of a distribution of misses: more are no longer told apart

std::string sequences(int64_t batch) { return fmt::format("{} sequence{}", batch, batch == 1 ? "" : "s"); }

struct Misses {
  std::string from;  // what they are of
  std::vector<double> share;
};

// Of the chosen candidate's own replay, or of the recorded point nearest to its slots.
Misses misses_of(const Profile& profile, int64_t batch) {
  Misses misses;
  std::vector<double> layers;
  const Candidate* chosen = chosen_candidate(profile);
  if (chosen != nullptr) {
    for (const CandidateReplay& replay : chosen->replays) {
      if (replay.batch != batch) continue;
      for (const ReplayedCounts& counts : replay.counts) {
        const int64_t count = int64_t{counts.fetched} + counts.cpu;
        if (count < 0 || count >= static_cast<int64_t>(kMaxColumns)) continue;
        layers.resize(std::max(layers.size(), static_cast<size_t>(count) + 1));
        layers[static_cast<size_t>(count)] += static_cast<double>(counts.times);
      }
      misses.from = "as chosen";
    }
  }
  if (layers.empty() && profile.routing) {
    const RoutingPoint* nearest = nullptr;
    for (const RoutingPoint& point : profile.routing->points) {
      if (point.batch != batch) continue;
      if (nearest == nullptr ||
          std::abs(point.slots - profile.serve.slots) < std::abs(nearest->slots - profile.serve.slots)) {
        nearest = &point;
      }
    }
    if (nearest != nullptr) {
      const size_t count = std::min(nearest->misses_histogram.size(), kMaxColumns);
      layers.assign(nearest->misses_histogram.begin(),
                    nearest->misses_histogram.begin() + static_cast<std::ptrdiff_t>(count));
      misses.from = fmt::format("with {} slots", nearest->slots);
    }
  }
  while (!layers.empty() && layers.back() == 0) layers.pop_back();
  double sum = 0;
  for (const double value : layers) sum += value;
  for (const double value : layers) misses.share.push_back(sum > 0 ? 100 * value / sum : 0);
  return misses;
}

Figure hit_rates(const Profile& profile, int64_t batch) {
  XyChart chart;
  chart.title = "Hit rate against slots with " + sequences(batch);
  chart.x_label = "slots (experts over all layers)";
  chart.y_label = "hit rate, %";
  chart.x_from_zero = chart.y_from_zero = true;
  chart.y_high = 100;
  ChartSeries policy{profile.routing->cache_policy, "c-resident", Shape::kCircle, false, true, false, {}};
  ChartSeries best{"a cache that knows the future", "c-held", Shape::kDiamond, true, true, true, {}};
  Figure figure;
  figure.table.caption = "Hit rates and misses per layer with " + sequences(batch);
  figure.table.heads = {"slots", "hit rate", "optimum", "misses a layer"};
  figure.table.numeric = {true, true, true, true};
  for (const RoutingPoint& point : profile.routing->points) {
    if (point.batch != batch) continue;
    const auto slots = static_cast<double>(point.slots);
    policy.points.push_back(
        {slots, 100 * point.hit_rate, fmt::format("{} slots: {}", point.slots, percent_text(point.hit_rate, 1))});
    best.points.push_back({slots, 100 * point.optimum_hit_rate,
                           fmt::format("{} slots: {} at best", point.slots, percent_text(point.optimum_hit_rate, 1))});
    double layers = 0, misses = 0;
    for (size_t m = 0; m < point.misses_histogram.size(); ++m) {
      layers += static_cast<double>(point.misses_histogram[m]);
      misses += static_cast<double>(m) * static_cast<double>(point.misses_histogram[m]);
    }
    figure.table.rows.push_back({std::to_string(point.slots), percent_text(point.hit_rate, 1),
                                 percent_text(point.optimum_hit_rate, 1),
                                 layers > 0 ? fmt::format("{:.2f}", misses / layers) : "-"});
  }
  chart.series = {std::move(best), std::move(policy)};
  if (profile.serve.slots > 0) {
    chart.x_mark = static_cast<double>(profile.serve.slots);
    chart.x_mark_label = fmt::format("serves {}", profile.serve.slots);
  }
  figure.title = "Hit rate against slots, " + sequences(batch);
  figure.text = "Replayed from the recorded routing through the engine's own slot table; with every miss brought in.";
  figure.legend = legend_of(chart);
  figure.charts.push_back(draw_chart(chart));
  return figure;
}

}  // namespace

Markup routing_section(const Profile& profile) {
  std::set<int64_t> batches(profile.conditions.batches.begin(), profile.conditions.batches.end());
  Markup out;
  bool any = false;
  for (const int64_t batch : batches) {
    const bool known = profile.routing && std::any_of(profile.routing->points.begin(), profile.routing->points.end(),
                                                      [&](const RoutingPoint& point) { return point.batch == batch; });
    Figure figure;
    if (known) figure = hit_rates(profile, batch);
    const Misses misses = misses_of(profile, batch);
    if (misses.share.empty() && !known) continue;
    if (!known) figure.title = "Misses of a layer, " + sequences(batch);
    if (!misses.share.empty()) {
      Markup headed;
      headed.open("div").leaf("p", "Misses of a layer " + misses.from, {{"class", "plot-title"}});
      headed.append(draw_columns({"Share of layers by their misses, " + sequences(batch), "misses of a layer",
                                  "% of layers", misses.share, "c-memory"}));
      figure.charts.push_back(headed.close());
    }
    out.append(draw_figure(figure));
    any = true;
  }
  if (!any) {
    return paragraph(
        "A profile of version " + profile.version + " does not record what caches of other sizes would do (1.4 does).",
        "note");
  }
  return out;
}

}  // namespace ft
