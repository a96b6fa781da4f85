#include "tuner/report/chart.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "tuner/report/scale.h"

namespace ft {
namespace {

constexpr double kTextWidth = 6.3;  // of a digit of .tick, on average; labels are wider than narrow fonts, never cut
constexpr double kPlotHeight = 210;
constexpr double kTop = 26;     // the label of the upright axis stands here
constexpr double kBottom = 40;  // tick labels and the label of the level axis
constexpr double kRight = 14;
constexpr double kMark = 3.6;  // half of a mark's size
constexpr double kBarRow = 36, kBarHeight = 12, kBarAxis = 30;
constexpr int kMaxTicks = 7;

std::string px(double value) { return fmt::format("{:.2f}", value); }

size_t shown_length(const std::string& text) {  // code points
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

bool drawable(double value, bool log) {
  if (!std::isfinite(value) || std::abs(value) > kLargestDrawn) return false;
  return !log || value > 1 / kLargestDrawn;
}

Markup begin_svg(const std::string& title, double height) {
  Markup svg;
  svg.open("svg", {{"class", "chart"},
                   {"viewBox", "0 0 " + px(kChartWidth) + " " + px(height)},
                   {"role", "img"},
                   {"aria-label", title},
                   {"xmlns", "http://www.w3.org/2000/svg"}});
  return svg;
}

void put_text(Markup& svg, double x, double y, const std::string& text, const std::string& style,
              const char* anchor = "start") {
  svg.leaf("text", text, {{"x", px(x)}, {"y", px(y)}, {"class", style}, {"text-anchor", anchor}});
}

void put_line(Markup& svg, double x1, double y1, double x2, double y2, const std::string& style) {
  svg.empty("line", {{"x1", px(x1)}, {"y1", px(y1)}, {"x2", px(x2)}, {"y2", px(y2)}, {"class", style}});
}

void put_rect(Markup& svg, double x, double y, double width, double height, const std::string& style,
              const std::string& tip = "") {
  svg.open("rect", {{"x", px(x)}, {"y", px(y)}, {"width", px(width)}, {"height", px(height)}, {"class", style}});
  if (!tip.empty()) svg.leaf("title", tip);
  svg.close();
}

void put_mark(Markup& svg, double x, double y, Shape shape, bool hollow, const std::string& style,
              const std::string& tip = "") {
  const std::string name = "mark " + style + (hollow ? " hollow" : "");
  const auto polygon = [&](const std::string& points) { svg.open("polygon", {{"points", points}, {"class", name}}); };
  const auto at = [&](double dx, double dy) { return px(x + dx) + "," + px(y + dy); };
  switch (shape) {
    case Shape::kNone:
      return;
    case Shape::kCircle:
      svg.open("circle", {{"cx", px(x)}, {"cy", px(y)}, {"r", px(kMark)}, {"class", name}});
      break;
    case Shape::kSquare:
      polygon(at(-kMark, -kMark) + " " + at(kMark, -kMark) + " " + at(kMark, kMark) + " " + at(-kMark, kMark));
      break;
    case Shape::kTriangle:
      polygon(at(0, -kMark * 1.2) + " " + at(kMark * 1.15, kMark) + " " + at(-kMark * 1.15, kMark));
      break;
    case Shape::kDiamond:
      polygon(at(0, -kMark * 1.35) + " " + at(kMark * 1.35, 0) + " " + at(0, kMark * 1.35) + " " +
              at(-kMark * 1.35, 0));
      break;
    case Shape::kCross:
      svg.open("path", {{"d", "M" + at(-kMark, -kMark) + " L" + at(kMark, kMark) + " M" + at(-kMark, kMark) + " L" +
                                  at(kMark, -kMark)},
                        {"class", "mark stroke " + style}});
      break;
  }
  if (!tip.empty()) svg.leaf("title", tip);
  svg.close();
}

Markup nothing_to_draw(const std::string& title) {
  Markup svg = begin_svg(title, 60);
  put_text(svg, kChartWidth / 2, 34, "nothing to draw", "tick", "middle");
  svg.close();
  return svg;
}

struct Range {
  bool any = false;
  double low = 0, high = 0;
  void add(double value) {
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
};

int ticks_that_fit(double width, const Range& range) {
  const size_t length =
      std::max(tick_label(range.low, range.high / 10).size(), tick_label(range.high, range.high / 10).size());
  const double room = std::max(34.0, kTextWidth * static_cast<double>(length) + 14);
  return std::clamp(static_cast<int>(width / room), 3, kMaxTicks);
}

double widest_label(const Scale& scale) {
  size_t widest = 0;
  for (const Tick& tick : scale.ticks) widest = std::max(widest, shown_length(tick.label));
  return kTextWidth * static_cast<double>(widest);
}

// The frame of a chart with two axes: where the plot is and what is where in it.
class Frame {
 public:
  Frame(const Scale& x, const Scale& y, double height) : x_(x), y_(y) {
    left_ = std::max(30.0, widest_label(y) + 12);
    right_ = kChartWidth - kRight;
    top_ = kTop;
    bottom_ = kTop + height;
  }
  double x(double value) const { return left_ + x_.fraction(value) * (right_ - left_); }
  double y(double value) const { return bottom_ - y_.fraction(value) * (bottom_ - top_); }
  double left() const { return left_; }
  double right() const { return right_; }
  double top() const { return top_; }
  double bottom() const { return bottom_; }

  void draw(Markup& svg, const std::string& x_label, const std::string& y_label, bool x_ticks = true) const {
    for (const Tick& tick : y_.ticks) {
      put_line(svg, left_, y(tick.value), right_, y(tick.value), "grid");
      put_text(svg, left_ - 6, y(tick.value) + 3.8, tick.label, "tick", "end");
    }
    for (size_t i = 0; x_ticks && i < x_.ticks.size(); ++i) {
      const Tick& tick = x_.ticks[i];
      put_line(svg, x(tick.value), bottom_, x(tick.value), bottom_ + 4, "axis");
      const double half = kTextWidth * static_cast<double>(shown_length(tick.label)) / 2;
      const bool last = x(tick.value) + half > kChartWidth - 2;  // else it would leave the chart
      put_text(svg, last ? kChartWidth - 2 : x(tick.value), bottom_ + 16, tick.label, "tick", last ? "end" : "middle");
    }
    put_line(svg, left_, bottom_, right_, bottom_, "axis");
    put_text(svg, 2, 13, y_label, "label");
    put_text(svg, right_, bottom_ + 33, x_label, "label", "end");
  }

 private:
  const Scale& x_;
  const Scale& y_;
  double left_, right_, top_, bottom_;
};

// y = x (1 + band) to y = x / (1 + band) inside the frame, and y = x.
void draw_diagonal(Markup& svg, const Frame& frame, const Scale& scale, std::optional<double> band) {
  constexpr int kSteps = 24;  // on linear axes the edges are straight, on logarithmic ones too: cut at the frame
  if (band) {
    std::string upper, lower;
    for (int i = 0; i <= kSteps; ++i) {
      const double share = static_cast<double>(i) / kSteps;
      const double value = scale.log ? scale.low * std::pow(scale.high / scale.low, share)
                                     : scale.low + (scale.high - scale.low) * share;
      const double above = std::clamp(value * (1 + *band), scale.low, scale.high);
      const double below = std::clamp(value / (1 + *band), scale.low, scale.high);
      upper += px(frame.x(value)) + "," + px(frame.y(above)) + " ";
      lower = px(frame.x(value)) + "," + px(frame.y(below)) + " " + lower;
    }
    lower.pop_back();
    svg.empty("polygon", {{"points", upper + lower}, {"class", "band"}});
  }
  put_line(svg, frame.x(scale.low), frame.y(scale.low), frame.x(scale.high), frame.y(scale.high), "diagonal");
}

void draw_series(Markup& svg, const Frame& frame, const ChartSeries& series, bool x_log, bool y_log) {
  std::vector<const ChartPoint*> points;
  for (const ChartPoint& point : series.points) {
    if (drawable(point.x, x_log) && drawable(point.y, y_log)) points.push_back(&point);
  }
  if (series.line && points.size() > 1) {
    std::string path;
    for (const ChartPoint* point : points) {
      path += (path.empty() ? "M" : " L") + px(frame.x(point->x)) + "," + px(frame.y(point->y));
    }
    svg.empty("path", {{"d", path}, {"class", "line " + series.style + (series.dashed ? " dashed" : "")}});
  }
  for (const ChartPoint* point : points) {
    put_mark(svg, frame.x(point->x), frame.y(point->y), series.shape, series.hollow, series.style, point->tip);
  }
}

Scale make_scale(bool log, Range range, bool from_zero, double room) {
  if (log) return log_scale(range.low, range.high, ticks_that_fit(room, range));
  if (from_zero) range.add(0);
  return linear_scale(range.low, range.high, ticks_that_fit(room, range));
}

// A line at `bottom` from left to right with its ticks; the unit stands at the last one, which ends at the margin.
void put_axis_below(Markup& svg, const Scale& scale, double left, double right, double bottom,
                    const std::string& unit) {
  put_line(svg, left, bottom, right, bottom, "axis");
  for (size_t i = 0; i < scale.ticks.size(); ++i) {
    const bool last = i + 1 == scale.ticks.size();
    const double x = left + scale.fraction(scale.ticks[i].value) * (right - left);
    put_text(svg, last ? right + kRight - 2 : x, bottom + 16, scale.ticks[i].label + (last ? " " + unit : ""), "tick",
             i == 0 ? "start"
             : last ? "end"
                    : "middle");
  }
}

}  // namespace

Markup draw_chart(const XyChart& chart) {
  Range xs, ys;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!drawable(point.x, chart.x_log) || !drawable(point.y, chart.y_log)) continue;
      xs.add(point.x);
      ys.add(point.y);
    }
  }
  if (!xs.any) return nothing_to_draw(chart.title);
  if (chart.y_high) ys.add(*chart.y_high);
  if (chart.x_mark && drawable(*chart.x_mark, chart.x_log)) xs.add(*chart.x_mark);
  if (chart.square) {
    xs.add(ys.low);
    xs.add(ys.high);
    ys = xs;
  }
  const double height = chart.square ? 300 : kPlotHeight;
  const Scale x_scale = make_scale(chart.x_log, xs, chart.x_from_zero, kChartWidth - 60);
  const Scale y_scale = chart.square ? x_scale : make_scale(chart.y_log, ys, chart.y_from_zero, height * 1.2);
  const Frame frame(x_scale, y_scale, height);
  Markup svg = begin_svg(chart.title, kTop + height + kBottom);
  frame.draw(svg, chart.x_label, chart.y_label);
  if (chart.square) {
    for (const Tick& tick : x_scale.ticks) {
      put_line(svg, frame.x(tick.value), frame.top(), frame.x(tick.value), frame.bottom(), "grid");
    }
    draw_diagonal(svg, frame, x_scale, chart.band);
  }
  if (chart.x_mark && drawable(*chart.x_mark, chart.x_log)) {
    const double x = frame.x(*chart.x_mark);
    put_line(svg, x, frame.top() - 4, x, frame.bottom(), "ceiling");
    const bool right_half = x > (frame.left() + frame.right()) / 2;
    put_text(svg, x + (right_half ? -5 : 5), frame.bottom() - 6, chart.x_mark_label, "note",
             right_half ? "end" : "start");
  }
  for (const ChartSeries& series : chart.series) draw_series(svg, frame, series, chart.x_log, chart.y_log);
  svg.close();
  return svg;
}

