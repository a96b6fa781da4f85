// The MoE layer on the host device: router, look-ahead, and what MoeLayer is asked for.
#include <algorithm>

#include "engine/runtime/host_backend.h"

namespace ft {

// Best experts of the packed rows by a router.
void HostBackend::route(const RouterSpec& router, int32_t* ids, float* weights) {
  const int64_t rows = tokens_->count();
  const PackedMatrix& matrix = parts_.weights[router.weight];
  const float* expert_scale = router.expert_scale.index < 0 ? nullptr : parts_.weights[router.expert_scale].data();
  multiply_split(matrix, rows, router_logits_);
  for_rows(rows, matrix.layout.rows * top_k_, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (router.bias.index >= 0) {
        kernels_.add({router_logits_.row(row), parts_.weights[router.bias].data(), matrix.layout.rows});
      }
      kernels_.router_top_k({router_logits_.row(row), matrix.layout.rows, top_k_, router.renormalize,
                             router_scratch_.row(row), ids + row * top_k_, weights + row * top_k_, expert_scale});
    }
  });
}

// Packs the rows that the layer reads as `norm` makes them, unless they are; gives these rows.
const RowBuffer<float>& HostBackend::pack_rows(const MoeSpec& spec, const Norm& norm) {
  if (packed_by_ == norm.weight.index) return norm.weight.index < 0 ? buffers_[spec.from] : normed_;
  packed_by_ = norm.weight.index;
  const RowBuffer<float>& x = normed(spec.from, norm);
  pack(x, tokens_->count(), parts_.weights[spec.router.weight].layout.cols);
  return x;
}

// What the next layer is expected to use, from the rows that this one is given.
std::span<const int> HostBackend::predict_next(const MoeSpec& spec) {
  // A probe's given plans too: the router takes its time there, and what it predicts is not copied.
  const bool decodes = placement_ == MoePlacement::kDecode || placement_ == MoePlacement::kGiven;
  if (look_ahead_ == LookAhead::kOff || !decodes || spec.next_router.weight.index < 0) return {};
  const int64_t rows = tokens_->count();
  int count = top_k_;
  if (parts_.hooks.forced()) {
    count = parts_.hooks.predictions();
    parts_.hooks.predict(*tokens_, spec.moe_layer + 1, predicted_ids_.data(), count);
  } else {
    pack_rows(spec, spec.next_router.norm);
    route(spec.next_router, predicted_ids_.data(), weights_.data());
  }
  parts_.hooks.record_predictions(*tokens_, spec.moe_layer + 1, count, predicted_ids_.data());
  return predicted_.merge(
      rows, count, [&](int64_t token, int rank) { return predicted_ids_[static_cast<size_t>(token * count + rank)]; });
}

// The output in kBlock, the tokens' weights for it in shared_weights_.
void HostBackend::run_shared_expert(const MoeSpec& spec, const RowBuffer<float>& x) {
  const SharedExpert& shared = spec.shared;
  products(x, {{shared.gate, {}, Slot::kGate}, {shared.up, {}, Slot::kUp}}, nullptr);
  const int64_t rows = tokens_->count();
  std::fill_n(shared_weights_.begin(), rows, 1.0f);
  if (shared.token_gate.index >= 0) {
    multiply_split(parts_.weights[shared.token_gate], rows, router_logits_);
    for (int64_t row = 0; row < rows; ++row) {
      kernels_.gate({&shared_weights_[static_cast<size_t>(row)], router_logits_.row(row), 1, GateKind::kSigmoid});
    }
  }
  const ExpertLayout& routed = parts_.weights.bank.layout(spec.moe_layer);
  glu({routed.glu, Slot::kGate, Slot::kUp, Slot::kGate, parts_.weights[shared.gate].layout.rows});
  products(buffers_[Slot::kGate], {{shared.down, {}, Slot::kBlock}}, nullptr);
}

void HostBackend::moe(const MoeSpec& spec) {
  const int64_t rows = tokens_->count();
  packed_by_.reset();
  const std::span<const int> predicted = predict_next(spec);  // first: both routers write weights_
  pack_rows(spec, spec.router.norm);
  route(spec.router, ids_.data(), weights_.data());
  const RowBuffer<float>& x = pack_rows(spec, spec.norm);
  if (placement_ == MoePlacement::kGiven) {
    deal_plan_ids(*given_, rows, top_k_, ids_.data());
  } else {
    parts_.hooks.apply(*tokens_, spec.moe_layer, ids_.data());
  }
  MoeCall call;
  call.layer = spec.moe_layer;
  call.tokens = rows;
  call.x = const_cast<const uint32_t* const*>(packed_.rows());
  call.ids = ids_.data();
  call.weights = weights_.data();
  call.out = spec.add ? product_.rows() : buffers_[spec.to].rows();
  call.placement = placement_;
  call.given = given_;
  call.predicted = predicted;
  if (spec.shared.down.index >= 0) {
    call.shared = buffers_[Slot::kBlock].rows();
    call.shared_weights = shared_weights_.data();
  }
  moe_layer_.start(call);
  if (call.shared != nullptr) {
    run_shared_expert(spec, x);
    // The shared expert's products took the place.
    pack(x, rows, parts_.weights[spec.router.weight].layout.cols);
  }
  moe_layer_.finish();
  if (spec.add) add_product(spec.to);
}

}  // namespace ft
