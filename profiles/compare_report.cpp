#include "profiles/compare_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "kernels/base/error.h"

namespace ft {
namespace {

std::string number(double value, const char* form) {
  char text[64];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

std::string headline(const ProfileComparison& comparison) {
  if (!comparison.incomparable.empty()) return "incomparable: " + comparison.incomparable.front();
  std::string counts;
  for (const Verdict verdict : {Verdict::kRegressed, Verdict::kImproved, Verdict::kSame, Verdict::kIncomparable}) {
    counts += (counts.empty() ? "" : ", ") + std::to_string(comparison.count(verdict)) + " " +
              std::string(verdict_name(verdict));
  }
  switch (comparison.exit_code()) {
    case 0:
      return "no regression (" + counts + ")";
    case kExitRegressed:
      return "regression (" + counts + ")";
    default:
      return "incomparable (" + counts + ")";
  }
}

// "7.31 to 6.62 GB/s", medians.
std::string values_text(const MetricComparison& metric) {
  const auto shown = [](double value, size_t samples) { return samples == 0 ? "-" : number(value, "%.4g"); };
  return shown(metric.base, metric.base_samples) + " to " + shown(metric.next, metric.next_samples) + " " + metric.unit;
}
std::string ratio_text(const MetricComparison& metric) {
  return metric.ratio == 0 ? "-" : number(metric.ratio, "%.3f");
}
std::string interval_text(const MetricComparison& metric) {
  return metric.ratio == 0 ? "-" : number(metric.low, "%.3f") + " to " + number(metric.high, "%.3f");
}
std::string floor_text(const MetricComparison& metric) {
  return metric.ratio == 0 ? "-" : number(100 * metric.floor.total(), "%.1f %%");
}

std::vector<std::string> preface(const ProfileComparison& comparison) {
  std::vector<std::string> lines;
  for (const std::string& reason : comparison.incomparable) lines.push_back(reason);
  for (const IdentityDifference& difference : comparison.differences) {
    if (!difference.field.starts_with("build.")) continue;
    lines.push_back(difference.field + ": " + difference.profile_value + " in BASE, " + difference.machine_value +
                    " in NEW");
  }
  for (const std::string& note : comparison.notes) lines.push_back(note);
  if (!comparison.machine_readings.empty()) {
    lines.push_back("the machine itself took " + number(comparison.machine, "%.3f") +
                    " of BASE's time, the median of " + std::to_string(comparison.machine_readings.size()) +
                    " readings that no build changes");
  }
  return lines;
}

// What GitHub would read as markup inside a table's cell.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '`' || c == '*' || c == '_' || c == '<' || c == '\\' || c == '[') escaped += '\\';
    escaped += c == '\n' || c == '\r' ? ' ' : c;
  }
  return escaped;
}

constexpr std::string_view kTableHead =
    "| metric | BASE to NEW (medians) | time, NEW/BASE | 95 % interval | floor | p |\n|---|---|---:|---:|---:|---:|\n";
std::string table_row(const MetricComparison& metric) {
  return "| " + cell(metric.name) + " | " + cell(values_text(metric)) + " | " + ratio_text(metric) + " | " +
         interval_text(metric) + " | " + floor_text(metric) + " | " + number(metric.p, "%.2g") + " |\n";
}

std::vector<const MetricComparison*> of_verdict(const ProfileComparison& comparison, Verdict verdict) {
  std::vector<const MetricComparison*> metrics;
  for (const MetricComparison& metric : comparison.metrics) {
    if (metric.verdict == verdict) metrics.push_back(&metric);
  }
  return metrics;
}

// As many rows as fit; says how many do not.
template <class Row>
void add_rows(std::string& text, std::span<const MetricComparison* const> metrics, size_t limit, Row row) {
  constexpr size_t kLastLine = 100;
  for (size_t i = 0; i < metrics.size(); ++i) {
    const std::string line = row(*metrics[i]);
    if (text.size() + line.size() + kLastLine > limit) {
      text += "\n" + std::to_string(metrics.size() - i) + " more are left out here; --format json has all.\n";
      return;
    }
    text += line;
  }
}

std::string xml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;  // XML 1.0 has no other control characters
    }
  }
  return escaped;
}

}  // namespace

std::string compare_text(const ProfileComparison& comparison) {
  std::string text;
  for (const std::string& line : preface(comparison)) text += line + "\n";
  for (const Verdict verdict : {Verdict::kRegressed, Verdict::kImproved, Verdict::kIncomparable}) {
    for (const MetricComparison* metric : of_verdict(comparison, verdict)) {
      text += std::string(verdict_name(verdict)) + "  " + metric->name + "  ";
      text += verdict == Verdict::kIncomparable
                  ? metric->reason
                  : values_text(*metric) + ", time x" + ratio_text(*metric) + " (" + interval_text(*metric) +
                        "), floor " + floor_text(*metric) + ", p " + number(metric->p, "%.2g");
      text += "\n";
    }
  }
  return text + headline(comparison) + "\n";
}