Markup draw_bars(const BarChart& chart) {
  Range range;
  range.add(0);
  std::vector<const ChartBar*> bars;
  for (const ChartBar& bar : chart.bars) {
    if (!drawable(bar.value, false) || bar.value < 0) continue;
    bars.push_back(&bar);
    range.add(bar.value);
    if (bar.high && drawable(*bar.high, false)) range.add(*bar.high);
  }
  if (bars.empty()) return nothing_to_draw(chart.title);
  const bool marked = chart.mark && drawable(*chart.mark, false) && *chart.mark > 0;
  if (marked) range.add(*chart.mark);
  const double left = 2, right = kChartWidth - kRight, top = marked ? 18 : 2;
  const Scale scale = linear_scale(range.low, range.high, ticks_that_fit(right - left, range));
  const auto x = [&](double value) { return left + scale.fraction(value) * (right - left); };
  const double bottom = top + kBarRow * static_cast<double>(bars.size());
  Markup svg = begin_svg(chart.title, bottom + kBarAxis);
  for (const Tick& tick : scale.ticks) put_line(svg, x(tick.value), top, x(tick.value), bottom, "grid");
  for (size_t i = 0; i < bars.size(); ++i) {
    const ChartBar& bar = *bars[i];
    const double y = top + kBarRow * static_cast<double>(i);
    put_text(svg, left, y + 13, bar.label, "name");
    put_text(svg, right, y + 13, bar.value_text, "value", "end");
    put_rect(svg, left, y + 18, x(bar.value) - left, kBarHeight, bar.style, bar.label + ": " + bar.value_text);
    if (bar.low && bar.high && drawable(*bar.low, false) && drawable(*bar.high, false) && *bar.low >= 0) {
      put_line(svg, x(*bar.low), y + 18 + kBarHeight / 2, x(*bar.high), y + 18 + kBarHeight / 2, "whisker");
    }
  }
  if (marked) {
    put_line(svg, x(*chart.mark), top - 4, x(*chart.mark), top + 2, "ceiling");
    for (size_t i = 0; i < bars.size(); ++i) {  // beside the bars only: labels stay legible
      const double y = top + kBarRow * static_cast<double>(i);
      put_line(svg, x(*chart.mark), y + 16, x(*chart.mark), y + 20 + kBarHeight, "ceiling");
    }
    const bool right_half = *chart.mark > scale.high / 2;
    put_text(svg, x(*chart.mark) + (right_half ? -4 : 4), 11, chart.mark_label, "note", right_half ? "end" : "start");
  }
  put_axis_below(svg, scale, left, right, bottom, chart.unit);
  svg.close();
  return svg;
}

