#include "engine/runtime/cuda/cuda_prefill.h"

#include <algorithm>

namespace ft {
namespace {

constexpr size_t kGroupExperts = kDeviceStagingExperts / 2;  // of one half

}  // namespace

CudaPrefill::CudaPrefill(const CudaBackendParts& parts, cuda::Stream& main, CudaMoe& moe)
    : weights_(*parts.weights),
      bank_(parts.backend.weights.bank),
      main_(main),
      moe_(moe),
      top_k_(parts.backend.family.geometry().expert.top_k),
      max_pairs_(parts.backend.max_tokens * top_k_),
      pairs_(bank_.experts(), top_k_, parts.backend.max_tokens),
      staging_(kDeviceStagingExperts * bank_.slot_bytes()) {
  const int64_t experts = bank_.experts();
  const int64_t bytes = experts * static_cast<int64_t>(sizeof(cuda::ExpertItem)) + (experts + 2) * 4 + max_pairs_ * 4;
  upload_host_ = cuda::PinnedBuffer(bytes);
  upload_ = cuda::DeviceBuffer(bytes);
  none_from_host_ = cuda::DeviceBuffer(max_pairs_);
  cuda::fill_zero(none_from_host_.data(), max_pairs_, main_.handle());
  merged_ = cuda::DeviceBuffer(parts.backend.max_tokens * bank_.layout(0).hidden * 4);
  streamed_.reserve(static_cast<size_t>(experts));
}

CudaPrefill::~CudaPrefill() { copies_.synchronize(); }

void CudaPrefill::begin_chunk() { slots_of_keys_ = moe_.slots_of_keys(); }

void CudaPrefill::layer(const CudaMoeCall& call, const int32_t* host_ids) {
  pairs_.group(host_ids, call.tokens);
  auto* items = upload_host_.as_host<cuda::ExpertItem>();
  auto* bounds = reinterpret_cast<int32_t*>(items + bank_.experts());
  int32_t* order = bounds + bank_.experts() + 2;
  const auto put = [&](size_t index, int expert, const std::byte* blob) {
    items[index] = {blob, nullptr, static_cast<int32_t>(pairs_.begin(expert)),
                    static_cast<int32_t>(pairs_.of(expert).size())};
  };
  size_t count = 0;
  streamed_.clear();
  for (const int expert : pairs_.distinct()) {
    const int32_t slot = slots_of_keys_[call.layer * bank_.experts() + expert];
    if (slot >= 0) {
      put(count++, expert, moe_.slot(slot));
    } else {
      streamed_.push_back(expert);
    }
  }
  size_t bound = 0;
  bounds[bound++] = 0;
  bounds[bound++] = static_cast<int32_t>(count);
  for (size_t i = 0; i < streamed_.size(); ++i) {
    const size_t place = i % static_cast<size_t>(kDeviceStagingExperts);
    put(count++, streamed_[i], staging_.data() + static_cast<int64_t>(place) * bank_.slot_bytes());
    if ((i + 1) % kGroupExperts == 0 || i + 1 == streamed_.size()) bounds[bound++] = static_cast<int32_t>(count);
  }
  std::copy_n(pairs_.order().begin(), pairs_.order().size(), order);
  cuda::copy_to_device(upload_.data(), upload_host_.host(), upload_.bytes(), main_.handle());

  cuda::ExpertArgs args;
  args.layout = bank_.layout(call.layer);
  args.items = upload_.as<cuda::ExpertItem>();
  const auto* device_bounds = reinterpret_cast<const int32_t*>(args.items + bank_.experts());
  args.pairs = device_bounds + bank_.experts() + 2;
  args.top_k = top_k_;
  args.max_item_pairs = call.tokens;
  args.x = call.x;
  args.activated = moe_.activated();
  args.out = moe_.outputs();
  args.out_stride = bank_.layout(0).hidden;
  args.item_begin = device_bounds;
  args.item_end = device_bounds + 1;
  args.max_items = bounds[1];
  if (args.max_items > 0) {
    cuda::expert_gate_up(args, main_.handle());
    cuda::expert_down(args, main_.handle());
  }
  for (size_t begin = 0, group = 0; begin < streamed_.size(); begin += kGroupExperts, ++group) {
    args.item_begin = device_bounds + 1 + group;
    args.item_end = device_bounds + 2 + group;
    stream_group(call, args, begin, std::min(begin + kGroupExperts, streamed_.size()), group);
  }

  cuda::MergeArgs merge;
  merge.ids = call.ids;
  merge.weights = call.weights;
  merge.tokens = call.tokens;
  merge.top_k = top_k_;
  merge.rows = moe_.outputs();
  merge.rows_stride = args.out_stride;
  merge.from_host = none_from_host_.as<uint8_t>();
  merge.cols = args.out_stride;
  merge.out = merged_.as<float>();
  merge.out_stride = args.out_stride;
  cuda::merge(merge, main_.handle());
  cuda::add({call.residual, merge.out, call.residual, call.residual_stride, merge.out_stride, call.residual_stride,
             call.tokens, merge.cols},
            main_.handle());
}

void CudaPrefill::stream_group(const CudaMoeCall& call, cuda::ExpertArgs& args, size_t begin, size_t end,
                               size_t group) {
  Half& half = halves_[group % 2];
  if (half.used) half.computed.make_wait(copies_.handle());
  for (size_t i = begin; i < end; ++i) {
    const auto place = static_cast<int64_t>(i % static_cast<size_t>(kDeviceStagingExperts));
    weights_.copy_expert(staging_.data() + place * bank_.slot_bytes(), call.layer, streamed_[i], copies_.handle());
  }
  half.arrived.record(copies_.handle());
  half.arrived.make_wait(main_.handle());
  args.max_items = static_cast<int>(end - begin);
  cuda::expert_gate_up(args, main_.handle());
  cuda::expert_down(args, main_.handle());
  half.computed.record(main_.handle());
  half.used = true;
}

}  // namespace ft
