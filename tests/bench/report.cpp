#include "tests/bench/report.h"

#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace ft::bench {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(buffer, sizeof buffer, pattern, arguments);
  va_end(arguments);
  return buffer;
}

std::string line_text(const Line& line) {
  std::string text = format("%-10s %-52s ", line.part.c_str(), line.name.c_str());
  if (line.verdict == Verdict::kNotRun) return text + "not run: " + line.note;
  text += format("%9.3f %-6s", line.measured, line.unit.c_str());
  if (line.verdict != Verdict::kNoGoal) {
    text += format(" goal %s %-6.3g %-6s", line.at_most ? "<=" : ">=", line.goal,
                   std::string(verdict_name(line.verdict)).c_str());
  }
  return line.note.empty() ? text : text + "  " + line.note;
}

OrderedJson to_json(const Line& line) {
  OrderedJson json = {{"part", line.part}, {"name", line.name}, {"verdict", verdict_name(line.verdict)}};
  if (line.verdict != Verdict::kNotRun) {
    json["measured"] = line.measured;
    json["unit"] = line.unit;
  }
  if (line.verdict != Verdict::kNotRun && line.verdict != Verdict::kNoGoal) {
    json["goal"] = line.goal;
    json["goal_is"] = line.at_most ? "at most" : "at least";
  }
  if (!line.note.empty()) json["note"] = line.note;
  return json;
}

OrderedJson to_json(const std::string& part, const Cell& cell) {
  return {{"part", part},
          {"geometry", cell.geometry},
          {"slots_percent", cell.slots_percent},
          {"preset", cell.preset},
          {"strategy", cell.strategy},
          {"batch", cell.batch},
          {"hit_rate", cell.hit_rate},
          {"misses_per_layer", cell.misses_per_layer},
          {"tokens_per_second", cell.tokens_per_second},
          {"step_seconds", cell.step_seconds},
          {"resident_seconds", cell.resident_seconds},
          {"resident_measured_seconds", cell.resident_measured_seconds},
          {"bound_seconds", cell.bound_seconds},
          {"smooth_bound_seconds", cell.smooth_bound_seconds},
          {"ratio", cell.ratio()},
          {"note", cell.note},
          {"samples_seconds", cell.samples_seconds}};
}

OrderedJson to_json(const std::string& part, const Samples& samples) {
  return {{"part", part},
          {"name", samples.name},
          {"unit", samples.unit},
          {"at", samples.at},
          {"discarded", samples.discarded},
          {"stop_reason", samples.stop_reason},
          {"reduced", samples.reduced},
          {"remarks", samples.remarks},
          {"values", samples.values}};
}

std::string cell_name(const Cell& cell) {
  std::string name = cell.geometry + format(" %.3g%% ", cell.slots_percent) + cell.preset + " " + cell.strategy;
  return cell.batch == 1 ? name : name + format(" batch %d", cell.batch);
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kMet:
      return "met";
    case Verdict::kMissed:
      return "missed";
    case Verdict::kDoubtful:
      return "doubtful";
    case Verdict::kNotRun:
      return "not run";
    case Verdict::kNoGoal:
      break;
  }
  return "no goal";
}

