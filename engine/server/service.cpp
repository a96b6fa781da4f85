#include "engine/server/service.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/server/token_stream.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr double kSnapshotSeconds = 0.2;
constexpr int64_t kDefaultCompletionTokens = 16;  // of the API reference

class EngineExecutor : public StepExecutor {
 public:
  EngineExecutor(Engine& engine, ServiceWatch& watch) : engine_(engine), watch_(watch) {}
  int max_batch() const override { return engine_.config().max_batch; }
  int64_t max_context() const override { return engine_.config().max_context; }
  int prefill_chunk() const override { return engine_.config().prefill_chunk; }
  int64_t vocab() const override { return engine_.geometry().vocab; }
  int open_sequence() override { return engine_.open_sequence(); }
  void close_sequence(int sequence) override { engine_.close_sequence(sequence); }
  std::span<const float> step(std::span<const TokenRun> runs) override {
    const double begin = now_seconds();
    const std::span<const float> logits = engine_.step(runs);
    watch_.stepped(runs, now_seconds() - begin);
    return logits;
  }
  std::span<const LargestLogit> largest_logits() const override { return engine_.largest_logits(); }

 private:
  Engine& engine_;
  ServiceWatch& watch_;
};

// Bytes of weights that the decode steps so far read: dense ones once a step, an expert once an activation. On a GPU
// those of host memory only, which is what it is bound by.
double decode_bytes(const EngineCounters& counters, const ModelFormats& formats, bool on_gpu) {
  if (on_gpu) return static_cast<double>(counters.bytes_fetched + counters.bytes_cpu);
  const auto activations = static_cast<double>(counters.expert_hits + counters.expert_fetched + counters.expert_cpu);
  return static_cast<double>(counters.decode_steps) * static_cast<double>(formats.dense_bytes_per_token) +
         activations * static_cast<double>(formats.expert_bytes_max);
}

void derive(ServiceStats& stats, const ModelFormats& formats, const ServedProfile& profile) {
  const EngineCounters& c = stats.engine;
  const auto misses = static_cast<double>(c.expert_fetched + c.expert_cpu);
  const double activations = misses + static_cast<double>(c.expert_hits);
  if (activations > 0) stats.hit_rate = static_cast<double>(c.expert_hits) / activations;
  if (misses > 0) {
    stats.fetched_share = static_cast<double>(c.expert_fetched) / misses;
    stats.cpu_share = static_cast<double>(c.expert_cpu) / misses;
  }
  if (c.decode_seconds <= 0) return;
  stats.decode_tok_s = static_cast<double>(c.decode_tokens) / c.decode_seconds;
  stats.decode_ms_per_step = 1e3 * c.decode_seconds / static_cast<double>(c.decode_steps);
  stats.decode_gbps = 1e-9 * decode_bytes(c, formats, profile.on_gpu) / c.decode_seconds;
  if (profile.ceiling_gbps > 0) stats.ceiling_share = stats.decode_gbps / profile.ceiling_gbps;
  if (c.single_seconds <= 0) return;
  stats.single_tok_s = static_cast<double>(c.single_steps) / c.single_seconds;
  if (profile.predicted_tok_s > 0) stats.achieved_over_predicted = stats.single_tok_s / profile.predicted_tok_s;
}

std::vector<int32_t> prompt_ids(const TextModel& text, const CompletionRequest& request) {
  if (request.prompt_is_ids) return request.prompt_ids;
  if (request.endpoint == Endpoint::kCompletion) return text.tokenizer->encode(request.prompt_text, true, true);
  if (text.chat_template == nullptr) {
    throw Error(ErrorKind::kRequest, {"this model has no chat template", "", "", "use /v1/completions"});
  }
  OrderedJson variables = *request.template_variables;
  if (!text.bos_token.empty()) variables["bos_token"] = text.bos_token;
  if (!text.eos_token.empty()) variables["eos_token"] = text.eos_token;
  return text.tokenizer->encode(text.chat_template->render(variables), true);
}

}  // namespace

EncodedPrompt encode_prompt(const TextModel& text, const CompletionRequest& request, int64_t max_context) {
  if (text.tokenizer == nullptr) throw Error(ErrorKind::kRequest, {text.missing});
  EncodedPrompt prompt;
  prompt.ids = prompt_ids(text, request);
  const auto prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  const bool is_chat = request.endpoint == Endpoint::kChat;
  const int64_t rest = max_context - prompt_tokens;
  prompt.max_tokens = request.max_tokens.value_or(is_chat ? rest : std::min(rest, kDefaultCompletionTokens));
  if (rest < 1 || prompt.max_tokens > rest) {
    throw Error(ErrorKind::kRequest, {"prompt and answer do not fit the context",
                                      std::to_string(prompt_tokens) + " prompt tokens + " +
                                          std::to_string(std::max<int64_t>(prompt.max_tokens, 1)),
                                      "at most " + std::to_string(max_context) + " tokens together",
                                      "shorten the prompt or lower max_tokens", is_chat ? "messages" : "prompt"});
  }
  return prompt;
}

struct Generation::State {
  State(const Tokenizer& tokenizer, const CompletionRequest& request, int64_t max_tokens)
      : stream(std::make_shared<TokenStream>(max_tokens)), text(tokenizer, true), stops(request.stops) {}

  std::shared_ptr<TokenStream> stream;
  // False: a stop string was found, and the request has ended well. A cancelled one is counted as such.
  std::shared_ptr<std::atomic<bool>> wanted = std::make_shared<std::atomic<bool>>(true);
  std::atomic<bool> cancelled{false};
  Detokenizer text;
  StopMatcher stops;
  Scheduler* scheduler = nullptr;
  uint64_t number = 0;
  uint32_t seen = 0;
  bool done = false;
  std::string_view reason = "stop";
  Usage usage;
};

