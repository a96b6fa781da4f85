// A probe: one object that says what it measures, whether it applies here, runs, and verifies the data it moved. Each
// times the code that serves (kernels/, engine/runtime), never a second implementation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/engine.h"
#include "kernels/cuda/device.h"
#include "kernels/host/topology.h"
#include "kernels/registry.h"

namespace ft {

// Raw samples of one point. `at` is the point's coordinates.
struct Samples {
  std::string name;
  std::string unit;  // "GB/s", "us", "tok/s"
  std::vector<double> values;
  uint64_t discarded = 0;
  std::string stop_reason;  // "samples", "time", "interrupted"
  bool reduced = false;     // shortened to fit the budget
  std::map<std::string, double> at;
  std::vector<std::string> remarks;
};

// Bounds of one probe: it stops at either.
struct ProbeBudget {
  double seconds = 0;
  int min_samples = 3;
  int max_samples = 31;
};

// An expert that `expert_single` makes up, when there is no model or another geometry is asked for.
struct ExpertShape {
  FormatId format{};
  int64_t hidden = 0, intermediate = 0;
};

// Where a run of `decode` goes on from: the cache content that a replay had before some token of the trace, and that
// token, one for each sequence of the batch.
struct DecodeStart {
  SlotTable::Content content;
  std::vector<int64_t> trace_tokens;
};
// What `decode` runs: a candidate of the tuner.
struct DecodeCandidate {
  std::string name;
  EngineConfig config;
  std::vector<DecodeStart> starts;  // per batch of the context; empty: as engine and text are
};

struct ProbeContext {
  const HostTopology* topology = nullptr;
  const CpuBudget* cpus = nullptr;
  const MemoryBudget* memory = nullptr;
  LoadedModel model;                     // null members when a probe runs without a model
  EngineConfig base;                     // device, batch, context: what candidates share
  std::optional<cuda::DeviceFacts> gpu;  // on cuda
  MemoryInputs memory_inputs;
  std::shared_ptr<const RoutingTrace> trace;  // real or generated expert choices
  std::vector<int> thread_counts;             // to sweep
  ProbeBudget budget;
  bool yardstick = false;             // every group of series gets yardsticks (MeasureOptions::yardstick)
  std::function<bool()> interrupted;  // asked between samples
  std::function<void(std::string_view part)> begins;  // said as a part of a probe begins: "8 threads"
  void say(std::string_view part) const {
    if (begins) begins(part);
  }

  std::vector<ExpertShape> expert_shapes;   // `expert_single`: instead of the model's experts
  std::vector<int64_t> contexts;            // `dense` and `decode`: positions, each below base.max_context
  std::vector<int> batches;                 // likewise, each at most base.max_batch
  std::vector<DecodeCandidate> candidates;  // `decode`
  std::vector<int32_t> text_ids;            // tokens of real text, for `decode`: prompt and what follows it
  std::vector<int64_t> text_of_trace;       // of a recorded trace: every token's index in text_ids
  double bank_gb = 0;                       // `bank`: 10^9 bytes; 0: as much as is reasonable
};

struct Applies {
  bool yes = true;
  std::string reason;
};

class Probe {
 public:
  virtual ~Probe() = default;
  virtual std::string_view id() const = 0;
  virtual std::string_view measures() const = 0;  // one sentence
  virtual std::string_view unit() const = 0;
  virtual Applies applies(const ProbeContext& context) const = 0;
  virtual std::vector<Samples> run(ProbeContext& context) = 0;
  // More rounds of some series of run(), which the tuner takes after it and after every later probe: a machine that
  // others slow down for seconds does not have all of their rounds then. Short; none by default.
  virtual std::vector<Samples> more(ProbeContext&) { return {}; }
  // Checks what run() moved or computed; throws Error naming the mismatch.
  virtual void verify(ProbeContext& context) = 0;
};

// All probes, in the order the tuner runs them. Each is made in its own file.
std::vector<std::unique_ptr<Probe>> make_probes();

std::unique_ptr<Probe> make_stream_probe();
std::unique_ptr<Probe> make_pcie_linear_probe();
std::unique_ptr<Probe> make_pcie_gather_probe();
std::unique_ptr<Probe> make_bank_probe();
std::unique_ptr<Probe> make_handshake_probe();
std::unique_ptr<Probe> make_allreduce_probe();
std::unique_ptr<Probe> make_expert_single_probe();
std::unique_ptr<Probe> make_layer_sweep_probe();
std::unique_ptr<Probe> make_dense_probe();
std::unique_ptr<Probe> make_host_rows_probe();
std::unique_ptr<Probe> make_overlap_probe();
std::unique_ptr<Probe> make_decode_probe();

}  // namespace ft
