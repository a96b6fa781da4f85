// Experts to time, cold: blobs that together are too large for the cache, and the loop that computes them with the
// kernels that serve.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/expert_work.h"
#include "kernels/base/random.h"
#include "kernels/formats/expert_blob.h"
#include "kernels/host/host_memory.h"
#include "kernels/host/worker_pool.h"
#include "kernels/registry.h"
#include "probes/probe.h"

namespace ft {

inline constexpr int64_t kColdFactor = 8;  // of the last-level cache: what counts as cold

struct ExpertSet {
  ExpertLayout layout;
  std::vector<const std::byte*> blobs;  // in the order in which they are used: shuffled
  HostBuffer own;                       // copies or synthetic blobs; empty when the model's banks are used
  bool warm = false;                    // fits the cache, as the served model does
  bool reduced = false;
  std::vector<std::string> remarks;

  int64_t payload_bytes() const { return static_cast<int64_t>(blobs.size()) * layout.payload_bytes; }
};

// One set per format among the model's MoE layers, or one per context.expert_shapes when there are any.
//   banks >= 8x the last-level cache: the banks; banks that fit the cache: the banks, marked warm, because that is how
//   the model is served; between: copies up to 8x the cache, as far as memory and budget allow (else marked reduced).
std::vector<ExpertSet> make_expert_sets(const ProbeContext& context);

// From the series of expert_single: the share of mem_read's rate that each kernel reaches, as the median over rounds of
// the ratio within a round (a round takes all series one after the other, so a drift of the machine meets both alike).
struct ReadShare {
  std::string name;
  double ratio = 0;
  double gbps = 0, read_gbps = 0;  // medians
  size_t rounds = 0;
};
std::vector<ReadShare> read_shares(std::span<const Samples> samples);

// Computes experts as a decode step does (ExpertWork), `at_once` of them as one layer, for one token.
class ExpertRunner {
 public:
  // gate_up and matvec of one ISA for the set's format. REQUIRES both are there.
  ExpertRunner(const ExpertLayout& layout, Isa isa, int at_once, WorkerPool& pool);
  static bool has_variant(const ExpertLayout& layout, Isa isa);  // of exactly this ISA

  // Seconds for all of `blobs` together; their number is a multiple of at_once. With a part, of that kernel alone: down
  // then reads whatever the last gate_up left.
  enum class Part : uint8_t { kWhole, kGateUp, kDown };
  double run(std::span<const std::byte* const> blobs, Part part = Part::kWhole);
  // (hidden) output of the last expert of the last run.
  std::span<const float> output() const;

 private:
  ExpertLayout layout_;
  int at_once_;
  WorkerPool& pool_;
  KernelTable kernels_;
  WorkerMarks marks_;
  ExpertWork work_;
  RowBuffer<uint32_t> x_;
  RowBuffer<float> y_;
  std::vector<ExpertItem> items_;
};

}  // namespace ft
