// Checked against: tick values written by hand, a parser of well-formedness written here, and places that follow from
// the scales. What only a browser can tell (overlaps, contrast) is checked by scripts/check-report.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/tuner/well_formed.h"
#include "tuner/report/chart.h"
#include "tuner/report/scale.h"

namespace ft {
namespace {

std::string labels(const Scale& scale) {
  std::string text;
  for (const Tick& tick : scale.ticks) text += (text.empty() ? "" : " ") + tick.label;
  return text;
}

size_t count_of(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

XyChart two_series() {
  XyChart chart;
  chart.title = "a & b";
  chart.x_label = "x";
  chart.y_label = "y";
  chart.series = {{"one", "c-cpu", Shape::kCircle, false, true, false, {{1, 10, "first <point>"}, {2, 20, ""}}},
                  {"two", "c-held", Shape::kDiamond, true, true, true, {{1, 5, ""}, {3, 40, ""}}}};
  return chart;
}

}  // namespace

TEST_CASE("linear ticks are round, enclose the data and are few enough") {
  CHECK(labels(linear_scale(0, 10, 7)) == "0 2 4 6 8 10");
  CHECK(labels(linear_scale(0, 1, 6)) == "0 0.2 0.4 0.6 0.8 1.0");
  CHECK(labels(linear_scale(0, 33.6, 7)) == "0 10 20 30 40");
  CHECK(labels(linear_scale(0, 1078, 7)) == "0 200 400 600 800 1000 1200");
  CHECK(labels(linear_scale(-3, 7, 7)) == "-4 -2 0 2 4 6 8");
  CHECK(labels(linear_scale(0, 25000, 6)) == "0 5000 10k 15k 20k 25k");
  CHECK(labels(linear_scale(0, 3e6, 4)) == "0 1M 2M 3M");
  CHECK(labels(linear_scale(0.001, 0.0042, 6)) == "0.001 0.002 0.003 0.004 0.005");
  CHECK(labels(linear_scale(5, 5, 5)) == "2 4 6 8");  // equal ends are widened
  CHECK(labels(linear_scale(0, 0, 5)) == "0 0.5 1.0");
  for (double low : {-1e6, -3.3, 0.0, 1e-9, 17.0}) {
    for (double span : {1e-12, 0.37, 4.0, 99.5, 3e7}) {
      for (int most : {3, 4, 7}) {
        const Scale scale = linear_scale(low, low + span, most);
        CAPTURE(low);
        CAPTURE(span);
        CHECK(scale.ticks.size() <= static_cast<size_t>(most));
        CHECK(scale.ticks.size() >= 2);
        CHECK(scale.low <= low + 1e-9 * std::abs(low));
        CHECK(scale.high >= (low + span) - 1e-9 * std::abs(low + span));
        CHECK(scale.ticks.front().value == scale.low);
        CHECK(scale.ticks.back().value == scale.high);
      }
    }
  }
}

TEST_CASE("logarithmic ticks: 1, 2, 5, decades, every n-th decade, round numbers in a short range") {
  CHECK(labels(log_scale(1, 100, 7)) == "1 2 5 10 20 50 100");
  CHECK(labels(log_scale(1, 100, 6)) == "1 10 100");
  CHECK(labels(log_scale(0.5, 40, 7)) == "0.5 1 2 5 10 20");
  CHECK(labels(log_scale(1e-3, 1e3, 7)) == "0.001 0.01 0.1 1 10 100 1000");
  CHECK(labels(log_scale(1, 1e8, 5)) == "1 100 10k 1M 100M");
  CHECK(labels(log_scale(513, 3487, 6)) == "500 1000 2000");
  CHECK(labels(log_scale(2.1, 4.4, 6)) == "2 4");
  CHECK(labels(log_scale(7, 7, 6)) == "6.5 7.0 7.5");
  for (double low : {1e-14, 3e-5, 0.7, 12.0, 9e13}) {
    for (double ratio : {1.0, 1.3, 8.0, 1e3, 1e9}) {
      for (int most : {3, 5, 7}) {
        const Scale scale = log_scale(low, low * ratio, most);
        CAPTURE(low);
        CAPTURE(ratio);
        CHECK(scale.ticks.size() <= static_cast<size_t>(std::max(most, 5)));
        CHECK(scale.low < low);
        CHECK(scale.high > low * ratio);
        for (const Tick& tick : scale.ticks) {
          CHECK(scale.fraction(tick.value) > -1e-9);
          CHECK(scale.fraction(tick.value) < 1 + 1e-9);
        }
      }
    }
  }
}

TEST_CASE("where a value is on its axis") {
  const Scale linear = linear_scale(0, 10, 7);
  CHECK(linear.fraction(0) == 0);
  CHECK(linear.fraction(2.5) == doctest::Approx(0.25));
  const Scale log = log_scale(1, 100, 7);
  CHECK(log.fraction(log.low) == doctest::Approx(0));
  CHECK(log.fraction(10) == doctest::Approx(0.5));
  CHECK(log.fraction(log.high) == doctest::Approx(1));
}

TEST_CASE("text and attributes are escaped, control characters replaced") {
  CHECK(escape_markup("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(escape_markup(std::string_view("a\0b\x1b\x7f\n\tc", 8)) ==
        "a\xEF\xBF\xBD"
        "b\xEF\xBF\xBD\xEF\xBF\xBD\n\tc");
  CHECK(escape_markup("\xC3\xA9") == "\xC3\xA9");
  Markup markup;
  markup.open("p", {{"title", "\"<x>\""}}).text("</p>").close();
  CHECK(markup.str() == "<p title=\"&quot;&lt;x&gt;&quot;\">&lt;/p&gt;</p>");
  CHECK(well_formed(markup.str()) == "");
}

TEST_CASE("the checker of well-formedness finds what is wrong") {
  CHECK(well_formed("<a><b/></a>") == "");
  CHECK(well_formed("<a><b></a>") != "");
  CHECK(well_formed("<a>") != "");
  CHECK(well_formed("<a x=1/>") != "");
  CHECK(well_formed("<a x=\"<\"/>") != "");
  CHECK(well_formed("<a>&</a>") != "");
  CHECK(well_formed("<a/><b/>") != "");
  CHECK(well_formed("<a x=\"1\" x=\"2\"/>") != "");
}

TEST_CASE("a chart with two axes: well-formed, a mark a point, tips escaped, marks inside the frame") {
  const std::string svg = draw_chart(two_series()).str();
  CHECK(well_formed(svg) == "");
  CHECK(count_of(svg, "<circle") == 2);
  CHECK(count_of(svg, "<polygon") == 2);
  CHECK(count_of(svg, "class=\"line c-held dashed\"") == 1);
  CHECK(svg.find("aria-label=\"a &amp; b\"") != std::string::npos);
  CHECK(svg.find("<title>first &lt;point&gt;</title>") != std::string::npos);
  for (size_t at = svg.find("<circle cx=\""); at != std::string::npos; at = svg.find("<circle cx=\"", at + 1)) {
    const double x = std::stod(svg.substr(at + 12));
    CHECK(x >= 0);
    CHECK(x <= kChartWidth);
  }
  CHECK(legend_of(two_series()).size() == 2);
}

TEST_CASE("equal scales, their band and line") {
  XyChart chart = two_series();
  chart.square = chart.x_log = chart.y_log = true;
  chart.band = 0.1;
  const std::string svg = draw_chart(chart).str();
  CHECK(well_formed(svg) == "");
  CHECK(count_of(svg, "class=\"band\"") == 1);
  CHECK(count_of(svg, "class=\"diagonal\"") == 1);
}

TEST_CASE("what cannot be drawn is left out; nothing at all is said") {
  XyChart chart = two_series();
  const double inf = std::numeric_limits<double>::infinity();
  chart.series[0].points = {{1, inf, ""}, {2, std::nan(""), ""}, {1e16, 1, ""}, {-1e300, 1, ""}, {2, 3, ""}};
  chart.series[1].points.clear();
  CHECK(count_of(draw_chart(chart).str(), "<circle") == 1);
  chart.x_log = chart.y_log = true;
  chart.series[0].points = {{0, 1, ""}, {-1, 1, ""}, {1, 0, ""}, {1e-16, 1, ""}};
  CHECK(draw_chart(chart).str().find("nothing to draw") != std::string::npos);
  CHECK(draw_chart({}).str().find("nothing to draw") != std::string::npos);
  CHECK(draw_bars({}).str().find("nothing to draw") != std::string::npos);
  CHECK(draw_stacked({}).str().find("nothing to draw") != std::string::npos);
  CHECK(draw_columns({}).str().find("nothing to draw") != std::string::npos);
  BarChart bars;
  bars.bars = {{"bad", "", inf, {}, {}, "x"}, {"worse", "", -1, {}, {}, "x"}, {"good", "1", 1, 0.5, inf, "x"}};
  bars.mark = std::nan("");
  CHECK(count_of(draw_bars(bars).str(), "<rect") == 1);
}

TEST_CASE("bars are as long as their values") {
  BarChart chart;
  chart.title = "bars";
  chart.unit = "GB/s";
  chart.bars = {{"a <b>", "5", 5, 4, 6, "c-cpu"}, {"c", "10", 10, {}, {}, "c-cpu"}};
  chart.mark = 8;
  chart.mark_label = "ceiling 8";
  const std::string svg = draw_bars(chart).str();
  CHECK(well_formed(svg) == "");
  std::vector<double> widths;
  for (size_t at = svg.find(" width=\""); at != std::string::npos; at = svg.find(" width=\"", at + 1)) {
    widths.push_back(std::stod(svg.substr(at + 8)));
  }
  REQUIRE(widths.size() == 2);
  CHECK(widths[1] / widths[0] == doctest::Approx(2).epsilon(1e-3));
  CHECK(count_of(svg, "class=\"whisker\"") == 1);
  CHECK(svg.find("ceiling 8") != std::string::npos);
}

TEST_CASE("stacked parts follow each other and fill the sum") {
  StackedChart chart;
  chart.title = "stack";
  chart.unit = "us";
  chart.parts = {"dense", "fetch", "idle"};
  chart.styles = {"p-dense", "p-fetch", "p-idle"};
  chart.bars = {{"one", "40 us", {10, 30, 0}}, {"two", "20 us", {5, 5, 10}}};
  const std::string svg = draw_stacked(chart).str();
  CHECK(well_formed(svg) == "");
  CHECK(count_of(svg, "<rect") == 5);            // a part of 0 is not drawn
  std::vector<std::pair<double, double>> rects;  // x, width
  for (size_t at = svg.find("<rect x=\""); at != std::string::npos; at = svg.find("<rect x=\"", at + 1)) {
    rects.emplace_back(std::stod(svg.substr(at + 9)), std::stod(svg.substr(svg.find(" width=\"", at) + 8)));
  }
  CHECK(rects[0].first + rects[0].second == doctest::Approx(rects[1].first).epsilon(1e-3));
  CHECK(rects[1].second / rects[0].second == doctest::Approx(3).epsilon(1e-2));
}

TEST_CASE("columns of a distribution, its ticks thinned") {
  ColumnChart chart{"misses", "misses", "%", std::vector<double>(100, 1.0), "c-memory"};
  const std::string svg = draw_columns(chart).str();
  CHECK(well_formed(svg) == "");
  CHECK(count_of(svg, "<rect") == 100);
  CHECK(count_of(svg, "text-anchor=\"middle\"") < 20);
}

}  // namespace ft
