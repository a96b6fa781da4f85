// Gated delta nets on the host device.
#include <algorithm>
#include <cmath>

#include "engine/runtime/host_backend.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// Columns of a head's state that are one task: 16 KiB of it at 128 keys. There are then enough tasks for many cores.
constexpr int64_t kTaskColumns = 32;

}  // namespace

// A head's channels, convolved over the run, and, for a query or key, normed. heads: queries, keys, values.
void HostBackend::convolve_head(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t head) {
  const DeltaNetShape& shape = spec.shape;
  const int64_t keyed = 2 * shape.key_heads;
  const int64_t width = head < keyed ? shape.key_dim : shape.value_dim;
  const int64_t channel = head < keyed ? head * width : 2 * shape.key_width() + (head - keyed) * width;
  const RowBuffer<float>& mixed = buffers_[Slot::kDeltaMixed];
  float* x = mixed.row(run.first) + channel;
  float* history = states_.layer(run.sequence, spec.state_layer, shape.layer_floats()) + channel;
  if (tokens_->position[static_cast<size_t>(run.first)] == 0) {
    for (int64_t tap = 0; tap + 1 < shape.taps; ++tap) std::fill_n(history + tap * shape.channels(), width, 0.0f);
  }
  kernels_.causal_conv({x, mixed.stride(), run.count, width, shape.taps, parts_.weights[spec.conv].data() + channel,
                        shape.channels(), history, shape.channels()});
  if (head >= keyed) return;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key_dim)));
  kernels_.l2_norm({x, mixed.stride(), run.count, width, head < shape.key_heads ? scale : 1.0f});
}

// Some columns of a value head over the run.
void HostBackend::apply_delta_rule(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t head, int64_t column) {
  const DeltaNetShape& shape = spec.shape;
  const int64_t columns = std::min(kTaskColumns, shape.value_dim - column);
  const int64_t key_head = head / (shape.value_heads / shape.key_heads);
  float* state = states_.layer(run.sequence, spec.state_layer, shape.layer_floats()) + shape.history_floats() +
                 head * delta_state_floats(shape.key_dim, shape.value_dim) + column * shape.key_dim;
  if (tokens_->position[static_cast<size_t>(run.first)] == 0) {
    std::fill_n(state, delta_state_floats(shape.key_dim, columns), 0.0f);
  }
  const RowBuffer<float>&mixed = buffers_[Slot::kDeltaMixed], &out = buffers_[Slot::kAttention];
  const RowBuffer<float>&write = buffers_[Slot::kDeltaWrite], &decay = buffers_[Slot::kDeltaDecay];
  FT_CHECK(write.stride() == decay.stride());
  const float* x = mixed.row(run.first);
  DeltaRuleArgs args;
  args.q = x + key_head * shape.key_dim;
  args.k = args.q + shape.key_width();
  args.v = x + 2 * shape.key_width() + head * shape.value_dim + column;
  args.x_stride = mixed.stride();
  args.write = write.row(run.first) + head;
  args.decay = decay.row(run.first) + head;
  args.gate_stride = write.stride();
  args.tokens = run.count;
  args.key_dim = shape.key_dim;
  args.value_dim = columns;
  args.state = state;
  args.out = out.row(run.first) + head * shape.value_dim + column;
  args.out_stride = out.stride();
  kernels_.delta_rule(args);
}

void HostBackend::finish_delta_head(const DeltaNetSpec& spec, int64_t token, int64_t head) {
  const int64_t width = spec.shape.value_dim;
  float* out = buffers_[Slot::kAttention].row(token) + head * width;
  kernels_.rmsnorm({out, width, out, width, 1, width, parts_.weights[spec.norm.weight].data(), spec.norm.eps});
  kernels_.gate({out, buffers_[Slot::kDeltaGate].row(token) + head * width, width, spec.gate});
}

void HostBackend::delta_net(const DeltaNetSpec& spec) {
  const DeltaNetShape& shape = spec.shape;
  const int64_t rows = tokens_->count(), heads = shape.value_heads;
  const auto runs = static_cast<int64_t>(tokens_->runs.size());
  const int64_t convolved = 2 * shape.key_heads + heads;
  const int64_t parts = (shape.value_dim + kTaskColumns - 1) / kTaskColumns;
  const auto run_of = [&](int64_t index) -> const StepTokens::Run& {
    return tokens_->runs[static_cast<size_t>(index)];
  };
  parts_.pool.run([&](int worker, int workers) {
    // Gates and convolutions in one line of tasks: neither reads what the other writes.
    const Range first = split_range(rows + runs * convolved, worker, workers);
    for (int64_t task = first.begin; task < first.end; ++task) {
      if (task < rows) {
        kernels_.delta_gates({buffers_[Slot::kDeltaWrite].row(task), buffers_[Slot::kDeltaDecay].row(task),
                              parts_.weights[spec.decay_log].data(), parts_.weights[spec.decay_bias].data(), heads});
      } else {
        convolve_head(spec, run_of((task - rows) / convolved), (task - rows) % convolved);
      }
    }
    parts_.pool.barrier();
    const Range second = split_range(runs * heads * parts, worker, workers);
    for (int64_t task = second.begin; task < second.end; ++task) {
      apply_delta_rule(spec, run_of(task / (heads * parts)), task / parts % heads, task % parts * kTaskColumns);
    }
    parts_.pool.barrier();
    const Range third = split_range(rows * heads, worker, workers);
    for (int64_t task = third.begin; task < third.end; ++task) finish_delta_head(spec, task / heads, task % heads);
  });
}

}  // namespace ft
