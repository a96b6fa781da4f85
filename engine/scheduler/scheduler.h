// Requests to tokens: admits requests, batches decode steps, samples, streams ids back. Knows neither HTTP nor text.
//
// Life of a request: submit -> waiting -> (a KV slot is free) prefill in chunks -> decode in the static batch of all
// running sequences -> finished (stop token, length, cancelled, failed). First come, first served. Output of a request
// does not depend on what else runs (numerics contract), so a test compares 8 together with 8 alone.
//
// Thread rule: submit() and cancel() from any thread; run_once() from the one thread that owns the executor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/sampler.h"
#include "engine/runtime/step.h"

namespace ft {

inline constexpr size_t kMaxWaitingRequests = 1024;
inline constexpr size_t kMaxStopIds = 16;

// The part of Engine the scheduler needs; tests give it a fake with a virtual model.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual int max_batch() const = 0;
  virtual int64_t max_context() const = 0;
  virtual int prefill_chunk() const = 0;
  virtual int64_t vocab() const = 0;
  virtual int open_sequence() = 0;
  virtual void close_sequence(int sequence) = 0;
  virtual std::span<const float> step(std::span<const TokenRun> runs) = 0;
  // The largest of each of that step's rows; empty: nobody has looked.
  virtual std::span<const LargestLogit> largest_logits() const { return {}; }
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kFailed };

struct GenerationRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;         // >= 1
  std::vector<int32_t> stop_ids;  // end of text; the id is counted but not emitted
  SamplingOptions sampling;
  int64_t usable_vocab = 0;
  // Called from the scheduler's thread for every emitted token; returning false stops the request (stop string found,
  // client gone).
  std::function<bool(int32_t id)> on_token;
  // Called once, last. `message` is empty unless kFailed.
  std::function<void(FinishReason reason, std::string message)> on_finish;
};

struct SchedulerStats {
  uint64_t requests_finished = 0, requests_failed = 0, requests_cancelled = 0;
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  size_t running = 0, waiting = 0;
};

class Scheduler {
 public:
  explicit Scheduler(StepExecutor& executor);
  ~Scheduler();

  // Throws Error(kRequest) when prompt + max_tokens can never fit max_context, ids are out of range, or the prompt is
  // empty; Error(kCapacity) when kMaxWaitingRequests wait. Returns the request's number.
  uint64_t submit(GenerationRequest request);
  void cancel(uint64_t request);

  // One prefill chunk or one decode step. False when there is nothing to do.
  bool run_once();
  // Blocks until there is work or stop() was called.
  void wait_for_work();
  void stop();  // running requests finish as kCancelled at the next run_once
  bool stopped() const;
  SchedulerStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
