#include "engine/runtime/cuda/cuda_backend.h"

#include <array>
#include <cstring>
#include <vector>

#include "engine/runtime/cuda/cuda_moe.h"
#include "engine/runtime/cuda/cuda_prefill.h"
#include "engine/runtime/expert_pairs.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/ops/activations.h"

namespace ft {
namespace {

constexpr double kWatchdogSeconds = 30;       // without any progress of a step: longer than the device's own limit
constexpr int kPollsBetweenClocks = 4096;     // about 50 us
constexpr double kSecondsBetweenLooks = 0.1;  // at the stream, for errors of the device

// What a step reads, one block that is copied in at once. Offsets for `tokens` tokens, in this order; the choices that
// are forced come last and are copied for decode steps only.
struct InputLayout {
  int64_t position = 0, ids = 0, sequence = 0, rows = 0, forced = 0, choices = 0, bytes = 0;

  InputLayout(int64_t tokens, int64_t layers_of_choices, int top_k) {
    ids = tokens * 8;
    sequence = ids + tokens * 4;
    rows = sequence + tokens * 4;
    forced = rows + tokens * 4;
    choices = forced + 4;
    bytes = choices + layers_of_choices * tokens * top_k * 4;
  }
};

int64_t widest_input(const Family& family, const ModelWeights& weights) {
  int64_t cols = family.geometry().hidden;
  for (const PackedMatrix& matrix : weights.matrices) cols = std::max(cols, matrix.layout.cols);
  return cols;
}

class CudaBackend final : public ServeBackend {
 public:
  explicit CudaBackend(const CudaBackendParts& parts);
  ~CudaBackend() override;

  void step(const StepTokens& tokens, const StepBatch& batch) override;
  void dense_step(const StepTokens& tokens, const StepBatch& batch) override;
  void moe_layers(const StepTokens& tokens, std::span<const LayerPlan> plans,
                  std::span<const MoeCallSite> sites) override;
  const float* logits_rows() const override { return logits_host_.as_host<float>(); }
  SlotTable::Content cache_content() const override { return moe_.content(); }
  void restore_cache(const SlotTable::Content& content) override {
    moe_.restore(content);
    slots_dirty_ = false;
  }
  void copy_sequence(int sequence, const ServeBackend& from, int from_sequence, int64_t length) override;
  void add_counters(EngineCounters& counters) const override;
  void reset_counters() override;
  void describe(EngagedRecord& record) const override;

  void embed(TableId table, Slot to) override;
  void rmsnorm(Slot from, VectorId weight, float eps, Slot to) override;
  void linear(Slot from, std::initializer_list<Linear> outputs) override;
  void attention(const AttentionSpec& spec) override;
  void silu_mul(Slot gate, Slot up, Slot to) override;
  void add(Slot into, Slot from) override;
  void moe(const MoeSpec& spec, Slot from, Slot to) override;
  void logits(Slot from, VectorId norm, float eps, MatrixId head) override;

 private:
  struct Rows {
    float* data = nullptr;
    int64_t width = 0;
  };
  Rows rows(Slot slot) const { return slots_[static_cast<size_t>(slot)]; }
  InputLayout inputs() const {
    return {count_, placement_ == cuda::Placement::kTable && !decode_ ? 0 : moe_layer_count_, top_k_};
  }
  template <class T>
  T* input(int64_t offset) const {
    return reinterpret_cast<T*>(inputs_.data() + offset);
  }
  template <class T>
  T* host_input(int64_t offset) const {
    return reinterpret_cast<T*>(inputs_host_.host() + offset);
  }
  cuda::KvView kv_layer(int layer) const;
  int64_t kv_layer_elements() const { return parts_.sequences * parts_.max_context * kv_stride_; }
  void pack(Slot slot);
  void touch(Slot slot) {
    if (packed_is_ && packed_slot_ == slot) packed_is_ = false;
  }

  void begin(const StepTokens& tokens, bool decode, cuda::Placement placement);
  void fill_inputs(bool forced);
  void launch_forward();
  void launch_layers(std::span<const MoeCallSite> sites, std::span<const LayerPlan> plans);
  cuda::Graph capture_forward(int64_t tokens, cuda::Placement placement);
  void run(const cuda::Graph& graph);
  void wait_until_finished();
  void prefill_step(const StepBatch& batch);
  void keep_wanted_logits();

