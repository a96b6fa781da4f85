// Text in, text out, over one engine: tokenizes, submits to the scheduler, gives back text as it becomes whole. Knows
// the OpenAI request but no HTTP; ft-engine --prompt uses it directly.
//
// Thread rule: one thread of the service steps the engine; start(), stats() and the Generation objects may be used from
// any thread (one thread per Generation).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "engine/scheduler/scheduler.h"
#include "engine/server/openai.h"
#include "engine/server/service_watch.h"
#include "engine/text/text_model.h"

namespace ft {

// What the profile said about this engine, shown in stats beside what is achieved.
struct ServedProfile {
  std::string model_name;  // "tiny-moe"
  std::string strategy;
  std::string runner_up;
  double margin = 0;
  double predicted_tok_s = 0;  // one sequence, the shortest context that was tuned
  double ceiling_gbps = 0;     // what decode_gbps is a share of: the profile's serve.ceiling_gbps
  bool on_gpu = false;         // decode_gbps counts what crossed the link or was read by the CPU, not device memory
  bool synthetic_weights = false;
  std::string routing_preset;  // synthetic only
};

struct ServiceStats {
  double uptime_seconds = 0;
  SchedulerStats scheduler;
  EngineCounters engine;  // as of the last snapshot, at most a fraction of a second old while work is done
  EngagedRecord engaged;
  // Derived from `engine`; 0 while there is nothing to divide.
  double decode_tok_s = 0;  // per second of decode steps, all sequences
  double decode_ms_per_step = 0;
  double decode_gbps = 0;  // weights read by decode steps
  double ceiling_share = 0;
  double hit_rate = 0;       // of activated experts
  double fetched_share = 0;  // of misses
  double cpu_share = 0;
  double single_tok_s = 0;             // of the decode steps with one sequence
  double achieved_over_predicted = 0;  // of them: the prediction is for one sequence
  DriftStats drift;
};

// A request's prompt as ids, and the length of its answer: what was asked for, or what the API reference says. Throws
// Error(kRequest) as tokenizer and template do, and when both together do not fit the context.
struct EncodedPrompt {
  std::vector<int32_t> ids;
  int64_t max_tokens = 0;
};
EncodedPrompt encode_prompt(const TextModel& text, const CompletionRequest& request, int64_t max_context);

class Service;

// One answer in progress. Dropping it cancels the request.
class Generation {
 public:
  ~Generation();
  // The next piece of text, possibly empty. False when the answer is finished: then reason and usage are final.
  // Throws Error(kFailed) when a step failed, Error(kCapacity) when the service stopped or cancel() was called.
  bool next(std::string& text);
  // Ends the request soon, in the queue too; from any thread.
  void cancel();
  std::string_view finish_reason() const;  // "stop" or "length"
  const Usage& usage() const;

 private:
  friend class Service;
  Generation();
  struct State;
  std::unique_ptr<State> state_;
};

class Service {
 public:
  // Without expectations in `drift` nothing is judged.
  Service(Engine& engine, const TextModel& text, ServedProfile profile, DriftOptions drift = {});
  ~Service();  // stop(); every Generation must be gone
  // Ends what runs as cancelled and takes no more requests. Generations wake with Error(kCapacity).
  void stop();

  // Throws Error(kRequest / kCapacity) as the scheduler, tokenizer and template do; Error(kFailed) when the folder has
  // no tokenizer.
  std::unique_ptr<Generation> start(const CompletionRequest& request);
  ServiceStats stats() const;
  const ServedProfile& profile() const;
  const SamplingOptions& sampling_defaults() const;
  int64_t max_context() const;
  bool has_chat_template() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