std::string compare_markdown(const ProfileComparison& comparison) {
  std::string text = "### ft-tune compare: " + cell(headline(comparison)) + "\n\n";
  for (const std::string& line : preface(comparison)) text += "- " + cell(line) + "\n";
  constexpr size_t kShare = kMaxCommentBytes / 4;  // of every part at most
  for (const Verdict verdict : {Verdict::kRegressed, Verdict::kImproved}) {
    const auto metrics = of_verdict(comparison, verdict);
    if (metrics.empty()) continue;
    text += "\n**" + std::to_string(metrics.size()) + " " + std::string(verdict_name(verdict)) + "**\n\n";
    text += kTableHead;
    add_rows(text, metrics, text.size() + kShare, table_row);
  }
  for (const Verdict verdict : {Verdict::kIncomparable, Verdict::kSame}) {
    const auto metrics = of_verdict(comparison, verdict);
    if (metrics.empty()) continue;
    text += "\n<details><summary>" + std::to_string(metrics.size()) + " " + std::string(verdict_name(verdict)) +
            "</summary>\n\n";
    const bool reasons = verdict == Verdict::kIncomparable;
    text += reasons ? "| metric | why |\n|---|---|\n" : kTableHead;
    const auto reason_row = [](const MetricComparison& metric) {
      return "| " + cell(metric.name) + " | " + cell(metric.reason) + " |\n";
    };
    const size_t limit = std::min(text.size() + kShare, kMaxCommentBytes - 100);
    if (reasons) {
      add_rows(text, metrics, limit, reason_row);
    } else {
      add_rows(text, metrics, limit, table_row);
    }
    text += "\n</details>\n";
  }
  return text;
}

std::string compare_json(const ProfileComparison& comparison) {
  OrderedJson json = {{"exit_code", comparison.exit_code()}, {"headline", headline(comparison)}};
  json["incomparable"] = comparison.incomparable;
  json["identity_differences"] = OrderedJson::array();
  for (const IdentityDifference& difference : comparison.differences) {
    json["identity_differences"].push_back(
        {{"field", difference.field}, {"base", difference.profile_value}, {"new", difference.machine_value}});
  }
  json["notes"] = comparison.notes;
  json["machine_time_ratio"] = comparison.machine;
  json["machine"] = OrderedJson::array();
  for (const MachineReading& reading : comparison.machine_readings) {
    json["machine"].push_back({{"name", reading.name}, {"time_ratio", reading.ratio}});
  }
  json["metrics"] = OrderedJson::array();
  for (const MetricComparison& metric : comparison.metrics) {
    OrderedJson entry = {{"name", metric.name}, {"verdict", verdict_name(metric.verdict)}, {"unit", metric.unit}};
    if (!metric.reason.empty()) entry["reason"] = metric.reason;
    if (metric.base_samples > 0) entry["base"] = {{"median", metric.base}, {"samples", metric.base_samples}};
    if (metric.next_samples > 0) entry["new"] = {{"median", metric.next}, {"samples", metric.next_samples}};
    if (metric.ratio > 0) {
      entry["time_ratio"] = metric.ratio;
      entry["time_ratio_interval"] = {metric.low, metric.high};
      entry["floor"] = {
          {"stated", metric.floor.stated}, {"learnt", metric.floor.learnt}, {"machine", metric.floor.machine}};
      entry["p"] = metric.p;
    }
    json["metrics"].push_back(std::move(entry));
  }
  return json.dump(1, ' ', true, OrderedJson::error_handler_t::replace) + "\n";
}

std::string compare_junit(const ProfileComparison& comparison) {
  const bool whole = !comparison.incomparable.empty();
  const size_t failures = comparison.count(Verdict::kRegressed);
  const size_t skipped = comparison.count(Verdict::kIncomparable) + (whole ? 1 : 0);
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"ft-tune compare\" tests=\"" +
      std::to_string(comparison.metrics.size() + (whole ? 1 : 0)) + "\" failures=\"" + std::to_string(failures) +
      "\" errors=\"0\" skipped=\"" + std::to_string(skipped) + "\" time=\"0\">\n";
  const auto open = [&](const std::string& group, const std::string& name) {
    text += "    <testcase classname=\"" + xml(group) + "\" name=\"" + xml(name) + "\" time=\"0\"";
  };
  if (whole) {
    open("ft-tune", "profiles");
    text += ">\n      <skipped message=\"" + xml(comparison.incomparable.front()) + "\"/>\n    </testcase>\n";
  }
  for (const MetricComparison& metric : comparison.metrics) {
    const size_t slash = metric.name.find('/');
    open(metric.name.substr(0, slash), slash == std::string::npos ? metric.name : metric.name.substr(slash + 1));
    if (metric.verdict == Verdict::kRegressed) {
      text += ">\n      <failure message=\"" +
              xml("takes " + ratio_text(metric) + " of BASE's time (" + interval_text(metric) + "), " +
                  values_text(metric)) +
              "\" type=\"regressed\">" + xml("floor " + floor_text(metric) + ", p " + number(metric.p, "%.2g")) +
              "</failure>\n    </testcase>\n";
    } else if (metric.verdict == Verdict::kIncomparable) {
      text += ">\n      <skipped message=\"" + xml(metric.reason) + "\"/>\n    </testcase>\n";
    } else {
      text += "/>\n";
    }
  }
  return text + "  </testsuite>\n</testsuites>\n";
}

std::string compare_report(const ProfileComparison& comparison, std::string_view format) {
  if (format == "markdown") return compare_markdown(comparison);
  if (format == "json") return compare_json(comparison);
  if (format == "junit") return compare_junit(comparison);
  FT_CHECK(format == "text");
  return compare_text(comparison);
}

}  // namespace ft
