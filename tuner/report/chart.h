// Charts as inline SVG, for a page without scripts. Colours are classes of the page's style sheet, so that light, dark
// and print are its business; every series has a mark of its own too, so that colour is never the only difference.
//
// A chart is kChartWidth units wide and scales with the page: on a phone a unit is a little less than a pixel, so text
// of 11 units stays legible. Values that are no finite numbers, beyond kLargestDrawn or, on a logarithmic axis, not
// above 1 / kLargestDrawn are left out: profiles are edited by hand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tuner/report/markup.h"

namespace ft {

inline constexpr double kChartWidth = 400;
inline constexpr double kLargestDrawn = 1e15;

enum class Shape { kNone, kCircle, kSquare, kTriangle, kDiamond, kCross };

struct ChartPoint {
  double x = 0, y = 0;
  std::string tip;  // shown when pointed at; empty: none
};

struct ChartSeries {
  std::string name;
  std::string style;  // class of the page's style sheet: a colour
  Shape shape = Shape::kCircle;
  bool hollow = false;
  bool line = false, dashed = false;  // through the points, in their order
  std::vector<ChartPoint> points;
};

struct XyChart {
  std::string title;  // what a screen reader says of the chart
  std::string x_label, y_label;
  bool x_log = false, y_log = false;
  bool x_from_zero = false, y_from_zero = false;
  std::optional<double> y_high;  // at least so far
  bool square = false;           // one scale for both axes, with the line y = x
  std::optional<double> band;    // square: y from x / (1 + band) to x (1 + band)
  std::optional<double> x_mark;  // a vertical line
  std::string x_mark_label;
  std::vector<ChartSeries> series;
};
// Nothing to draw gives a chart that says so.
Markup draw_chart(const XyChart& chart);

// One bar a row, its label above it and its value at the right end of that line.
struct ChartBar {
  std::string label, value_text;
  double value = 0;
  std::optional<double> low, high;  // a whisker
  std::string style;
};
struct BarChart {
  std::string title;
  std::string unit;  // of the axis
  std::vector<ChartBar> bars;
  std::optional<double> mark;  // a vertical line: a ceiling
  std::string mark_label;
};
Markup draw_bars(const BarChart& chart);

// Bars made of parts, in the order of `parts`; values are not negative.
struct StackedBar {
  std::string label, value_text;
  std::vector<double> values;  // as many as parts
};
struct StackedChart {
  std::string title, unit;
  std::vector<std::string> parts, styles;
  std::vector<StackedBar> bars;
};
Markup draw_stacked(const StackedChart& chart);

// Upright columns over 0, 1, 2, ..: a distribution.
struct ColumnChart {
  std::string title, x_label, y_label;
  std::vector<double> values;
  std::string style;
};
Markup draw_columns(const ColumnChart& chart);

// A list of names with their marks.
struct LegendEntry {
  std::string name, style;
  Shape shape = Shape::kSquare;
  bool hollow = false, line = false, dashed = false;
};
Markup draw_legend(const std::vector<LegendEntry>& entries);
std::vector<LegendEntry> legend_of(const XyChart& chart);  // series with a name

}  // namespace ft