void Report::facts(OrderedJson facts) {
  for (const auto& [name, value] : facts.items()) {
    print(format("%-16s ", name.c_str()) + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  facts_text_ = facts.dump();
}

void Report::heading(std::string_view text) {
  print("");
  print(std::string(text));
  cell_header_ = false;
}

void Report::goal(Line line) {
  const bool met = line.at_most ? line.measured <= line.goal : line.measured >= line.goal;
  line.verdict = met ? Verdict::kMet : Verdict::kMissed;
  print(line_text(line));
  lines_.push_back(std::move(line));
}

void Report::info(std::string part, std::string name, double value, std::string unit, std::string note) {
  Line line{std::move(part), std::move(name), value, std::move(unit), 0, true, Verdict::kNoGoal, std::move(note)};
  print(line_text(line));
  lines_.push_back(std::move(line));
}

void Report::not_run(std::string part, std::string name, std::string reason) {
  Line line{std::move(part), std::move(name), 0, {}, 0, true, Verdict::kNotRun, std::move(reason)};
  print(line_text(line));
  lines_.push_back(std::move(line));
}

void Report::cell(const std::string& part, Cell cell, double goal) {
  if (!cell_header_) {
    print(format("%-44s %6s %7s %9s %8s %8s %8s %8s %6s", "cell", "hits", "m/layer", "tok/s", "ms", "T_res", "bound",
                 "smooth", "ratio"));
    cell_header_ = true;
  }
  Line line{part, cell_name(cell), cell.ratio(), "x", goal, true, Verdict::kNoGoal, cell.note};
  line.verdict = line.measured > goal          ? Verdict::kMissed
                 : line.measured < kLeastRatio ? Verdict::kDoubtful
                                               : Verdict::kMet;
  if (line.verdict == Verdict::kDoubtful) {
    cell.note +=
        std::string(cell.note.empty() ? "" : ", ") + "below its bound: the curves were measured on a busier machine";
    line.note = cell.note;
  }
  const bool capped = cell.resident_measured_seconds > cell.resident_seconds;
  print(format("%-44s %5.1f%% %7.2f %9.1f %8.3f %7.3f%c %8.3f %8.3f %6.3f %s", line.name.c_str(), 100 * cell.hit_rate,
               cell.misses_per_layer, cell.tokens_per_second, 1e3 * cell.step_seconds, 1e3 * cell.resident_seconds,
               capped ? '*' : ' ', 1e3 * cell.bound_seconds, 1e3 * cell.smooth_bound_seconds, cell.ratio(),
               line.verdict == Verdict::kMet      ? "pass"
               : line.verdict == Verdict::kMissed ? "MISS"
                                                  : "DOUBTFUL") +
        (cell.note.empty() ? "" : "  " + cell.note));
  lines_.push_back(std::move(line));
  cells_.emplace_back(part, std::move(cell));
}

void Report::samples(const std::string& part, std::vector<Samples> samples) {
  for (Samples& one : samples) samples_.emplace_back(part, std::move(one));
}

void Report::samples(const std::string& part, Samples samples) { samples_.emplace_back(part, std::move(samples)); }

int Report::count(Verdict verdict) const {
  int found = 0;
  for (const Line& line : lines_) found += line.verdict == verdict ? 1 : 0;
  return found;
}

void Report::fail(const std::string& what) {
  failed_ = true;
  failures_.push_back(what);
  print("FAILED: " + what);
}

void Report::summary() {
  heading("missed or doubtful:");
  for (const Line& line : lines_) {
    if (line.verdict == Verdict::kMissed || line.verdict == Verdict::kDoubtful) print("  " + line_text(line));
  }
  for (const std::string& failure : failures_) print("failed: " + failure);
  print(format("%d goals met, %d missed, %d doubtful, %d not run", count(Verdict::kMet), count(Verdict::kMissed),
               count(Verdict::kDoubtful), count(Verdict::kNotRun)));
}

std::string Report::json() const {
  OrderedJson json = {{"version", kReportVersion}, {"facts", OrderedJson::parse(facts_text_)}};
  json["lines"] = OrderedJson::array();
  for (const Line& line : lines_) json["lines"].push_back(to_json(line));
  json["cells"] = OrderedJson::array();
  for (const auto& [part, cell] : cells_) json["cells"].push_back(to_json(part, cell));
  json["samples"] = OrderedJson::array();
  for (const auto& [part, samples] : samples_) json["samples"].push_back(to_json(part, samples));
  json["failures"] = failures_;
  json["met"] = count(Verdict::kMet);
  json["missed"] = count(Verdict::kMissed);
  json["doubtful"] = count(Verdict::kDoubtful);
  json["not_run"] = count(Verdict::kNotRun);
  return json.dump(1) + "\n";
}

}  // namespace ft::bench
