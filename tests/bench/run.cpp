#include "tests/bench/run.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/host/isa.h"
#include "profiles/build_info.h"

namespace ft::bench {
namespace {

struct Part {
  std::string_view name;
  void (*run)(ModelCase&);
  bool (*wants)(const GeometryCase&);
};

bool starts(const GeometryCase& geometry, std::string_view letter) {
  return geometry.tiny || geometry.name.starts_with(letter);
}
bool is_four_bits(const GeometryCase& geometry) { return geometry.format != FormatId::kBf16; }

// In the order in which they run. A is short of layers only beside llama.cpp.
constexpr Part kParts[] = {
    {"dense", run_dense, [](const GeometryCase& g) { return starts(g, "A"); }},
    {"attention", run_attention, [](const GeometryCase& g) { return starts(g, "A") && is_four_bits(g); }},
    {"cells", run_cells, [](const GeometryCase&) { return true; }},
    {"hybrid", run_hybrid_gain, [](const GeometryCase& g) { return starts(g, "B"); }},
    {"lookahead", run_lookahead, [](const GeometryCase& g) { return starts(g, "B"); }},
    {"batch", run_batch, decodes_batches},
    {"cpu", run_experts_on_cpu, [](const GeometryCase& g) { return is_four_bits(g) && !g.name.starts_with("B"); }},
    {"prefill", run_prefill, [](const GeometryCase& g) { return starts(g, "A") && is_four_bits(g); }},
    {"profile", run_profile, is_four_bits},
    {"bits", run_bits, [](const GeometryCase& g) { return is_four_bits(g); }},
};

OrderedJson facts_of(const Bench& bench) {
  OrderedJson facts = {{"build", build_text()},
                       {"device", device_name(bench.options.device)},
                       {"cpu", bench.topology.cpu_model + ", " + std::string(isa_name(active_isa())) + ", " +
                                   std::to_string(bench.threads()) + " threads"},
                       {"host memory", std::to_string(bench.memory.available_bytes / 1'000'000'000) + " GB available"}};
  if (bench.gpu) {
    facts["gpu"] = bench.gpu->name + ", driver " + bench.gpu->driver + ", " +
                   std::to_string(bench.gpu->free_bytes / 1'000'000'000) + " GB free";
  }
  facts["steps"] = std::to_string(bench.options.warm_steps) + " discarded, " +
                   std::to_string(bench.options.measured_steps) + " measured";
  return facts;
}

void run_part(const Part& part, ModelCase& model, Report& report) {
  try {
    part.run(model);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInterrupted) throw;
    report.fail(std::string(part.name) + " of " + std::string(model.geometry.name) + ": " + error.what());
  }
}

void run_geometry(Bench& bench, const GeometryCase& geometry) {
  std::vector<const Part*> parts;
  for (const Part& part : kParts) {
    if (bench.wants(part.name) && part.wants(geometry)) parts.push_back(&part);
  }
  const std::string name(geometry.name);
  if (parts.empty() || !bench.has_time(2, "load", name)) return;
  bench.progress("loading " + name);
  std::optional<ModelCase> model;
  try {
    model.emplace(bench, geometry);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInterrupted) throw;
    return bench.report.not_run("load", name, error.what());
  }
  const double bytes = static_cast<double>(model->model.weights->formats.expert_bytes_total);
  bench.report.heading(name);
  bench.report.info("load", name + " made and ready", model->load_seconds, "s",
                    std::to_string(static_cast<int>(bytes / 1e9)) + " GB of experts, " +
                        std::to_string(bytes / model->load_seconds / 1e9).substr(0, 4) + " GB/s");
  for (const Part* part : parts) run_part(*part, *model, bench.report);
}

}  // namespace

void run_all(const BenchOptions& options, Report& report, const std::function<void(std::string_view)>& progress) {
  Bench bench(options, report, progress);
  report.facts(facts_of(bench));
  run_ceilings(bench);
  if (bench.wants("loading")) run_loading(bench);  // before the arena takes the page cache's memory
  if (bench.wants("lookahead") && !options.bundled.empty()) run_router_precision(bench, options.bundled);
  for (const GeometryCase* geometry : options.geometries) run_geometry(bench, *geometry);
}

}  // namespace ft::bench
