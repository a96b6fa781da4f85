#include "engine/runtime/cuda/cuda_prefill.h"

#include <algorithm>

#include "engine/experts/memory_plan.h"

namespace ft {
namespace {

// From so many pairs per expert on all experts of a layer are brought without waiting for the choices: with even
// routing one in 3000 would not have been needed, and copies do not wait for the attention before them.
constexpr int64_t kPairsPerExpertForAll = 8;

constexpr int64_t kAlign = 256;
int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

CudaPrefill::CudaPrefill(const CudaBackendParts& parts, cuda::Stream& main, CudaMoe& moe)
    : weights_(*parts.weights),
      bank_(parts.backend.weights.bank),
      main_(main),
      moe_(moe),
      top_k_(parts.backend.family.geometry().expert.top_k),
      max_tokens_(parts.backend.max_tokens),
      max_pairs_(max_tokens_ * top_k_),
      half_bytes_(prefill_group_experts(bank_.experts(), bank_.slot_bytes()) * bank_.slot_bytes()),
      items_(static_cast<size_t>(bank_.layers())),
      chosen_(static_cast<size_t>(bank_.experts())),
      staging_(2 * half_bytes_) {
  for (LayerItems& layer : items_) layer.streamed.reserve(chosen_.size());
  // A tile per 128 tokens, and one begun by each sequence.
  const int64_t tiles = max_tokens_ / cuda::kPrefillQueryRows + parts.backend.sequences;
  runs_offset_ = padded(tiles * static_cast<int64_t>(sizeof(cuda::PrefillQueries)));
  queries_bytes_ = runs_offset_ + padded(parts.backend.sequences * static_cast<int64_t>(sizeof(cuda::SequenceRun)));
  upload_host_ = cuda::PinnedBuffer(layer_offset(bank_.layers()));
  upload_ = cuda::DeviceBuffer(upload_host_.bytes());
  const int64_t counts = padded(bank_.experts() * int64_t{4}), order = padded(max_pairs_ * int64_t{4});
  const int64_t begins = padded((bank_.experts() + 1) * int64_t{4});
  const int64_t expert_tiles = cuda::max_prefill_tiles(max_pairs_, bank_.experts());
  lists_memory_ =
      cuda::DeviceBuffer(counts + order + begins + expert_tiles * static_cast<int64_t>(sizeof(cuda::PrefillTile)));
  std::byte* at = lists_memory_.data();
  lists_.counts = reinterpret_cast<int32_t*>(at);
  lists_.order = reinterpret_cast<int32_t*>(at + counts);
  lists_.tile_begin = reinterpret_cast<int32_t*>(at + counts + order);
  lists_.tiles = reinterpret_cast<cuda::PrefillTile*>(at + counts + order + begins);
}

CudaPrefill::~CudaPrefill() { copies_.synchronize(); }

void CudaPrefill::lay_out_queries(const StepTokens& tokens) {
  auto* tiles = upload_host_.as_host<cuda::PrefillQueries>();
  query_tiles_ = 0;
  for (int64_t token = 0; token < tokens.count(); ++token) {
    const auto i = static_cast<size_t>(token);
    const bool goes_on = i > 0 && tokens.sequence[i] == tokens.sequence[i - 1] &&
                         tiles[query_tiles_ - 1].count < cuda::kPrefillQueryRows;
    if (goes_on) {
      ++tiles[query_tiles_ - 1].count;
    } else {
      tiles[query_tiles_++] = {tokens.position[i], static_cast<int32_t>(token), 1, tokens.sequence[i], 0};
    }
  }
  auto* run = reinterpret_cast<cuda::SequenceRun*>(upload_host_.host() + runs_offset_);
  for (const StepTokens::Run& from : tokens.runs) {
    *run++ = {tokens.position[static_cast<size_t>(from.first)], static_cast<int32_t>(from.first),
              static_cast<int32_t>(from.count), from.sequence, 0};
  }
}

const std::byte* CudaPrefill::staged(int layer, size_t index) const {
  const int64_t bytes = bank_.layout(layer).bytes;
  const auto experts = static_cast<size_t>(half_bytes_ / bytes);
  const int64_t group = items_[static_cast<size_t>(layer)].first_group + static_cast<int64_t>(index / experts);
  return staging_.data() + group % 2 * half_bytes_ + static_cast<int64_t>(index % experts) * bytes;
}

// ids: of the layer, or null: every expert may be chosen.
void CudaPrefill::lay_out_layer(int layer, const int32_t* ids, int64_t pairs) {
  const int experts = bank_.experts();
  std::fill(chosen_.begin(), chosen_.end(), ids == nullptr ? 1 : 0);
  for (int64_t pair = 0; ids != nullptr && pair < pairs; ++pair) {
    if (ids[pair] >= 0) chosen_[static_cast<size_t>(ids[pair])] = 1;
  }
  auto* blobs = reinterpret_cast<const std::byte**>(upload_host_.host() + layer_offset(layer));
  auto* expert_of_item = reinterpret_cast<int32_t*>(blobs + experts);
  LayerItems& own = items_[static_cast<size_t>(layer)];
  own.streamed.clear();
  own.first_group = next_group_;
  int item = 0;
  const auto put = [&](int expert, const std::byte* blob) {
    blobs[item] = blob;
    expert_of_item[item++] = expert;
  };
  const auto slot_of = [&](int expert) { return slots_of_keys_[int64_t{layer} * experts + expert]; };
  for (int expert = 0; expert < experts; ++expert) {
    if (slot_of(expert) >= 0) put(expert, moe_.slot(slot_of(expert)));
  }
  own.in_slots = item;
  for (int expert = 0; expert < experts; ++expert) {
    if (slot_of(expert) >= 0 || chosen_[static_cast<size_t>(expert)] == 0) continue;
    put(expert, staged(layer, own.streamed.size()));
    own.streamed.push_back(expert);
  }
  for (int expert = 0; expert < experts; ++expert) {
    if (slot_of(expert) < 0 && chosen_[static_cast<size_t>(expert)] == 0) put(expert, nullptr);
  }
  const int64_t group = half_bytes_ / bank_.layout(layer).bytes;
  next_group_ += (static_cast<int64_t>(own.streamed.size()) + group - 1) / group;
}

void CudaPrefill::begin_chunk(const StepTokens& tokens, const int32_t* forced_ids) {
  slots_of_keys_ = moe_.slots_of_keys();
  const int64_t pairs = tokens.count() * top_k_;
  needs_ids_ = forced_ids == nullptr && pairs < kPairsPerExpertForAll * bank_.experts();
  lay_out_queries(tokens);
  const int layers = needs_ids_ ? 0 : bank_.layers();
  for (int layer = 0; layer < layers; ++layer) {
    lay_out_layer(layer, forced_ids == nullptr ? nullptr : forced_ids + layer * max_pairs_, pairs);
  }
  cuda::copy_to_device(upload_.data(), upload_host_.host(), layer_offset(layers), main_.handle());
}

void CudaPrefill::layer(const CudaMoeCall& call, const int32_t* host_ids) {
  const int64_t pairs = call.tokens * top_k_;
  if (needs_ids_) {
    lay_out_layer(call.layer, host_ids, pairs);
    cuda::copy_to_device(upload_.data() + layer_offset(call.layer), upload_host_.host() + layer_offset(call.layer),
                         layer_bytes(), main_.handle());
  }
  const LayerItems& own = items_[static_cast<size_t>(call.layer)];
  const std::byte* uploaded = upload_.data() + layer_offset(call.layer);
  cuda::PrefillGroupArgs group;
  group.ids = call.top.ids;
  group.pairs = pairs;
  group.expert_of_item = reinterpret_cast<const int32_t*>(uploaded + bank_.experts() * sizeof(std::byte*));
  group.experts = bank_.experts();
  group.lists = lists_;
  cuda::prefill_group(group, main_.handle());

  cuda::PrefillExpertArgs args;
  args.layout = bank_.layout(call.layer);
  args.blobs = reinterpret_cast<const std::byte* const*>(uploaded);
  args.lists = lists_;
  args.pairs = pairs;
  args.top_k = top_k_;
  args.x = call.x;
  args.activated = moe_.activated();
  args.out = moe_.outputs();
  args.out_stride = bank_.layout(0).hidden;
  compute(args, 0, static_cast<size_t>(own.in_slots));
  const auto experts = static_cast<size_t>(half_bytes_ / args.layout.bytes);
  for (size_t begin = 0; begin < own.streamed.size(); begin += experts) {
    stream_group(args, call.layer, own.first_group + static_cast<int64_t>(begin / experts), begin,
                 std::min(begin + experts, own.streamed.size()));
  }

  cuda::PrefillMergeArgs merge;
  merge.ids = call.top.ids;
  merge.weights = call.top.weights;
  merge.tokens = call.tokens;
  merge.top_k = top_k_;
  merge.rows = moe_.outputs();
  merge.rows_stride = args.out_stride;
  merge.cols = args.out_stride;
  merge.to = call.to;
  merge.to_stride = call.to_stride;
  merge.add = call.add;
  merge.shared = call.shared.merged();
  cuda::prefill_merge(merge, main_.handle());
}

void CudaPrefill::compute(cuda::PrefillExpertArgs args, size_t begin, size_t end) {
  args.item_begin = static_cast<int>(begin);
  args.item_end = static_cast<int>(end);
  cuda::prefill_gate_up(args, main_.handle());
  cuda::prefill_down(args, main_.handle());
}

// Streamed experts [begin, end) of the layer through the group's half of the staging memory.
void CudaPrefill::stream_group(const cuda::PrefillExpertArgs& args, int layer, int64_t group, size_t begin,
                               size_t end) {
  const LayerItems& own = items_[static_cast<size_t>(layer)];
  Half& half = halves_[static_cast<size_t>(group % 2)];
  if (half.used) half.computed.make_wait(copies_.handle());
  std::byte* target = staging_.data() + group % 2 * half_bytes_;
  for (size_t i = begin; i < end;) {
    size_t next = i + 1;  // neighbours in the bank are one copy
    while (next < end && own.streamed[next] == own.streamed[next - 1] + 1) ++next;
    weights_.copy_experts(target, layer, own.streamed[i], static_cast<int64_t>(next - i), copies_.handle());
    target += static_cast<int64_t>(next - i) * args.layout.bytes;
    i = next;
  }
  half.arrived.record(copies_.handle());
  half.arrived.make_wait(main_.handle());
  compute(args, static_cast<size_t>(own.in_slots) + begin, static_cast<size_t>(own.in_slots) + end);
  half.computed.record(main_.handle());
  half.used = true;
}

}  // namespace ft