  BackendParts parts_;
  const EngineConfig& config_;
  std::shared_ptr<const DeviceWeights> weights_;
  cuda::Stream main_;
  WorkerMarks marks_;
  int top_k_ = 0;
  int64_t moe_layer_count_ = 0, vocab_ = 0, kv_stride_ = 0;

  cuda::DeviceBuffer activations_, packed_, head_input_, logits_, router_logits_, ids_, expert_weights_, kv_, rope_;
  cuda::DeviceBuffer inputs_;
  cuda::PinnedBuffer inputs_host_, logits_host_, chosen_;  // chosen_: (layers, max_tokens, top_k)
  std::array<Rows, kSlotCount> slots_{};
  int64_t rope_half_ = 0, rope_positions_ = 0;
  CudaMoe moe_;
  CudaPrefill prefill_;

  // The step at hand.
  const StepTokens* tokens_ = nullptr;
  StepBatch batch_;
  int64_t count_ = 0;
  bool decode_ = false;
  cuda::Placement placement_ = cuda::Placement::kTable;
  bool packed_is_ = false;  // packed_ holds packed_slot_
  Slot packed_slot_{};
  bool slots_dirty_ = false;
  uint32_t step_number_ = 0;

  std::vector<cuda::Graph> graphs_, dense_graphs_, sweep_graphs_;  // by tokens - 1
};

CudaBackend::CudaBackend(const CudaBackendParts& parts)
    : parts_(parts.backend),
      config_(parts.config),
      weights_(parts.weights),
      marks_(parts.backend.pool.threads()),
      top_k_(parts.backend.family.geometry().expert.top_k),
      moe_layer_count_(static_cast<int64_t>(parts.backend.family.geometry().moe_layers.size())),
      vocab_(parts.backend.family.geometry().vocab),
      kv_stride_(2 * parts.backend.family.geometry().kv_heads * parts.backend.family.geometry().head_dim),
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
  packed_ = cuda::DeviceBuffer(tokens * activation_words(widest_input(parts_.family, parts_.weights)) * 4);
  head_input_ = cuda::DeviceBuffer(tokens * geometry.hidden * 4);
  logits_ = cuda::DeviceBuffer(tokens * vocab_ * 4);
  logits_host_ = cuda::PinnedBuffer(tokens * vocab_ * 4);
  router_logits_ = cuda::DeviceBuffer(tokens * geometry.expert.experts * 4);
  ids_ = cuda::DeviceBuffer(tokens * top_k_ * 4);
  expert_weights_ = cuda::DeviceBuffer(tokens * top_k_ * 4);
  chosen_ = cuda::PinnedBuffer(moe_layer_count_ * tokens * top_k_ * 4);
  kv_ = cuda::DeviceBuffer(geometry.kv_layers * kv_layer_elements() * 2);
  const int64_t input_bytes =
      std::max(InputLayout(tokens, 0, top_k_).bytes, InputLayout(config_.max_batch, moe_layer_count_, top_k_).bytes);
  inputs_ = cuda::DeviceBuffer(input_bytes);
  inputs_host_ = cuda::PinnedBuffer(input_bytes);

  const RopeTable table = parts_.family.make_rope(parts_.max_context);
  rope_half_ = table.half;
  rope_positions_ = table.positions;
  const auto table_bytes = static_cast<int64_t>(table.cos.size() * sizeof(float));
  rope_ = cuda::DeviceBuffer(2 * table_bytes);
  cuda::copy_to_device(rope_.data(), table.cos.data(), table_bytes, main_.handle());
  cuda::copy_to_device(rope_.data() + table_bytes, table.sin.data(), table_bytes, main_.handle());
  main_.synchronize();

