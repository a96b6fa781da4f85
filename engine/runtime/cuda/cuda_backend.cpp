// Steps: inputs, graphs, waiting for the device. The family's operations are in cuda_operations.cpp.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/runtime/cuda/cuda_backend_impl.h"
#include "engine/runtime/expert_pairs.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/ops/activations.h"

namespace ft {
namespace {

constexpr double kWatchdogSeconds = 30;       // without any progress of a step: longer than the device's own limit
constexpr int kPollsBetweenClocks = 4096;     // about 50 us
constexpr double kSecondsBetweenLooks = 0.1;  // at the stream, for errors of the device

int64_t widest_input(const Family& family, const ModelWeights& weights) {
  int64_t cols = family.geometry().hidden;
  for (const PackedMatrix& matrix : weights.matrices) cols = std::max(cols, matrix.layout.cols);
  return cols;
}

}  // namespace

CudaBackend::CudaBackend(const CudaBackendParts& parts)
    : parts_(parts.backend),
      config_(parts.config),
      weights_(parts.weights),
      marks_(parts.backend.pool.threads()),
      top_k_(parts.backend.family.geometry().expert.top_k),
      predictions_(parts.config.look_ahead == LookAhead::kOff ? 0 : cuda::kMaxPlanTopK),
      moe_layer_count_(static_cast<int64_t>(parts.backend.family.geometry().moe_layers.size())),
      vocab_(parts.backend.family.geometry().vocab),
      sequences_(parts.backend, parts.config.max_batch, main_),
      compressed_(parts.backend, main_),
      ngrams_(parts.backend),
      moe_(parts, main_, marks_),
      prefill_(parts, main_, moe_) {
  const ModelGeometry& geometry = parts_.family.geometry();
  const int64_t tokens = parts_.max_tokens;
  int64_t floats = 0;
  for (int slot = 0; slot < kSlotCount; ++slot) floats += tokens * parts_.family.width(static_cast<Slot>(slot));
  activations_ = cuda::DeviceBuffer(floats * 4);
  cuda::fill_zero(activations_.data(), activations_.bytes(), main_.handle());
  float* at = activations_.as<float>();
  for (int slot = 0; slot < kSlotCount; ++slot) {
    const int64_t width = parts_.family.width(static_cast<Slot>(slot));
    slots_[static_cast<size_t>(slot)] = {at, width};
    at += tokens * width;
  }
  const int64_t groups = geometry.output_groups * activation_words(geometry.output_group_width);  // of a prompt's token
  packed_ =
      cuda::DeviceBuffer(tokens * std::max(activation_words(widest_input(parts_.family, parts_.weights)), groups) * 4);
  router_packed_ = cuda::DeviceBuffer(config_.max_batch * activation_words(geometry.hidden) * 4);
  shared_packed_ = cuda::DeviceBuffer(tokens * activation_words(parts_.family.width(Slot::kGate)) * 4);
  cuda::fill_zero(shared_packed_.data(), shared_packed_.bytes(), main_.handle());
  token_gates_ = cuda::DeviceBuffer(tokens * 4);
  head_input_ = cuda::DeviceBuffer(parts_.logits_rows * geometry.hidden * 4);
  logits_ = cuda::DeviceBuffer(parts_.logits_rows * vocab_ * 4);
  logits_host_ = cuda::PinnedBuffer(parts_.logits_rows * vocab_ * 4);
  router_logits_ = cuda::DeviceBuffer(tokens * geometry.expert.experts * 4);
  ids_ = cuda::DeviceBuffer(tokens * top_k_ * 4);
  expert_weights_ = cuda::DeviceBuffer(tokens * top_k_ * 4);
  chosen_ = cuda::PinnedBuffer(moe_layer_count_ * tokens * top_k_ * 4);
  largest_host_ = cuda::PinnedBuffer(tokens * static_cast<int64_t>(sizeof(LargestLogit)));
  end_words_ = cuda::DeviceBuffer(8 + tokens * 8);
  cuda::fill_zero(end_words_.data(), end_words_.bytes(), main_.handle());
  // Delta nets put what they make ready for a prompt where the experts' outputs are at other times. Only models with
  // few picks of narrow experts have less room there, and need little.
  const int64_t mixed = parts_.family.width(Slot::kDeltaMixed);
  if (mixed > top_k_ * geometry.hidden) delta_ready_ = cuda::DeviceBuffer(tokens * mixed * int64_t{sizeof(float)});
  const int64_t input_bytes = std::max(InputLayout(tokens, 0, top_k_, predictions_).bytes,
                                       InputLayout(config_.max_batch, moe_layer_count_, top_k_, predictions_).bytes);
  inputs_ = cuda::DeviceBuffer(input_bytes);
  inputs_host_ = cuda::PinnedBuffer(input_bytes);
  main_.synchronize();

  graphs_.resize(static_cast<size_t>(config_.max_batch));
  dense_graphs_.resize(graphs_.size());
  sweep_graphs_.resize(graphs_.size());
  capture_steps();
}

void CudaBackend::capture_steps() {
  if (config_.no_wait) return;
  for (int n = 1; n <= config_.max_batch; ++n) {
    graphs_[static_cast<size_t>(n) - 1] = capture_forward(n, cuda::Placement::kTable);
  }
}

// Which arms a step has, and how many experts it promotes, is in its graph; config_ is the engine's and has changed.
void CudaBackend::change_split(const SplitTable& fetch_of_misses, int64_t) {
  main_.synchronize();
  moe_.upload_split(fetch_of_misses);
  for (cuda::Graph& graph : dense_graphs_) graph = {};  // captured again when it is asked for
  capture_steps();
}

CudaBackend::~CudaBackend() { main_.synchronize(); }

void CudaBackend::begin(const StepTokens& tokens, bool decode, cuda::Placement placement) {
  tokens_ = &tokens;
  count_ = tokens.count();
  decode_ = decode;
  placement_ = placement;
}

// Everything that a decode step launches, for a capture or one by one.
void CudaBackend::launch_forward() {
  StepBatch batch;  // the family asks for nothing of it in a decode step
  batch.tokens = batch.logits_rows = count_;
  batch.decode = true;
  parts_.family.forward(*this, parts_.weights, batch);
  launch_end(count_);
}

// Logits and their largest go to the host in the launch that says the step is over.
void CudaBackend::launch_end(int64_t rows) {
  const bool joined = moe_.join();
  cuda::EndStepArgs end = moe_.end_of_step();
  end.after_join = joined;
  end.logits = logits_.as<float>();
  end.rows = rows;
  end.vocab = vocab_;
  end.pinned_logits = logits_host_.as_device<float>();
  end.pinned_largest = largest_host_.as_device<LargestLogit>();
  end.arrived = end_words_.as<uint32_t>();
  end.largest = end_words_.as<unsigned long long>() + 1;
  cuda::end_step(end, main_.handle());
}

cuda::Graph CudaBackend::capture_forward(int64_t tokens, cuda::Placement placement) {
  count_ = tokens;
  decode_ = true;
  placement_ = placement;
  cuda::GraphCapture capture(main_.handle());
  launch_forward();
  return capture.end();
}

void CudaBackend::fill_inputs(bool forced) {
  const InputLayout in = inputs();
  for (int64_t i = 0; i < count_; ++i) {
    const auto token = static_cast<size_t>(i);
    host_input<int64_t>(in.position)[i] = tokens_->position[token];
    host_input<int32_t>(in.ids)[i] = tokens_->ids[token];
    host_input<int32_t>(in.sequence)[i] = tokens_->sequence[token];
  }
  for (size_t i = 0; i < tokens_->logits_tokens.size(); ++i) {
    host_input<int32_t>(in.rows)[i] = static_cast<int32_t>(tokens_->logits_tokens[i]);
  }
  *host_input<int32_t>(in.forced) = forced ? 1 : 0;
}

void CudaBackend::fill_choices() {
  int32_t* choices = host_input<int32_t>(inputs().choices);
  for (int layer = 0; layer < moe_layer_count_; ++layer, choices += count_ * top_k_) {
    parts_.hooks.choose(*tokens_, layer, choices);
  }
  if (predictions_ == 0) return;
  int32_t* predicted = host_input<int32_t>(inputs().predicted);
  std::fill_n(predicted, moe_layer_count_ * count_ * predictions_, -1);
  for (int layer = 0; layer < moe_layer_count_; ++layer, predicted += count_ * predictions_) {
    parts_.hooks.predict(*tokens_, layer, predicted, predictions_);
  }
}

void CudaBackend::step(const StepTokens& tokens, const StepBatch& batch) {
  if (slots_dirty_) restore_cache(moe_.content());
  const bool decode = batch.decode && tokens.count() <= config_.max_batch;
  begin(tokens, decode, cuda::Placement::kTable);
  const bool forced = parts_.hooks.forced();
  fill_inputs(forced);
  ngrams_.fill(tokens);
  if (!decode) return prefill_step(batch);
  if (forced) fill_choices();
  run(graphs_[static_cast<size_t>(count_) - 1]);
  if (parts_.hooks.recording()) {
    const int32_t* chosen = chosen_.as_host<int32_t>();
    for (int layer = 0; layer < moe_layer_count_; ++layer) {
      parts_.hooks.record(tokens, chosen + layer * parts_.max_tokens * top_k_);
    }
  }
  keep_wanted_logits();
}

void CudaBackend::dense_step(const StepTokens& tokens, const StepBatch&) {
  begin(tokens, true, cuda::Placement::kAllHits);
  fill_inputs(parts_.hooks.forced());
  ngrams_.fill(tokens);
  if (parts_.hooks.forced()) fill_choices();
  cuda::Graph& graph = dense_graphs_[static_cast<size_t>(count_) - 1];
  if (!graph && !config_.no_wait) graph = capture_forward(count_, cuda::Placement::kAllHits);
  run(graph);
}

// Launches the step, or does it launch by launch, and serves the CPU's experts until it has ended.
void CudaBackend::run(const cuda::Graph& graph) {
  next_step();
  moe_.begin_step();
  if (graph) {
    graph.launch(main_.handle());
    wait_until_finished();
  } else {
    launch_forward();
    main_.synchronize();
  }
  moe_.end_step();
  require_answered();
}

// A step that failed may have left slots without their bytes.
void CudaBackend::require_answered() {
  const bool dirty = std::exchange(slots_dirty_, true);
  moe_.require_answered();
  slots_dirty_ = dirty;
}

void CudaBackend::wait_until_finished() {
  double progress = now_seconds(), looked = progress;
  for (int polls = 0; moe_.finished() != step_number_; ++polls) {
    if (moe_.serve_posted()) {
      progress = now_seconds();
      continue;
    }
    __builtin_ia32_pause();
    if (polls % kPollsBetweenClocks != 0) continue;
    const double now = now_seconds();
    if (now - looked < kSecondsBetweenLooks) continue;
    looked = now;
    const bool idle = main_.idle();  // throws an error of the device
    if (idle && moe_.finished() != step_number_) {
      throw Error(ErrorKind::kFailed, {.what = "the device ended a step without saying so",
                                       .value = "step " + std::to_string(step_number_)});
    }
    if (now - progress > kWatchdogSeconds) moe_.abandon();  // waiting kernels give up and say so
  }
}

// In a batch whose runs do not all want logits, the wanted rows move together.
void CudaBackend::keep_wanted_logits() {
  float* rows = logits_host_.as_host<float>();
  for (size_t i = 0; i < tokens_->logits_tokens.size(); ++i) {
    const int64_t token = tokens_->logits_tokens[i];
    if (token == static_cast<int64_t>(i)) continue;
    largest_host_.as_host<LargestLogit>()[i] = largest_host_.as_host<LargestLogit>()[token];
    std::memcpy(rows + static_cast<int64_t>(i) * vocab_, rows + token * vocab_, static_cast<size_t>(vocab_) * 4);
  }
}

void CudaBackend::launch_layers(std::span<const MoeSpec> sites, std::span<const LayerPlan> plans) {
  cuda::copy_to_device(inputs_.data(), inputs_host_.host(), inputs().bytes, main_.handle());
  moe_.upload_given();
  for (const LayerPlan& plan : plans) {
    moe(sites[static_cast<size_t>(plan.layer)]);
  }
  launch_end(0);
}

void CudaBackend::moe_layers(const StepTokens& tokens, std::span<const LayerPlan> plans,
                             std::span<const MoeSpec> sites) {
  begin(tokens, true, cuda::Placement::kGiven);
  fill_inputs(true);
  const InputLayout in = inputs();
  bool all = plans.size() == sites.size();
  for (size_t i = 0; i < plans.size(); ++i) {
    all = all && plans[i].layer == static_cast<int>(i);
    slots_dirty_ = slots_dirty_ || !plans[i].fetches.empty() || !plans[i].promotions.empty();
    deal_plan_ids(plans[i], count_, top_k_, host_input<int32_t>(in.choices) + plans[i].layer * count_ * top_k_);
  }
  moe_.set_given(plans);
  if (!all || config_.no_wait) {  // one layer by itself: launches, in which the CPU's part is waited for by the device
    next_step();
    moe_.begin_step();
    launch_layers(sites, plans);
    wait_until_finished();
    moe_.end_step();
    require_answered();
    return;
  }
  cuda::Graph& graph = sweep_graphs_[static_cast<size_t>(count_) - 1];
  if (!graph) {
    cuda::GraphCapture capture(main_.handle());
    launch_layers(sites, plans);
    graph = capture.end();
  }
  run(graph);
}

void CudaBackend::copy_sequence(int sequence, const ServeBackend& from, int from_sequence, int64_t length) {
  const auto* other = dynamic_cast<const CudaBackend*>(&from);
  FT_CHECK(other != nullptr);
  sequences_.copy_sequence(sequence, other->sequences_, from_sequence, length, main_);
  compressed_.copy_sequence(sequence, other->compressed_, from_sequence, length, main_);
  ngrams_.copy_sequence(sequence, other->ngrams_, from_sequence);
  main_.synchronize();
}

void CudaBackend::read_state(int sequence, std::span<float> state) const {
  cuda::Stream stream;  // between steps the main one is idle
  sequences_.read_state(sequence, state, stream);
  stream.synchronize();
  ngrams_.read_state(sequence, state);
}

void CudaBackend::write_state(int sequence, std::span<const float> state) {
  sequences_.write_state(sequence, state, main_);
  main_.synchronize();
  ngrams_.write_state(sequence, state);
}

void CudaBackend::add_counters(EngineCounters& counters) const {
  const cuda::StepCounters device = moe_.counters();
  const auto blob = static_cast<uint64_t>(moe_.slot_bytes());
  counters.expert_hits += device.hits;
  counters.expert_fetched += device.fetched;
  counters.expert_cpu += device.cpu;
  counters.expert_promoted += device.promoted;
  counters.expert_predicted += device.predicted;
  counters.expert_prefetched += device.prefetched;
  counters.prefetch_useful += device.useful;
  counters.bytes_fetched += (device.fetched + device.promoted + device.prefetched) * blob;
  counters.bytes_cpu += device.cpu * blob;
  counters.cpu_wait_seconds += 1e-9 * static_cast<double>(device.wait_nanoseconds);
  for (size_t i = 0; i < counters.misses_histogram.size(); ++i) {
    counters.misses_histogram[i] += device.misses_histogram[i];
  }
}

void CudaBackend::reset_counters() {
  marks_.clear();
  moe_.reset_counters();
}

void CudaBackend::describe(EngagedRecord& record) const {
  record.threads_worked = marks_.count();
  record.slots = moe_.slot_count();
  record.mechanism = moe_.mechanism();
}

std::unique_ptr<ServeBackend> make_cuda_backend(const CudaBackendParts& parts) {
  return std::make_unique<CudaBackend>(parts);
}

}  // namespace ft
