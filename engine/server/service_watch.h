// The watch of one service: feeds the engine's steps to a DriftWatch, says what it finds, and falls back when it may.
//
// Thread rule: the thread that steps the engine. stepped() is on the token path; between_steps() reads counters, logs
// and changes the split, and is called when no step runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/runtime/drift.h"
#include "engine/runtime/engine.h"

namespace ft {

// What may take the place of the strategy between steps (Engine::change_split).
struct FallbackPlan {
  Strategy strategy = Strategy::kOffload;
  SplitTable fetch_of_misses;
  int64_t promote_bytes_per_layer = 0;
  ExpectedSteps expected;  // of the steps after the change; empty: they are not judged
};

struct DriftOptions {
  ExpectedSteps expected;  // empty: nothing is judged
  // Taken once, when the rate has fallen below the band, if offload_may_help. There is no way back but a new start,
  // because what the choice would do now is not known.
  std::optional<FallbackPlan> fallback;
  std::function<void(std::string_view text, bool warning)> say;  // null: nobody listens
  // How long the control group has stopped CPUs, summed over them, since some start; null: not known.
  std::function<double()> throttled_cpu_seconds;
};

struct DriftStats {
  DriftSummary summary;
  bool judged = false;           // there are expectations
  double throttled_seconds = 0;  // of each thread, in decode steps
  bool has_fallback = false;     // still to be taken
  std::string fell_back_from;    // strategy; empty: it did not
};

// Offload fetches every miss: it is no way out when fetching is what has become slow.
constexpr bool offload_may_help(DriftTerm moved) { return moved != DriftTerm::kFetch; }

class ServiceWatch {
 public:
  ServiceWatch(Engine& engine, DriftOptions options);

  // After a step of `runs` that took so long.
  void stepped(std::span<const TokenRun> runs, double seconds);
  void between_steps();
  DriftStats stats() const;

 private:
  DriftReading read();
  void say(std::string_view text, bool warning) const;
  void say_outside_once();
  void fall_back(const DriftEvent& event, const DriftReading& reading);

  Engine& engine_;
  DriftOptions options_;
  DriftWatch watch_;
  std::string fell_back_from_;
  bool said_outside_ = false;
  double throttled_seconds_ = 0;  // of each thread, in decode steps
  double cpu_seconds_before_ = 0, decode_seconds_before_ = 0, prefill_seconds_before_ = 0;
};

}  // namespace ft