  graphs_.resize(static_cast<size_t>(config_.max_batch));
  dense_graphs_.resize(graphs_.size());
  sweep_graphs_.resize(graphs_.size());
  if (config_.no_wait) return;
  for (int n = 1; n <= config_.max_batch; ++n) {
    graphs_[static_cast<size_t>(n) - 1] = capture_forward(n, cuda::Placement::kTable);
  }
}

CudaBackend::~CudaBackend() { main_.synchronize(); }

void CudaBackend::begin(const StepTokens& tokens, bool decode, cuda::Placement placement) {
  tokens_ = &tokens;
  count_ = tokens.count();
  decode_ = decode;
  placement_ = placement;
  packed_is_ = false;
}

// Everything that a decode step launches, for a capture or one by one.
void CudaBackend::launch_forward() {
  packed_is_ = false;
  cuda::copy_to_device(inputs_.data(), inputs_host_.host(), inputs().bytes, main_.handle());
  StepBatch batch;  // the family asks for nothing of it in a decode step
  batch.tokens = batch.logits_rows = count_;
  batch.decode = true;
  parts_.family.forward(*this, parts_.weights, batch);
  moe_.finish();
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

void CudaBackend::step(const StepTokens& tokens, const StepBatch& batch) {
  if (slots_dirty_) restore_cache(moe_.content());
  const bool decode = batch.decode && tokens.count() <= config_.max_batch;
  begin(tokens, decode, cuda::Placement::kTable);
  const bool forced = parts_.hooks.forced();
  fill_inputs(decode && forced);
  if (!decode) return prefill_step(batch);
  if (forced) {
    int32_t* choices = host_input<int32_t>(inputs().choices);
    for (int layer = 0; layer < moe_layer_count_; ++layer, choices += count_ * top_k_) {
      parts_.hooks.choose(tokens, layer, choices);
    }
  }
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
  if (parts_.hooks.forced()) {
    int32_t* choices = host_input<int32_t>(inputs().choices);
    for (int layer = 0; layer < moe_layer_count_; ++layer, choices += count_ * top_k_) {
      parts_.hooks.choose(tokens, layer, choices);
    }
  }
  cuda::Graph& graph = dense_graphs_[static_cast<size_t>(count_) - 1];
  if (!graph && !config_.no_wait) graph = capture_forward(count_, cuda::Placement::kAllHits);
  run(graph);
}

// Launches the step, or does it launch by launch, and serves the CPU's experts until it has ended.
void CudaBackend::run(const cuda::Graph& graph) {
  ++step_number_;
  if (graph) {
    graph.launch(main_.handle());
    wait_until_finished();
  } else {
    launch_forward();
    main_.synchronize();
  }
  moe_.require_answered();
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
    std::memcpy(rows + static_cast<int64_t>(i) * vocab_, rows + token * vocab_, static_cast<size_t>(vocab_) * 4);
  }
}

void CudaBackend::prefill_step(const StepBatch& batch) {
  prefill_.begin_chunk();
  cuda::copy_to_device(inputs_.data(), inputs_host_.host(), inputs().bytes, main_.handle());
  parts_.family.forward(*this, parts_.weights, batch);
  main_.synchronize();
}

void CudaBackend::launch_layers(std::span<const MoeCallSite> sites, std::span<const LayerPlan> plans) {
  packed_is_ = false;
  cuda::copy_to_device(inputs_.data(), inputs_host_.host(), inputs().bytes, main_.handle());
  moe_.upload_given();
  for (const LayerPlan& plan : plans) {
    const MoeCallSite& site = sites[static_cast<size_t>(plan.layer)];
    moe(site.spec, site.from, site.to);
  }
  moe_.finish();
}

void CudaBackend::moe_layers(const StepTokens& tokens, std::span<const LayerPlan> plans,
                             std::span<const MoeCallSite> sites) {
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
    ++step_number_;
    launch_layers(sites, plans);
    wait_until_finished();
    moe_.require_answered();
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

cuda::KvView CudaBackend::kv_layer(int layer) const {
  return {kv_.as<bf16>() + layer * kv_layer_elements(), parts_.max_context};
}

void CudaBackend::copy_sequence(int sequence, const ServeBackend& from, int from_sequence, int64_t length) {
  const auto* other = dynamic_cast<const CudaBackend*>(&from);
  FT_CHECK(other != nullptr && other->kv_stride_ == kv_stride_);
  const int64_t bytes = length * kv_stride_ * 2;
  for (int layer = 0; layer < parts_.family.geometry().kv_layers && bytes > 0; ++layer) {
    cuda::copy_on_device(kv_layer(layer).data + sequence * parts_.max_context * kv_stride_,
                         other->kv_layer(layer).data + from_sequence * other->parts_.max_context * kv_stride_, bytes,
                         main_.handle());
  }
  main_.synchronize();
}

void CudaBackend::embed(TableId table, Slot to) {
  const EmbeddingTable& embedding = (*weights_)[table];
  const Rows out = rows(to);
  touch(to);
  cuda::embed({embedding.rows, embedding.width, input<int32_t>(inputs().ids), count_, out.data, out.width},
              main_.handle());
}

void CudaBackend::rmsnorm(Slot from, VectorId weight, float eps, Slot to) {
  const Rows x = rows(from), y = rows(to);
  cuda::RmsnormPackArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  args.w = (*weights_)[weight];
  args.eps = eps;
  args.tokens = count_;
  args.cols = static_cast<int64_t>(parts_.weights[weight].size());
  args.y = y.data;
  args.y_stride = y.width;
  args.words = packed_.as<uint32_t>();
  cuda::rmsnorm_pack(args, main_.handle());
  packed_is_ = true;
  packed_slot_ = to;
}

void CudaBackend::pack(Slot slot) {
  if (packed_is_ && packed_slot_ == slot) return;
  const Rows x = rows(slot);
  cuda::pack_activations({x.data, x.width, count_, x.width, packed_.as<uint32_t>()}, main_.handle());
  packed_is_ = true;
  packed_slot_ = slot;
}

void CudaBackend::linear(Slot from, std::initializer_list<Linear> outputs) {
  pack(from);
  for (const Linear& output : outputs) {
    const Rows y = rows(output.to);
    cuda::MatvecArgs args;
    args.w = (*weights_)[output.weight];
    args.x = packed_.as<uint32_t>();
    args.tokens = count_;
    args.bias = output.bias.index < 0 ? nullptr : (*weights_)[output.bias];
    args.y = y.data;
    args.y_stride = y.width;
    cuda::matvec(args, main_.handle());
  }
  for (const Linear& output : outputs) touch(output.to);
}

void CudaBackend::attention(const AttentionSpec& spec) {
  const Rows q = rows(Slot::kQuery), k = rows(Slot::kKey), v = rows(Slot::kValue), out = rows(Slot::kAttention);
  const InputLayout in = inputs();
  cuda::AttentionPrepareArgs prepare;
  prepare.q = q.data;
  prepare.q_stride = q.width;
  prepare.k = k.data;
  prepare.v = v.data;
  prepare.kv_stride = k.width;
  prepare.tokens = count_;
  prepare.heads = spec.heads;
  prepare.kv_heads = spec.kv_heads;
  prepare.head_dim = spec.head_dim;
  prepare.q_norm = spec.q_norm.index < 0 ? nullptr : (*weights_)[spec.q_norm];
  prepare.k_norm = spec.k_norm.index < 0 ? nullptr : (*weights_)[spec.k_norm];
  prepare.norm_eps = spec.norm_eps;
  prepare.cos = rope_.as<float>();
  prepare.sin = rope_.as<float>() + rope_positions_ * rope_half_;
  prepare.rotary_half = rope_half_;
  prepare.sequence = input<int32_t>(in.sequence);
  prepare.position = input<int64_t>(in.position);
  prepare.kv = kv_layer(spec.kv_layer);
  cuda::attention_prepare(prepare, main_.handle());
  cuda::AttentionArgs attend;
  attend.q = q.data;
  attend.q_stride = q.width;
  attend.tokens = count_;
  attend.heads = spec.heads;
  attend.kv_heads = spec.kv_heads;
  attend.head_dim = spec.head_dim;
  attend.scale = spec.scale;
  attend.window = spec.window;
  attend.sequence = prepare.sequence;
  attend.position = prepare.position;
  attend.kv = prepare.kv;
  attend.out = out.data;
  attend.out_stride = out.width;
  cuda::attention(attend, main_.handle());
  touch(Slot::kQuery);
  touch(Slot::kAttention);
}

void CudaBackend::silu_mul(Slot gate, Slot up, Slot to) {
  const Rows a = rows(gate), b = rows(up), y = rows(to);
  touch(to);
  cuda::silu_mul({a.data, b.data, y.data, a.width, b.width, y.width, count_, std::min(a.width, b.width)},
                 main_.handle());
}

void CudaBackend::add(Slot into, Slot from) {
  const Rows a = rows(into), b = rows(from);
  touch(into);
  cuda::add({a.data, b.data, a.data, a.width, b.width, a.width, count_, std::min(a.width, b.width)}, main_.handle());
}

void CudaBackend::moe(const MoeSpec& spec, Slot from, Slot to) {
  pack(from);
  const InputLayout in = inputs();
  const int64_t experts = parts_.family.geometry().expert.experts;
  cuda::MatvecArgs router;
  router.w = (*weights_)[spec.router];
  router.x = packed_.as<uint32_t>();
  router.tokens = count_;
  router.y = router_logits_.as<float>();
  router.y_stride = experts;
  cuda::matvec(router, main_.handle());
  cuda::RouterArgs top;
  top.logits = router_logits_.as<float>();
  top.logits_stride = experts;
  top.tokens = count_;
  top.experts = experts;
  top.k = top_k_;
  top.renormalize = spec.renormalize;
  if (decode_) {
    top.forced = input<int32_t>(in.forced);
    top.forced_ids = input<int32_t>(in.choices) + spec.moe_layer * count_ * top_k_;
  }
  top.ids = ids_.as<int32_t>();
  top.weights = expert_weights_.as<float>();
  const int64_t chosen = spec.moe_layer * parts_.max_tokens * top_k_;
  top.record = chosen_.as_device<int32_t>() + chosen;
  cuda::router_top_k(top, main_.handle());

  const Rows y = rows(to);
  CudaMoeCall call;
  call.layer = spec.moe_layer;
  call.tokens = count_;
  call.x = packed_.as<uint32_t>();
  call.ids = ids_.as<int32_t>();
  call.weights = expert_weights_.as<float>();
  call.out = y.data;
  call.out_stride = y.width;
  call.placement = placement_;
  touch(to);
  if (decode_) return moe_.decode(call);
  main_.synchronize();
  int32_t* ids = chosen_.as_host<int32_t>() + chosen;
  if (parts_.hooks.forced()) {
    parts_.hooks.choose(*tokens_, spec.moe_layer, ids);
    cuda::copy_to_device(ids_.data(), ids, count_ * top_k_ * 4, main_.handle());
  }
  prefill_.layer(call, ids);
}

void CudaBackend::logits(Slot from, VectorId norm, float eps, MatrixId head) {
  const Rows x = rows(from);
  const auto cols = static_cast<int64_t>(parts_.weights[norm].size());
  const int64_t wanted = decode_ ? count_ : static_cast<int64_t>(tokens_->logits_tokens.size());
  if (wanted == 0) return;
  cuda::RmsnormPackArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  if (!decode_) {
    cuda::take_rows({x.data, x.width, input<int32_t>(inputs().rows), wanted, cols, head_input_.as<float>(), cols},
                    main_.handle());
    args.x = head_input_.as<float>();
    args.x_stride = cols;
  }
  args.w = (*weights_)[norm];
  args.eps = eps;
  args.tokens = wanted;
  args.cols = cols;
  args.words = packed_.as<uint32_t>();
  cuda::rmsnorm_pack(args, main_.handle());
  packed_is_ = false;
  cuda::MatvecArgs product;
  product.w = (*weights_)[head];
  product.x = packed_.as<uint32_t>();
  product.tokens = wanted;
  product.y = logits_.as<float>();
  product.y_stride = vocab_;
  cuda::matvec(product, main_.handle());
  cuda::copy_to_host(logits_host_.host(), logits_.data(), wanted * vocab_ * 4, main_.handle());
}

void CudaBackend::add_counters(EngineCounters& counters) const {
  const cuda::StepCounters device = moe_.counters();
  const auto blob = static_cast<uint64_t>(moe_.slot_bytes());
  counters.expert_hits += device.hits;
  counters.expert_fetched += device.fetched;
  counters.expert_cpu += device.cpu;
  counters.expert_promoted += device.promoted;
  counters.bytes_fetched += (device.fetched + device.promoted) * blob;
  counters.bytes_cpu += device.cpu * blob;
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
  record.mechanism = record.slots > 0 ? "sm gather" : "none";
}

}  // namespace

std::unique_ptr<ServeBackend> make_cuda_backend(const CudaBackendParts& parts) {
  return std::make_unique<CudaBackend>(parts);
}

}  // namespace ft
