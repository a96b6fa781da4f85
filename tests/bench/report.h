// What gpu-bench prints and writes: lines as they come on stdout, one per question, and a JSON file with raw samples
// beside them (schema: tests/bench/gpu_bench.schema.json).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/json.h"
#include "probes/probe.h"

namespace ft::bench {

inline constexpr std::string_view kReportVersion = "1.1.0";

// A run that is faster than kLeastRatio of its bound proves the bound wrong, not the run good: the curves that it is
// made from were measured while the machine was busier.
inline constexpr double kLeastRatio = 0.95;
enum class Verdict : uint8_t { kMet, kMissed, kDoubtful, kNotRun, kNoGoal };
std::string_view verdict_name(Verdict verdict);  // "met", "missed", "doubtful", "not run", "no goal"

// One question with its answer. A goal is a bound on `measured`, from above or from below.
struct Line {
  std::string part, name;
  double measured = 0;
  std::string unit;  // "x" for ratios
  double goal = 0;
  bool at_most = true;
  Verdict verdict = Verdict::kNoGoal;
  std::string note;  // what it was computed from; of a line that was not run the reason
};

// One decode run against its bound.
struct Cell {
  std::string geometry, preset, strategy;
  double slots_percent = 0;
  int batch = 1;
  double hit_rate = 0, misses_per_layer = 0;
  double tokens_per_second = 0, step_seconds = 0;
  double resident_seconds = 0;           // as counted in the bound
  double resident_measured_seconds = 0;  // as measured
  double bound_seconds = 0, smooth_bound_seconds = 0;
  std::string note;
  std::vector<double> samples_seconds;  // every measured step

  double ratio() const { return step_seconds / bound_seconds; }
};

class Report {
 public:
  // `text`: where lines go as they come; empty function: nowhere.
  explicit Report(std::function<void(std::string_view)> text) : text_(std::move(text)) {}

  void facts(OrderedJson facts);  // of the machine and the run; printed as given by `lines`
  void heading(std::string_view text);
  void goal(Line line);  // sets line.verdict from measured and goal
  void info(std::string part, std::string name, double value, std::string unit, std::string note = {});
  void not_run(std::string part, std::string name, std::string reason);
  // A run against its bound: a row of the table and a goal of at most `goal` times the bound.
  void cell(const std::string& part, Cell cell, double goal);
  void samples(const std::string& part, std::vector<Samples> samples);
  void samples(const std::string& part, Samples samples);

  int count(Verdict verdict) const;
  bool failed() const { return failed_; }
  void fail(const std::string& what);  // something that must not happen: the exit code
  // "N goals met, M missed, D doubtful, K not run", after the list of what was missed or is doubtful.
  void summary();
  std::string json() const;

 private:
  void print(const std::string& text) const {
    if (text_) text_(text);
  }

  std::function<void(std::string_view)> text_;
  std::vector<Line> lines_;
  std::vector<std::pair<std::string, Cell>> cells_;
  std::vector<std::pair<std::string, Samples>> samples_;
  std::vector<std::string> failures_;
  std::string facts_text_ = "{}";
  bool failed_ = false;
  bool cell_header_ = false;
};

}  // namespace ft::bench
