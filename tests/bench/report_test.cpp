// Checked against: the schema of the JSON file (tests/bench/gpu_bench.schema.json), sums counted by hand, and a whole
// run of the smallest model on the host device, whose logits must be the same bits in every variant.
#include "tests/bench/report.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "profiles/schema_validation.h"
#include "tests/bench/geometry_case.h"
#include "tests/bench/run.h"

namespace ft::bench {
namespace {

void check_schema(const Report& report) {
  const Json schema = read_json_file(std::string(std::getenv("FT_TEST_DATA")) + "/../bench/gpu_bench.schema.json");
  const std::optional<Violation> violation = find_violation(Json::parse(report.json()), schema);
  if (violation) FAIL(violation->path << ": " << violation->what << " " << violation->value);
}

}  // namespace

TEST_CASE("a goal is met at its bound and missed beyond it, from above and from below") {
  Report report({});
  report.goal({"p", "at most", 1.15, "x", 1.15, true, {}, {}});
  report.goal({"p", "above", 1.1500001, "x", 1.15, true, {}, {}});
  report.goal({"p", "at least", 0.8, "x", 0.8, false, {}, {}});
  report.goal({"p", "below", 0.7999, "x", 0.8, false, {}, {}});
  report.info("p", "a figure", 3, "GB/s");
  report.not_run("p", "nothing", "no device");
  CHECK(report.count(Verdict::kMet) == 2);
  CHECK(report.count(Verdict::kMissed) == 2);
  CHECK(report.count(Verdict::kNotRun) == 1);
  CHECK(report.count(Verdict::kNoGoal) == 1);
  CHECK(!report.failed());
  report.fail("bits");
  CHECK(report.failed());
  check_schema(report);
}

TEST_CASE("a cell is one row of the table and one goal; the summary counts and lists what was missed") {
  std::vector<std::string> lines;
  Report report([&](std::string_view line) { lines.emplace_back(line); });
  Cell cell;
  cell.geometry = "G", cell.preset = "p", cell.strategy = "offload";
  cell.slots_percent = 25, cell.hit_rate = 0.5, cell.misses_per_layer = 4;
  cell.step_seconds = 0.012, cell.bound_seconds = 0.010, cell.smooth_bound_seconds = 0.009;
  cell.tokens_per_second = 83.3, cell.resident_seconds = 0.002, cell.resident_measured_seconds = 0.003;
  cell.samples_seconds = {0.012, 0.012};
  report.cell("cells", cell, 1.15);
  cell.preset = "q", cell.step_seconds = 0.011;
  report.cell("cells", cell, 1.15);
  REQUIRE(lines.size() == 3);  // with one header
  CHECK(lines[1].find("1.200 MISS") != std::string::npos);
  CHECK(lines[1].find("2.000*") != std::string::npos);  // T_res at its cap
  CHECK(lines[2].find("1.100 pass") != std::string::npos);
  lines.clear();
  report.summary();
  CHECK(lines.back() == "1 goals met, 1 missed, 0 doubtful, 0 not run");
  CHECK(lines[lines.size() - 2].find("G 25% p offload") != std::string::npos);
  check_schema(report);
}

TEST_CASE("a run faster than its bound is no success: the bound is in doubt") {
  std::vector<std::string> lines;
  Report report([&](std::string_view line) { lines.emplace_back(line); });
  Cell cell;
  cell.strategy = "hybrid";
  cell.bound_seconds = 1;
  for (const double seconds : {kLeastRatio, kLeastRatio - 1e-6, 1.15, 1.15 + 1e-6}) {
    cell.step_seconds = seconds;
    report.cell("cells", cell, 1.15);
  }
  CHECK(report.count(Verdict::kMet) == 2);
  CHECK(report.count(Verdict::kDoubtful) == 1);
  CHECK(report.count(Verdict::kMissed) == 1);
  CHECK(lines[2].find("DOUBTFUL") != std::string::npos);
  CHECK(lines[2].find("busier machine") != std::string::npos);
  check_schema(report);
}

TEST_CASE("slots are the nearest to the share; every geometry's banks are within the arena") {
  CHECK(slots_of(*find_geometry_case("A-nvfp4"), 25) == 1536);
  CHECK(slots_of(*find_geometry_case("B-nvfp4"), 15) == 3686);
  CHECK(find_geometry_case("D") == nullptr);
  for (const GeometryCase& one : geometry_cases()) {
    CAPTURE(one.name);
    const double bytes_per_weight = one.format == FormatId::kBf16    ? 2
                                    : one.format == FormatId::kNvfp4 ? 0.5625
                                                                     : 0.53125;
    const double bytes = 3.0 * static_cast<double>(one.hidden * one.intermediate) * one.experts * one.layers;
    CHECK(bytes * bytes_per_weight < static_cast<double>(kMaxBankBytes));
  }
}

TEST_CASE("a whole run on the host device: every part says something, logits are the same, the file fits its schema") {
  BenchOptions options;
  options.device = Device::kHost;
  options.geometries = {find_geometry_case("tiny-nvfp4")};
  options.slots_percent = {25};
  options.presets = {"q38-mixed"};
  options.threads = 1;
  options.warm_steps = 2;
  options.measured_steps = 6;
  options.quick = true;
  options.budget_seconds = 120;
  options.parts = {"ceilings", "dense", "cells", "hybrid", "batch", "bits", "cpu", "loading", "lookahead"};
  options.bundled = std::string(std::getenv("FT_TEST_DATA")) + "/tiny-moe";
  options.folder = std::filesystem::temp_directory_path() / ("gpu_bench_test_" + std::to_string(getpid()));
  Report report({});
  run_all(options, report, {});
  std::filesystem::remove_all(options.folder);
  CHECK(!report.failed());
  check_schema(report);
  const Json json = Json::parse(report.json());
  std::map<std::string, int> lines;
  for (const Json& line : json["lines"]) ++lines[line["part"]];
  for (const char* part :
       {"ceilings", "load", "dense", "curves", "cells", "hybrid", "batch", "bits", "cpu", "loading", "lookahead"}) {
    CAPTURE(part);
    CHECK(lines[part] > 0);
  }
  REQUIRE(json["cells"].size() == 8);  // offload and hybrid at batch 1, and at 2, 4 and 8
  for (const Json& cell : json["cells"]) {
    CAPTURE(cell.dump());
    CHECK(cell["samples_seconds"].size() == 6);
    double sum = 0;
    for (const double seconds : cell["samples_seconds"]) sum += seconds;
    CHECK(cell["step_seconds"].get<double>() == doctest::Approx(sum / 6));
    CHECK(cell["bound_seconds"] >= cell["resident_seconds"]);
    CHECK(cell["hit_rate"] >= 0);
    CHECK(cell["hit_rate"] <= 1);
    // Every expert is a hit or a miss.
    if (cell["batch"] == 1) {
      CHECK(cell["misses_per_layer"].get<double>() == doctest::Approx(4 * (1 - cell["hit_rate"].get<double>())));
    }
  }
}

TEST_CASE("what the budget does not hold is listed, not measured") {
  BenchOptions options;
  options.device = Device::kHost;
  options.geometries = {find_geometry_case("tiny-nvfp4")};
  options.parts = {"cells"};
  options.budget_seconds = 0;
  options.quick = true;
  options.threads = 1;
  options.folder = std::filesystem::temp_directory_path().string();
  Report report({});
  run_all(options, report, {});
  CHECK(report.count(Verdict::kNotRun) > 0);
  CHECK(report.count(Verdict::kMet) + report.count(Verdict::kMissed) == 0);
}

}  // namespace ft::bench
