// The few elements that the page is made of: tables, figures with their table beside them, lists.
#pragma once

#include <string>
#include <vector>

#include "tuner/report/chart.h"
#include "tuner/report/markup.h"

namespace ft {

struct HtmlTable {
  std::string caption;
  std::vector<std::string> heads;
  std::vector<bool> numeric;  // per column: aligned to the right; missing ones are not
  std::vector<std::vector<std::string>> rows;
  size_t strong_row = SIZE_MAX;  // one that is set off
};
// Scrolls sideways by itself where the page is too narrow, so that the page never does.
Markup draw_table(const HtmlTable& table);

// A chart with its words: title, legend, a sentence, and the same numbers as a table for whoever cannot see it.
struct Figure {
  std::string title;  // empty: the section's says it
  std::string text;
  std::vector<LegendEntry> legend;
  std::vector<Markup> charts;
  HtmlTable table;
};
// A table of few rows beside a single chart is shown at once; others when asked for.
inline constexpr size_t kOpenRows = 16;
Markup draw_figure(const Figure& figure);

Markup paragraph(const std::string& text, const std::string& style = "");
Markup bullet_list(const std::vector<std::string>& items, const std::string& style = "");
// Terms with their values; pairs with an empty value are left out.
Markup term_list(const std::vector<std::pair<std::string, std::string>>& terms);

// With a capital letter and a full stop.
std::string sentence(const std::string& text);
// "2661", "157.8": a rate.
std::string rate_text(double tok_s);
// "4.3 %".
std::string percent_text(double share, int decimals = 0);

}  // namespace ft