Markup draw_stacked(const StackedChart& chart) {
  Range range;
  range.add(0);
  const auto value_of = [](double value) { return drawable(value, false) && value > 0 ? value : 0; };
  const auto total = [&](const StackedBar& bar) {
    double sum = 0;
    for (const double value : bar.values) sum += value_of(value);
    return sum;
  };
  for (const StackedBar& bar : chart.bars) range.add(total(bar));
  if (range.high <= 0 || range.high > kLargestDrawn) return nothing_to_draw(chart.title);
  const double left = 2, right = kChartWidth - kRight, top = 2;
  const Scale scale = linear_scale(0, range.high, ticks_that_fit(right - left, range));
  const auto x = [&](double value) { return left + scale.fraction(value) * (right - left); };
  const double bottom = top + (kBarRow + 4) * static_cast<double>(chart.bars.size());
  Markup svg = begin_svg(chart.title, bottom + kBarAxis);
  for (const Tick& tick : scale.ticks) put_line(svg, x(tick.value), top, x(tick.value), bottom, "grid");
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const StackedBar& bar = chart.bars[i];
    const double y = top + (kBarRow + 4) * static_cast<double>(i);
    put_text(svg, left, y + 13, bar.label, "name");
    put_text(svg, right, y + 13, bar.value_text, "value", "end");
    double begin = 0;
    for (size_t p = 0; p < bar.values.size() && p < chart.parts.size(); ++p) {
      const double end = begin + value_of(bar.values[p]);
      if (end > begin) {
        const std::string tip = fmt::format("{}: {:.3g} {}", chart.parts[p], end - begin, chart.unit);
        put_rect(svg, x(begin), y + 18, x(end) - x(begin), kBarHeight + 5, "part " + chart.styles[p], tip);
      }
      begin = end;
    }
  }
  put_axis_below(svg, scale, left, right, bottom, chart.unit);
  svg.close();
  return svg;
}

