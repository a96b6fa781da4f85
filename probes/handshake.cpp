// The fixed cost of asking the CPU: a graph of layers that post every expert of a token to the CPU and wait for the
// answer, which a host thread gives at once, beside the same graph of layers that have nothing to post. The kernels,
// the mailbox and the polling are the engine's (engine/runtime/cuda/cuda_moe.h); only the experts are missing.
#include <algorithm>
#include <atomic>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/cuda/moe.h"
#include "kernels/ops/activations.h"
#include "probes/gpu_memory.h"
#include "probes/gpu_probe.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr int kLayers = 48;
constexpr ExpertGeometry kDefaultExpert = {2048, 768, 128, 8};  // Qwen3-30B-A3B, when no model is given
constexpr uint64_t kTimeoutNs = 2'000'000'000;                  // the device's own bound of one wait
constexpr double kWatchdogSeconds = 5;                          // of one graph
constexpr int kPollsBetweenClocks = 4096;

// One shape: tokens of a batch, with ids or without.
class HandOver {
 public:
  HandOver(const ExpertGeometry& expert, int tokens, bool posts)
      : tokens_(tokens),
        pairs_(tokens * expert.top_k),
        distinct_(std::min(expert.experts, pairs_)),
        memory_(int64_t{pairs_} * 16 + int64_t{distinct_} * 64 +
                tokens * activation_words(expert.hidden) * int64_t{sizeof(uint32_t)} + sizeof(cuda::StepCounters) +
                size_t{32} * 1024),
        box_(sizeof(cuda::CpuMailbox)),
        ids_(int64_t{pairs_} * 4),
        x_(tokens * activation_words(expert.hidden) * 4) {
    cuda::PlanArgs plan = make_plan(expert, posts);
    step_number_ = memory_.take<uint32_t>(1);
    memory_.upload(stream_);
    cuda::GraphCapture capture(stream_.handle());
    for (int layer = 0; layer < kLayers; ++layer) {
      plan.layer = layer;
      cuda::plan_layer(plan, stream_.handle());
      cuda::wait_for_cpu({plan.mailbox.box, plan.work.ticket, layer, kTimeoutNs, plan.counters}, stream_.handle());
    }
    cuda::finish_step(plan.mailbox.box, step_number_, stream_.handle());
    graph_ = capture.end();
  }

  double microseconds_per_layer() {
    const double begin = now_seconds();
    graph_.launch(stream_.handle());
    answer_until_finished(begin);
    const double seconds = now_seconds() - begin;
    stream_.synchronize();
    if (mailbox().failed != 0) {
      throw Error(ErrorKind::kFailed, {.what = "the device waited in vain for an answer",
                                       .value = "layer " + std::to_string(mailbox().failed - 1)});
    }
    ++launched_;
    return seconds * 1e6 / kLayers;
  }
  uint32_t answers() const { return answered_; }
  int64_t launched() const { return launched_; }
  // Of the last layer: the experts and rows that arrived are those that the device was given.
  bool arrived(const ExpertGeometry& expert) const {
    for (int i = 0; i < pairs_; ++i) {
      if (ids_.as_host<int32_t>()[i] != i % expert.experts) return false;
    }
    const int64_t words = tokens_ * activation_words(expert.hidden);
    for (int64_t i = 0; i < words; ++i) {
      if (x_.as_host<uint32_t>()[i] != word_of(i)) return false;
    }
    return true;
  }

 private:
  static uint32_t word_of(int64_t i) { return static_cast<uint32_t>(mix64(static_cast<uint64_t>(i))); }
  cuda::CpuMailbox& mailbox() const { return *box_.as_host<cuda::CpuMailbox>(); }

  // Without slots every expert runs from the bank, on the CPU; addresses are never read. Distinct experts where there
  // are enough of them.
  cuda::PlanArgs make_plan(const ExpertGeometry& expert, bool posts) {
    cuda::PlanArgs plan;
    plan.table.layers = kLayers;
    plan.table.experts = expert.experts;
    plan.table.clock = memory_.take<uint64_t>(cuda::kClockWords);
    plan.tokens = tokens_;
    plan.top_k = expert.top_k;
    plan.max_distinct = distinct_;
    auto* ids = memory_.take<int32_t>(pairs_);
    for (int i = 0; i < pairs_; ++i) memory_.host(ids)[i] = posts ? i % expert.experts : -1;
    plan.ids = ids;
    plan.fetch_of_misses = memory_.take<int32_t>(distinct_ + 1);
    plan.blob_bytes = plan.slot_bytes = 4096;
    plan.work = {memory_.take<cuda::ExpertItem>(distinct_),
                 memory_.take<int32_t>(4),
                 memory_.take<int32_t>(pairs_),
                 memory_.take<uint8_t>(pairs_),
                 memory_.take<cuda::Copy>(distinct_),
                 memory_.take<int32_t>(1),
                 memory_.take<uint32_t>(1)};
    plan.counters = memory_.take<cuda::StepCounters>(1);
    plan.mailbox = {box_.as_device<cuda::CpuMailbox>(), ids_.as_device<int32_t>(), x_.as_device<uint32_t>()};
    const int64_t words = tokens_ * activation_words(expert.hidden);
    auto* x = memory_.take<uint32_t>(words);
    for (int64_t i = 0; i < words; ++i) memory_.host(x)[i] = word_of(i);
    plan.x = x;
    plan.hidden = expert.hidden;
    return plan;
  }

