#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "engine/engine_config.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// One request from submit to finish. Everything it needs is allocated here, by the submitting thread.
struct Request {
  Request(uint64_t number_, GenerationRequest&& generation_, int64_t vocab)
      : number(number_),
        generation(std::move(generation_)),
        sampler(generation.sampling, vocab, generation.usable_vocab) {
    sampler.add_prompt(generation.prompt);
  }

  uint64_t number;
  GenerationRequest generation;
  Sampler sampler;
  std::atomic<bool> cancelled{false};
  int sequence = -1;
  int64_t prompt_done = 0;  // prompt tokens already in the KV cache
  int64_t length = 0;       // tokens in the KV cache
  int64_t generated = 0;    // sampled tokens, the stop id included
  int32_t next_id = -1;     // sampled, not yet in the KV cache

  bool in_prefill() const { return prompt_done < static_cast<int64_t>(generation.prompt.size()); }
};

}  // namespace

struct Scheduler::State {
  explicit State(StepExecutor& executor_) : executor(executor_) {
    running.reserve(static_cast<size_t>(executor.max_batch()));
    runs.reserve(static_cast<size_t>(executor.max_batch()));
    stepping.reserve(static_cast<size_t>(executor.max_batch()));
  }

  StepExecutor& executor;
  mutable std::mutex mutex;  // guards everything below it up to the blank line
  std::condition_variable work;
  std::deque<std::shared_ptr<Request>> waiting;
  std::vector<std::shared_ptr<Request>> running;  // changed by the scheduler's thread only, under the mutex
  uint64_t last_number = 0;
  bool stopping = false;

  // Counted on the token path, so without the lock.
  std::atomic<uint64_t> finished{0}, failed{0}, dropped{0}, prompt_tokens{0}, generated_tokens{0};

  std::vector<TokenRun> runs;      // of the step being built
  std::vector<Request*> stepping;  // the requests of `runs`, same order
  bool decode_next = false;        // prefill and decode take turns when both are wanted

  void finish(const std::shared_ptr<Request>& request, FinishReason reason, std::string message);
  void drop_cancelled();
  void admit();
  bool build_prefill();
  bool build_decode();
  void run_built();
  void take_logits(std::span<const float> logits);
  void take_token(Request& request, int32_t id);
  std::shared_ptr<Request> shared(const Request* request) const;
};

// REQUIRES: the request is in neither `waiting` nor is being stepped afterwards. Calls back without the lock held.
void Scheduler::State::finish(const std::shared_ptr<Request>& request, FinishReason reason, std::string message) {
  if (request->sequence >= 0) executor.close_sequence(request->sequence);
  {
    const std::lock_guard lock(mutex);
    std::erase(running, request);
  }
  ++(reason == FinishReason::kFailed ? failed : reason == FinishReason::kCancelled ? dropped : finished);
  if (request->generation.on_finish) request->generation.on_finish(reason, std::move(message));
}

void Scheduler::State::drop_cancelled() {
  std::vector<std::shared_ptr<Request>> leaving;
  {
    const std::lock_guard lock(mutex);
    const auto gone = [this](const std::shared_ptr<Request>& request) { return stopping || request->cancelled; };
    for (const auto& request : running) {
      if (gone(request)) leaving.push_back(request);
    }
    for (const auto& request : waiting) {
      if (gone(request)) leaving.push_back(request);
    }
    std::erase_if(waiting, gone);
  }
  for (const auto& request : leaving) finish(request, FinishReason::kCancelled, {});
}

void Scheduler::State::admit() {
  const std::lock_guard lock(mutex);
  while (!waiting.empty()) {
    const int sequence = executor.open_sequence();
    if (sequence < 0) return;
    waiting.front()->sequence = sequence;
    running.push_back(std::move(waiting.front()));
    waiting.pop_front();
  }
}

bool Scheduler::State::build_prefill() {
  for (const auto& request : running) {
    if (!request->in_prefill()) continue;
    const std::span<const int32_t> prompt = request->generation.prompt;
    const auto rest = static_cast<int64_t>(prompt.size()) - request->prompt_done;
    const int64_t take = std::min<int64_t>(rest, executor.prefill_chunk());
    runs.push_back({.sequence = request->sequence,
                    .position = request->length,
                    .ids = prompt.subspan(static_cast<size_t>(request->prompt_done), static_cast<size_t>(take)),
                    .logits_for_all = false,
                    .last_logits = take == rest,
                    .prompt = true});
    stepping.push_back(request.get());
    return true;
  }
  return false;
}

bool Scheduler::State::build_decode() {
  for (const auto& request : running) {
    if (request->in_prefill()) continue;
    runs.push_back(
        {.sequence = request->sequence, .position = request->length, .ids = std::span(&request->next_id, 1)});
    stepping.push_back(request.get());
  }
  return !runs.empty();
}

std::shared_ptr<Request> Scheduler::State::shared(const Request* request) const {
  const auto found = std::find_if(running.begin(), running.end(), [&](const auto& r) { return r.get() == request; });
  FT_CHECK(found != running.end());
  return *found;
}

void Scheduler::State::take_token(Request& request, int32_t id) {
  ++request.generated;
  ++generated_tokens;
  const auto& stops = request.generation.stop_ids;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
    finish(shared(&request), FinishReason::kStop, {});
    return;
  }
  const bool go_on = !request.generation.on_token || request.generation.on_token(id);
  if (!go_on) {
    finish(shared(&request), FinishReason::kStop, {});
  } else if (request.generated >= request.generation.max_tokens) {
    finish(shared(&request), FinishReason::kLength, {});
  } else {
    request.next_id = id;
  }
}