Generation::Generation() = default;

Generation::~Generation() {
  if (state_ != nullptr && !state_->done) cancel();
}

void Generation::cancel() {
  state_->cancelled.store(true);
  state_->scheduler->cancel(state_->number);
}

std::string_view Generation::finish_reason() const { return state_->reason; }
const Usage& Generation::usage() const { return state_->usage; }

bool Generation::next(std::string& text) {
  State& s = *state_;
  text.clear();
  if (s.done) return false;
  const uint32_t count = s.stream->wait(s.seen);
  for (; s.seen < count; ++s.seen) {
    ++s.usage.completion_tokens;
    const StopMatcher::Result result = s.stops.add(s.text.add(s.stream->id(s.seen)));
    text += result.text;
    if (result.stopped) {
      s.wanted->store(false);
      s.done = true;
      return true;
    }
  }
  if (!s.stream->finished() || s.stream->wait(s.seen) != s.seen) return true;
  s.done = true;
  if (s.stream->reason() == FinishReason::kFailed) throw Error(ErrorKind::kFailed, {s.stream->message()});
  if (s.stream->reason() == FinishReason::kCancelled) {
    throw Error(ErrorKind::kCapacity, {s.cancelled ? "the client closed the connection" : "the server is stopping"});
  }
  const StopMatcher::Result result = s.stops.add(s.text.finish());
  text += result.text;
  if (!result.stopped) text += s.stops.finish();
  if (s.stream->reason() == FinishReason::kLength && !result.stopped) s.reason = "length";
  return true;
}

struct Service::State {
  State(Engine& engine_, const TextModel& text_, ServedProfile profile_, DriftOptions drift_options)
      : engine(engine_),
        text(text_),
        profile(std::move(profile_)),
        watch(engine_, std::move(drift_options)),
        executor(engine_, watch),
        scheduler(executor) {}

  Engine& engine;
  const TextModel& text;
  ServedProfile profile;
  ServiceWatch watch;
  EngineExecutor executor;
  Scheduler scheduler;
  double started = now_seconds();
  mutable std::mutex snapshot_mutex;
  EngineCounters counters;
  EngagedRecord engaged;
  DriftStats drift;
  std::thread thread;

  void snapshot() {
    EngineCounters now = engine.counters();
    EngagedRecord record = engine.engaged();
    DriftStats watched = watch.stats();
    const std::lock_guard lock(snapshot_mutex);
    counters = std::move(now);
    engaged = std::move(record);
    drift = std::move(watched);
  }
  void loop() {
    double last = 0;
    snapshot();
    while (!scheduler.stopped()) {
      scheduler.wait_for_work();
      while (scheduler.run_once()) {
        watch.between_steps();
        if (now_seconds() - last < kSnapshotSeconds) continue;
        snapshot();
        last = now_seconds();
      }
      snapshot();
    }
  }
};

Service::Service(Engine& engine, const TextModel& text, ServedProfile profile, DriftOptions drift)
    : state_(std::make_unique<State>(engine, text, std::move(profile), std::move(drift))) {
  state_->thread = std::thread([state = state_.get()] { state->loop(); });
}

Service::~Service() { stop(); }

void Service::stop() {
  state_->scheduler.stop();
  if (state_->thread.joinable()) state_->thread.join();
}

std::unique_ptr<Generation> Service::start(const CompletionRequest& request) {
  State& s = *state_;
  EncodedPrompt prompt = encode_prompt(s.text, request, max_context());
  auto made = std::unique_ptr<Generation>(new Generation);
  made->state_ = std::make_unique<Generation::State>(*s.text.tokenizer, request, prompt.max_tokens);
  Generation::State& generation = *made->state_;
  generation.scheduler = &s.scheduler;
  generation.usage.prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  GenerationRequest submitted;
  submitted.prompt = std::move(prompt.ids);
  submitted.max_tokens = prompt.max_tokens;
  submitted.stop_ids = s.text.eos_ids;
  submitted.sampling = request.sampling;
  submitted.usable_vocab = std::min(s.engine.geometry().vocab, s.text.tokenizer->vocab_size());
  submitted.on_token = [stream = generation.stream, wanted = generation.wanted](int32_t id) {
    if (!wanted->load()) return false;
    stream->push(id);
    return true;
  };
  submitted.on_finish = [stream = generation.stream](FinishReason reason, std::string message) {
    stream->finish(reason, std::move(message));
  };
  generation.done = true;  // nothing to cancel if submit throws
  generation.number = s.scheduler.submit(std::move(submitted));
  generation.done = false;
  return made;
}

ServiceStats Service::stats() const {
  ServiceStats stats;
  stats.uptime_seconds = now_seconds() - state_->started;
  stats.scheduler = state_->scheduler.stats();
  {
    const std::lock_guard lock(state_->snapshot_mutex);
    stats.engine = state_->counters;
    stats.engaged = state_->engaged;
    stats.drift = state_->drift;
  }
  derive(stats, state_->engine.formats(), state_->profile);
  return stats;
}

const ServedProfile& Service::profile() const { return state_->profile; }
const SamplingOptions& Service::sampling_defaults() const { return state_->text.defaults; }
int64_t Service::max_context() const { return state_->engine.config().max_context; }
bool Service::has_chat_template() const { return state_->text.chat_template != nullptr; }

}  // namespace ft