  void answer_until_finished(double begin) {
    std::atomic_ref<uint32_t> posted(mailbox().posted), answered(mailbox().answered), finished(mailbox().finished);
    const uint32_t number = finished_ + 1;
    for (int polls = 0; finished.load(std::memory_order_acquire) != number; ++polls) {
      const uint32_t now = posted.load(std::memory_order_acquire);
      if (now != answered_) {
        answered_ = now;
        answered.store(now, std::memory_order_release);
        continue;
      }
      __builtin_ia32_pause();
      if (polls % kPollsBetweenClocks != 0 || now_seconds() - begin < kWatchdogSeconds) continue;
      std::atomic_ref<uint32_t>(mailbox().abandon).store(1, std::memory_order_release);
      stream_.synchronize();  // throws what went wrong
      throw Error(ErrorKind::kFailed, {.what = "the device did not end a graph of hand-overs"});
    }
    finished_ = number;
  }

  int tokens_ = 0, pairs_ = 0, distinct_ = 0;
  cuda::Stream stream_;
  MirroredMemory memory_;
  cuda::PinnedBuffer box_, ids_, x_;
  uint32_t* step_number_ = nullptr;
  cuda::Graph graph_;
  uint32_t answered_ = 0, finished_ = 0;
  int64_t launched_ = 0;
};

class HandshakeProbe final : public GpuProbe {
 public:
  HandshakeProbe() : GpuProbe(kHandshakeText) {}

  std::vector<Samples> run(ProbeContext& context) override {
    require_applies(context);
    const ExpertGeometry expert =
        context.model.weights != nullptr ? context.model.weights->geometry.expert : kDefaultExpert;
    std::vector<int> batches = {1};
    if (context.base.max_batch > 1) batches.push_back(context.base.max_batch);
    std::vector<std::unique_ptr<HandOver>> rigs;
    std::vector<Series> series;
    for (const int tokens : batches) {
      rigs.push_back(std::make_unique<HandOver>(expert, tokens, false));
      rigs.push_back(std::make_unique<HandOver>(expert, tokens, true));
      HandOver& idle = *rigs[rigs.size() - 2];
      HandOver& asking = *rigs.back();
      add(series, "plan", tokens, expert, [&idle] { return idle.microseconds_per_layer(); });
      add(series, "plan_and_round_trip", tokens, expert, [&asking] { return asking.microseconds_per_layer(); });
      add(series, "round_trip", tokens, expert,
          [&] { return std::max(1e-3, asking.microseconds_per_layer() - idle.microseconds_per_layer()); });
    }
    measure(series, measure_options(context, 1));
    mismatch_ = compare(rigs, expert);
    return samples_of(series);
  }

 private:
  Applies applies_on_gpu(const ProbeContext&) const override { return {}; }

  static void add(std::vector<Series>& series, const std::string& name, int tokens, const ExpertGeometry& expert,
                  std::function<double()> sample) {
    Series one;
    one.samples.name = name + ".tokens=" + std::to_string(tokens);
    one.samples.unit = "us";
    one.samples.at = {{"tokens", tokens},
                      {"layers", kLayers},
                      {"payload_bytes", static_cast<double>(tokens * activation_words(expert.hidden) * 4)}};
    one.sample = std::move(sample);
    series.push_back(std::move(one));
  }

  static std::string compare(const std::vector<std::unique_ptr<HandOver>>& rigs, const ExpertGeometry& expert) {
    for (size_t i = 0; i < rigs.size(); ++i) {
      const bool posts = i % 2 == 1;
      const int64_t asked = posts ? rigs[i]->launched() * kLayers : 0;
      if (rigs[i]->answers() != static_cast<uint32_t>(asked)) {
        return std::to_string(rigs[i]->answers()) + " hand-overs of " + std::to_string(asked);
      }
      if (posts && rigs[i]->launched() > 0 && !rigs[i]->arrived(expert)) return "ids or activations";
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Probe> make_handshake_probe() { return std::make_unique<HandshakeProbe>(); }

}  // namespace ft