Markup draw_columns(const ColumnChart& chart) {
  Range range;
  range.add(0);
  for (const double value : chart.values) {
    if (drawable(value, false) && value >= 0) range.add(value);
  }
  if (range.high <= 0) return nothing_to_draw(chart.title);
  const auto count = static_cast<double>(chart.values.size());
  constexpr double kHeight = 120;
  const Scale y_scale = linear_scale(0, range.high, 5);
  Scale x_scale;
  x_scale.low = -0.5;
  x_scale.high = count - 0.5;
  const Frame frame(x_scale, y_scale, kHeight);
  Markup svg = begin_svg(chart.title, kTop + kHeight + kBottom);
  frame.draw(svg, chart.x_label, chart.y_label, false);
  const double pitch = (frame.right() - frame.left()) / count;
  const double gap = std::min(3.0, pitch / 5);
  const auto every = static_cast<size_t>(std::max(1.0, std::ceil(26 / pitch)));
  for (size_t i = 0; i < chart.values.size(); ++i) {
    const double centre = frame.x(static_cast<double>(i));
    if (i % every == 0) put_text(svg, centre, frame.bottom() + 16, std::to_string(i), "tick", "middle");
    const double value = chart.values[i];
    if (!drawable(value, false) || value <= 0) continue;
    put_rect(svg, centre - (pitch - gap) / 2, frame.y(value), pitch - gap, frame.bottom() - frame.y(value), chart.style,
             fmt::format("{}: {:.3g}", i, value));
  }
  svg.close();
  return svg;
}

Markup draw_legend(const std::vector<LegendEntry>& entries) {
  Markup list;
  list.open("ul", {{"class", "legend"}});
  for (const LegendEntry& entry : entries) {
    list.open("li");
    list.open(
        "svg",
        {{"viewBox", "0 0 24 12"}, {"class", "key"}, {"aria-hidden", "true"}, {"xmlns", "http://www.w3.org/2000/svg"}});
    if (entry.line) put_line(list, 1, 6, 23, 6, "line " + entry.style + (entry.dashed ? " dashed" : ""));
    put_mark(list, 12, 6, entry.shape, entry.hollow, entry.style);
    list.close().text(entry.name).close();
  }
  list.close();
  return list;
}

std::vector<LegendEntry> legend_of(const XyChart& chart) {
  std::vector<LegendEntry> entries;
  for (const ChartSeries& series : chart.series) {
    if (series.name.empty() || series.points.empty()) continue;
    entries.push_back({series.name, series.style, series.shape, series.hollow, series.line, series.dashed});
  }
  return entries;
}

}  // namespace ft
