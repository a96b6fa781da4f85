#include "tests/bench/options.h"

#include <algorithm>
#include <charconv>

#include "engine/experts/routing_trace.h"
#include "engine/runtime/device.h"
#include "kernels/base/error.h"

namespace ft::bench {
namespace {

constexpr std::string_view kParts[] = {"ceilings",  "cells",   "dense", "attention", "hybrid", "batch",
                                       "lookahead", "prefill", "cpu",   "profile",   "bits",   "loading"};

const std::string kOnlyWhenAsked = "profile";

constexpr OptionSpec kOptions[] = {
    {.name = "--part",
     .kind = OptionKind::kTexts,
     .value_name = "NAME,..",
     .help =
         "What to measure; without it everything but profile, which traces single kernels and slows what it traces. "
         "Ceilings and curves are measured whenever a part needs them."},
    {.name = "--geometry",
     .kind = OptionKind::kTexts,
     .value_name = "NAME,..",
     .help = "Models; without it A-bf16, A-nvfp4, B-nvfp4 and C-ds_fp4."},
    {.name = "--slots",
     .kind = OptionKind::kIntegers,
     .value_name = "PERCENT,..",
     .default_text = "10,25,50",
     .low = 1,
     .high = 100,
     .help = "Slots of the cells, in per cent of all experts."},
    {.name = "--preset",
     .kind = OptionKind::kTexts,
     .value_name = "NAME,..",
     .help = "Routing presets of the cells; without it q38-diverse, q38-mixed and q38-agentic."},
    {.name = "--device",
     .kind = OptionKind::kChoice,
     .value_name = "DEVICE",
     .default_text = "auto",
     .choices = "auto|cuda|host",
     .help = "Where to decode. On the host device the figures say nothing about a GPU: it is for tests."},
    {.name = "--threads",
     .kind = OptionKind::kInteger,
     .value_name = "N",
     .low = 1,
     .high = kMaxThreads,
     .help = "Threads of the CPU's experts; without it all usable cores."},
    {.name = "--steps",
     .kind = OptionKind::kInteger,
     .value_name = "N",
     .default_text = "48",
     .low = 2,
     .high = 1000,
     .help = "Measured steps of a cell, after 8 that are discarded."},
    {.name = "--budget-seconds",
     .kind = OptionKind::kNumber,
     .value_name = "SECONDS",
     .default_text = "330",
     .low = 1,
     .high = kMaxBudgetSeconds,
     .help = "Time for all of it; what does not fit any more is listed as not run."},
    {.name = "--quick", .kind = OptionKind::kFlag, .help = "Fewer samples and 16 steps a cell."},
    {.name = "--bundled",
     .kind = OptionKind::kText,
     .value_name = "DIR",
     .help = "A small real checkpoint: how well its router guesses one layer ahead. scripts/gpu-bench names the "
             "bundled one."},
    {.name = "--json",
     .kind = OptionKind::kText,
     .value_name = "FILE",
     .help = "Writes everything, raw samples included, to a file."},
};

[[noreturn]] void refuse(const char* option, const std::string& value, std::string allowed) {
  throw Error(ErrorKind::kUsage,
              {.what = "option refused", .value = value, .allowed = std::move(allowed), .action = {}, .path = option});
}

}  // namespace

constinit const ProgramSpec kBenchProgram = {
    .name = "gpu-bench",
    .summary = "Decodes made-up models through the engine and compares every run with the bound of this machine.",
    .examples =
        "  gpu-bench --json bench.json\n"
        "  gpu-bench --part cells --geometry B-nvfp4 --slots 10,25 --preset q38-mixed\n"
        "  gpu-bench --part profile --geometry A-nvfp4\n"
        "  gpu-bench --device host --geometry tiny-nvfp4 --quick\n",
    .options = kOptions,
};

std::string part_names() {
  std::string names;
  for (const std::string_view part : kParts) names += (names.empty() ? "" : ", ") + std::string(part);
  return names;
}

BenchOptions bench_options(const ParsedOptions& options) {
  constexpr int kQuickSteps = 16;
  BenchOptions result;
  for (const std::string& part : options.texts("--part")) {
    if (std::find(std::begin(kParts), std::end(kParts), part) == std::end(kParts)) refuse("--part", part, part_names());
    result.parts.insert(part);
  }
  if (result.parts.empty()) {
    result.parts.insert(std::begin(kParts), std::end(kParts));
    result.parts.erase(kOnlyWhenAsked);
  }
  std::vector<std::string> geometries = options.texts("--geometry");
  if (geometries.empty()) geometries = {"A-bf16", "A-nvfp4", "B-nvfp4", "C-ds_fp4"};
  for (const std::string& name : geometries) {
    const GeometryCase* found = find_geometry_case(name);
    if (found == nullptr) refuse("--geometry", name, geometry_case_names());
    result.geometries.push_back(found);
  }
  const std::vector<int64_t> slots = options.integers("--slots");
  result.slots_percent.assign(slots.begin(), slots.end());
  if (const std::vector<std::string> presets = options.texts("--preset"); !presets.empty()) result.presets = presets;
  for (const std::string& preset : result.presets) {
    if (find_routing_preset(preset) == nullptr) refuse("--preset", preset, routing_preset_names());
  }
  result.device = choose_device(options.text("--device")).device;
  result.threads = static_cast<int>(options.optional_integer("--threads").value_or(0));
  result.quick = options.flag("--quick");
  result.measured_steps = static_cast<int>(options.integer("--steps"));
  if (result.quick && !options.has("--steps")) result.measured_steps = kQuickSteps;
  result.bundled = options.optional_text("--bundled").value_or("");
  result.budget_seconds = options.number("--budget-seconds");
  return result;
}

}  // namespace ft::bench