void Scheduler::State::take_logits(std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(executor.vocab());
  const std::span<const LargestLogit> largest = executor.largest_logits();
  size_t row = 0;
  for (size_t i = 0; i < stepping.size(); ++i) {
    Request& request = *stepping[i];
    const auto tokens = static_cast<int64_t>(runs[i].ids.size());
    request.length += tokens;
    if (request.in_prefill()) {
      request.prompt_done += tokens;
      prompt_tokens += static_cast<uint64_t>(tokens);
    }
    if (!runs[i].last_logits) continue;
    FT_CHECK((row + 1) * vocab <= logits.size());
    const LargestLogit* found = row < largest.size() ? &largest[row] : nullptr;
    take_token(request, request.sampler.sample(logits.subspan(row * vocab, vocab), found));
    ++row;
  }
}

void Scheduler::State::run_built() {
  try {
    take_logits(executor.step(runs));
  } catch (const std::exception& error) {
    // A failed step leaves the sequences in an unknown state: their requests end, the others go on.
    std::vector<std::shared_ptr<Request>> broken;
    for (const Request* request : stepping) {
      const auto found =
          std::find_if(running.begin(), running.end(), [&](const auto& r) { return r.get() == request; });
      if (found != running.end()) broken.push_back(*found);
    }
    for (const auto& request : broken) finish(request, FinishReason::kFailed, error.what());
  }
  runs.clear();
  stepping.clear();
}

Scheduler::Scheduler(StepExecutor& executor) : state_(std::make_unique<State>(executor)) {}
Scheduler::~Scheduler() = default;

uint64_t Scheduler::submit(GenerationRequest request) {
  const int64_t max_context = state_->executor.max_context();
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) throw Error(ErrorKind::kRequest, {"the prompt is empty", "0 tokens", "at least one token"});
  if (request.max_tokens < 1) {
    throw Error(ErrorKind::kRequest,
                {"max_tokens refused", std::to_string(request.max_tokens), "1 or more", "", "max_tokens"});
  }
  if (prompt > max_context || request.max_tokens > max_context - prompt) {
    throw Error(ErrorKind::kRequest, {"the prompt and max_tokens together are longer than the context",
                                      std::to_string(prompt) + " + " + std::to_string(request.max_tokens),
                                      "at most " + std::to_string(max_context) + " tokens together",
                                      "shorten the prompt or lower max_tokens"});
  }
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= state_->executor.vocab()) {
      throw Error(ErrorKind::kRequest,
                  {"token id refused", std::to_string(id), "0 to " + std::to_string(state_->executor.vocab() - 1)});
    }
  }
  if (request.stop_ids.size() > kMaxStopIds) {
    throw Error(ErrorKind::kRequest, {"too many stop ids", std::to_string(request.stop_ids.size()),
                                      "at most " + std::to_string(kMaxStopIds)});
  }
  check_sampling(request.sampling);
  if (request.usable_vocab == 0) request.usable_vocab = state_->executor.vocab();
  auto made = std::make_shared<Request>(0, std::move(request), state_->executor.vocab());
  const std::lock_guard lock(state_->mutex);
  if (state_->stopping) throw Error(ErrorKind::kCapacity, {"the server is stopping"});
  if (state_->waiting.size() >= kMaxWaitingRequests) {
    throw Error(ErrorKind::kCapacity, {"too many requests wait", std::to_string(state_->waiting.size()),
                                       "at most " + std::to_string(kMaxWaitingRequests), "try again later"});
  }
  made->number = ++state_->last_number;
  state_->waiting.push_back(std::move(made));
  state_->work.notify_one();
  return state_->last_number;
}

void Scheduler::cancel(uint64_t request) {
  const std::lock_guard lock(state_->mutex);
  const auto mark = [request](const std::shared_ptr<Request>& r) {
    if (r->number == request) r->cancelled = true;
  };
  std::for_each(state_->waiting.begin(), state_->waiting.end(), mark);
  std::for_each(state_->running.begin(), state_->running.end(), mark);
  state_->work.notify_one();
}

bool Scheduler::run_once() {
  State& s = *state_;
  s.drop_cancelled();
  s.admit();
  if (s.running.empty()) return false;
  const bool built = s.decode_next ? (s.build_decode() || s.build_prefill()) : (s.build_prefill() || s.build_decode());
  FT_CHECK(built);
  s.decode_next = !s.decode_next;
  s.run_built();
  return true;
}

void Scheduler::wait_for_work() {
  std::unique_lock lock(state_->mutex);
  state_->work.wait(lock, [this] { return state_->stopping || !state_->waiting.empty() || !state_->running.empty(); });
}

void Scheduler::stop() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->work.notify_all();
}

bool Scheduler::stopped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stopping && state_->waiting.empty() && state_->running.empty();
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.requests_finished = state_->finished;
  stats.requests_failed = state_->failed;
  stats.requests_cancelled = state_->dropped;
  stats.prompt_tokens = state_->prompt_tokens;
  stats.generated_tokens = state_->generated_tokens;
  const std::lock_guard lock(state_->mutex);
  stats.running = state_->running.size();
  stats.waiting = state_->waiting.size();
  return stats;
}

}  // namespace ft
