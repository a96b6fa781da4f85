// What the parts of gpu-bench share: the machine, the options, one model at a time with its curves, and the report.
//
// Order of a run: ceilings of the machine; then geometry by geometry: load, curves, every part that wants this
// geometry. Everything is measured through the engine and the probes, as they serve.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/engine.h"
#include "kernels/cuda/device.h"
#include "kernels/host/host_memory.h"
#include "kernels/host/topology.h"
#include "probes/probe.h"
#include "tests/bench/bound.h"
#include "tests/bench/geometry_case.h"
#include "tests/bench/report.h"

namespace ft::bench {

struct BenchOptions {
  Device device = Device::kCuda;
  std::set<std::string, std::less<>> parts;
  std::vector<const GeometryCase*> geometries;
  std::vector<double> slots_percent = {10, 25, 50};
  std::vector<std::string> presets = {"q38-diverse", "q38-mixed", "q38-agentic"};
  int threads = 0;  // 0: all usable cores
  int warm_steps = 8, measured_steps = 48;
  double budget_seconds = 330;
  bool quick = false;
  std::string folder;   // for config files and checkpoints
  std::string bundled;  // a real checkpoint, for the look-ahead of its router; empty: none
};

// Bytes a second; 0: not measured.
struct Ceilings {
  double device_read = 0, device_copy = 0, link = 0, host_read = 0;
};

class Bench {
 public:
  Bench(const BenchOptions& options, Report& report, std::function<void(std::string_view)> progress);

  const BenchOptions options;
  Report& report;
  HostTopology topology;
  CpuBudget cpus;
  MemoryBudget memory;
  std::optional<cuda::DeviceFacts> gpu;
  MemoryInputs inputs;
  Ceilings ceilings;

  bool wants(std::string_view part) const { return options.parts.find(part) != options.parts.end(); }
  bool decodes_batches() const { return wants("batch") || wants("profile"); }
  int threads() const { return options.threads > 0 ? options.threads : cpus.usable_cores; }
  void progress(const std::string& text) const;
  double seconds_left() const;
  // Says so in the report and gives false when less than `seconds` are left, or when the user wants to stop.
  bool has_time(double seconds, const std::string& part, const std::string& name);
  ProbeBudget sample_budget(double seconds) const;  // shortened by --quick

  // One arena for the banks of all the geometries, touched and locked once, filled anew for each.
  struct Arena {
    std::shared_ptr<HostBuffer> memory;
    std::shared_ptr<const cuda::RegisteredMemory> registered;  // null on the host device
  };
  // As large as the largest geometry of the options that fits. Throws Error.
  const Arena& arena();

 private:
  int64_t largest_banks() const;

  std::function<void(std::string_view)> progress_;
  double start_ = 0;
  Arena arena_;
};

WeightSource made_weights(const GeometryCase& geometry, const std::string& folder);  // writes its config.json

// Traces of one preset: as many sequences as the largest batch needs, each replayed up to `replayed` tokens to find the
// cache content; the tokens after that are what the engine decodes.
struct TraceSet {
  std::vector<RoutingTrace> sequences;
  int64_t replayed = 0;

  // What Engine::set_routing takes for `batch` sequences of an engine with that max_batch: the tails one behind
  // another.
  std::shared_ptr<const RoutingTrace> tails(int batch) const;
};
TraceSet make_traces(const GeometryCase& geometry, const std::string& preset, int sequences, int64_t replayed,
                     int64_t decoded);

// One geometry in memory.
class ModelCase {
 public:
  // Banks in the arena, or, for a second model beside one that is there, in memory of their own.
  ModelCase(Bench& bench, const GeometryCase& geometry, bool own_memory = false);

  Bench& bench;
  const GeometryCase& geometry;
  LoadedModel model;
  double load_seconds = 0;

