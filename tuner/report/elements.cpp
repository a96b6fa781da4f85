#include "tuner/report/elements.h"

#include <spdlog/fmt/fmt.h>

namespace ft {

Markup draw_table(const HtmlTable& table) {
  Markup out;
  out.leaf("p", table.caption, {{"class", "caption"}, {"aria-hidden", "true"}});  // the table's label says it
  out.open("div", {{"class", "scroll"}, {"tabindex", "0"}, {"role", "region"}, {"aria-label", table.caption}});
  out.open("table", {{"aria-label", table.caption}}).open("thead").open("tr");
  const auto style = [&](size_t column) {
    return std::string(column < table.numeric.size() && table.numeric[column] ? "n" : "t");
  };
  for (size_t c = 0; c < table.heads.size(); ++c) {
    out.leaf("th", table.heads[c], {{"scope", "col"}, {"class", style(c)}});
  }
  out.close().close().open("tbody");
  for (size_t r = 0; r < table.rows.size(); ++r) {
    out.open("tr", {{"class", r == table.strong_row ? "strong" : "plain"}});
    for (size_t c = 0; c < table.rows[r].size(); ++c) {
      if (c == 0) {
        out.leaf("th", table.rows[r][c], {{"scope", "row"}, {"class", style(c)}});
      } else {
        out.leaf("td", table.rows[r][c], {{"class", style(c)}});
      }
    }
    out.close();
  }
  return out.close().close().close();
}

Markup draw_figure(const Figure& figure) {
  Markup out;
  out.open("figure", {{"class", figure.charts.size() == 1 ? "one" : "several"}});
  out.open("figcaption");
  if (!figure.title.empty()) out.leaf("h4", figure.title);
  if (!figure.text.empty()) out.leaf("p", figure.text);
  if (!figure.legend.empty()) out.append(draw_legend(figure.legend));
  out.close().open("div", {{"class", "plots"}});
  for (const Markup& chart : figure.charts) out.append(chart);
  out.close().open("div", {{"class", "data"}});
  const size_t rows = figure.table.rows.size();
  if (rows > 0 && rows <= kOpenRows && figure.charts.size() == 1) {
    out.append(draw_table(figure.table));
  } else if (rows > 0) {
    out.open("details").leaf("summary", fmt::format("As a table ({} rows)", rows));
    out.append(draw_table(figure.table)).close();
  }
  return out.close().close();
}

std::string sentence(const std::string& text) {
  if (text.empty()) return text;
  std::string out = text;
  if (out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out.back() == '.' ? out : out + ".";
}

Markup paragraph(const std::string& text, const std::string& style) {
  Markup out;
  if (style.empty()) return out.leaf("p", text);
  return out.leaf("p", text, {{"class", style}});
}

Markup bullet_list(const std::vector<std::string>& items, const std::string& style) {
  Markup out;
  if (items.empty()) return out;
  out.open("ul", {{"class", style.empty() ? "items" : style}});
  for (const std::string& item : items) out.leaf("li", item);
  return out.close();
}

Markup term_list(const std::vector<std::pair<std::string, std::string>>& terms) {
  Markup out;
  out.open("dl");
  for (const auto& [term, value] : terms) {
    if (value.empty()) continue;
    out.open("div").leaf("dt", term).leaf("dd", value).close();
  }
  return out.close();
}

std::string rate_text(double tok_s) {
  return tok_s >= 1000 ? fmt::format("{:.0f}", tok_s)
         : tok_s >= 10 ? fmt::format("{:.1f}", tok_s)
                       : fmt::format("{:.2f}", tok_s);
}

std::string percent_text(double share, int decimals) { return fmt::format("{:.{}f} %", 100 * share, decimals); }

}  // namespace ft
