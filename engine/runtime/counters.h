// What the engine did, as counts since start: read by stats, probes and the tuner. Plain data, copied under no lock by
// the thread that steps.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/host/worker_pool.h"

namespace ft {

inline constexpr int kMissHistogramSize = 257;

struct EngineCounters {
  uint64_t decode_steps = 0;
  uint64_t decode_tokens = 0;  // sequences summed over decode steps
  uint64_t prefill_tokens = 0;
  double decode_seconds = 0;
  double prefill_seconds = 0;
  // Of the decode steps those with one sequence: what a prediction for batch 1 is compared with.
  uint64_t single_steps = 0;
  double single_seconds = 0;
  // Experts activated in decode steps (distinct per layer and step), and where each ran.
  uint64_t expert_hits = 0;
  uint64_t expert_fetched = 0;
  uint64_t expert_cpu = 0;
  uint64_t expert_promoted = 0;
  // Look-ahead: experts predicted for a next layer (distinct per layer and step), those of them that were in no slot
  // and were copied ahead, of these the ones that were used before they lost their slot, and of those the ones whose
  // copy was still under way when their layer began (host device; 0 on cuda, where a layer waits for all of them at
  // once).
  uint64_t expert_predicted = 0;
  uint64_t expert_prefetched = 0;
  uint64_t prefetch_useful = 0;
  uint64_t prefetch_late = 0;
  uint64_t bytes_fetched = 0;  // over the link for decode steps, promotions and prefetches included; not prefill
  uint64_t bytes_cpu = 0;      // read from banks by the CPU arm
  // misses_histogram[m]: layers of decode steps that had m misses (last bucket: that many or more).
  std::array<uint64_t, kMissHistogramSize> misses_histogram{};
  double link_wait_seconds = 0;  // compute stood still for the link, in decode and prefill
  // Of decode steps alone: what the watch of the service tells causes by (drift.h).
  double decode_link_wait_seconds = 0;  // the same; 0 on cuda, where kernels wait for bytes among other work
  double cpu_wait_seconds = 0;   // host: the stepping thread stood still for its pool; cuda: the device for the CPU
  double attention_seconds = 0;  // 0 on cuda, where a step is one launch
  std::string logits_hash;       // of the last step's logits rows
};

// What was really engaged, to be compared with what was asked.
struct EngagedRecord {
  std::string strategy;
  std::string isa;
  std::string mechanism;   // how blobs reach slots: "copy thread"; "sm gather", with what slows it; "copy engine"
  int threads_worked = 0;  // pool threads that took part in a task
  int64_t slots = 0;
  double fetched_share = 0;  // fetched / misses
  std::string cache_policy;  // "lru", "lrfu"
  std::string look_ahead;    // "off", "router"
};

}  // namespace ft