  int64_t blob_bytes() const { return model.weights->bank.slot_bytes(); }
  double payload_bytes() const { return static_cast<double>(model.weights->bank.layout(0).payload_bytes); }
  int moe_layers() const { return static_cast<int>(model.weights->geometry.moe_layers.size()); }

  // Measured once, when first asked for. `max_misses` of the largest batch decide the splits only.
  const Curves& curves();
  // Made once per preset.
  const TraceSet& traces(const std::string& preset);

  EngineConfig config(Strategy strategy, int64_t slots, int max_batch) const;
  // Throws Error where it does not fit.
  std::unique_ptr<Engine> engine(const EngineConfig& config) const;

  // Bytes that a decode step reads on the device with every expert in a slot; `experts` distinct ones a layer.
  double resident_bytes(double experts, int batch, int64_t context) const;

 private:
  std::optional<Curves> curves_;
  std::vector<std::pair<std::string, TraceSet>> traces_;
};

inline constexpr int kLargestBatch = 8;
inline constexpr int64_t kReplayedTokens = 448;
inline constexpr int64_t kShortContext = 32;  // where T_res is measured: the middle of a run

// How a strategy decodes: its split and promotions, and the cache content that the replay ends with.
struct DecodePlan {
  EngineConfig config;
  SlotTable::Content content;
  double trial_seconds = 0;  // hybrid, of a step: short runs decide how many misses are promoted, and fetched at least
};
DecodePlan plan_decode(ModelCase& one, const TraceSet& traces, Strategy strategy, int64_t slots, int batch);

// A run of `engine` from plan.content, forced to the tails of `traces`.
struct DecodeResult {
  std::vector<double> step_seconds;
  EngineCounters counters;
  double mean_seconds() const;
  double hit_rate() const;
};
DecodeResult decode(Engine& engine, const DecodePlan& plan, const TraceSet& traces, int batch, int warm, int measured);

std::vector<int32_t> some_ids(int64_t count, int64_t vocab);  // different ones, the same every time

// Seconds of a step without misses, median; the routing that is forced goes on.
double resident_seconds(Engine& engine, int batch, int64_t context, int samples);
// T_res: of an offload engine made for it, at the routing that `traces` force.
double measured_resident(ModelCase& one, const TraceSet& traces, int64_t slots, int batch);

// The cell of a run: bound and ratio.
Cell make_cell(ModelCase& one, const std::string& preset, const EngineConfig& config, int batch,
               const DecodeResult& result, double resident_measured);

// Look-ahead as the part of that name measures it: predictions of precision 0.8 and recall 0.7, two copies a layer.
void predict_ahead(TraceSet& traces);
void look_ahead(EngineConfig& config);

// --- parts; each reports by itself and skips what does not fit, with the reason ---
void run_ceilings(Bench& bench);
void run_cells(ModelCase& one);
void run_dense(ModelCase& one);
void run_attention(ModelCase& one);
void run_hybrid_gain(ModelCase& one);
void run_batch(ModelCase& one);
bool decodes_batches(const GeometryCase& geometry);  // A and B in four bits
void run_lookahead(ModelCase& one);
void run_prefill(ModelCase& one);
void run_profile(ModelCase& one);
void run_experts_on_cpu(ModelCase& one);
void run_bits(ModelCase& one);
void run_loading(Bench& bench);
void run_router_precision(Bench& bench, const std::string& model_path);

// Device side of the ceilings; a build without CUDA has none.
void measure_device_ceilings(Bench& bench);
std::shared_ptr<const cuda::RegisteredMemory> lock_memory(const HostBuffer& memory);
// Operations a second of the vendor's library on a layer's expert products, bf16, the tokens spread evenly; empty where
// the library is not there. Zeros are multiplied: the clock is that of an easy load, so the rate is not underestimated.
std::optional<double> vendor_expert_rate(const ExpertGeometry& expert, int64_t tokens);
Curve fetch_curve_of_link(ModelCase& one);  // empty where the engine's own layers must be timed instead

}  // namespace ft::bench
