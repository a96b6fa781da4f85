// Gated delta nets of the reference backend: kernels/ops/delta_net.h with sums in double and the library's functions.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/runtime/reference_backend.h"
#include "engine/runtime/reference_math.h"

namespace ft {

using namespace reference_math;

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

using KeyVector = std::array<double, kMaxDeltaKeyDim>;

void normalize(const float* x, int64_t count, double scale, KeyVector& to) {
  const double r = 1.0 / std::sqrt(dot(x, x, count) + static_cast<double>(kDeltaNormEps));
  for (int64_t i = 0; i < count; ++i) to[static_cast<size_t>(i)] = static_cast<double>(x[i]) * r * scale;
}

// How much of a head's state a token keeps.
double decay_of(double log, double bias, double a) {
  const double x = a + bias;
  return std::exp(-std::exp(log) * (std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));
}

}  // namespace

// One channel over the run.
void ReferenceBackend::convolve(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t channel) {
  const DeltaNetShape& shape = spec.shape;
  const float* w = parts_.weights[spec.conv].data() + channel;
  float* history = states_.layer(run.sequence, spec.state_layer, shape.layer_floats()) + channel;
  const bool begins = tokens_->position[static_cast<size_t>(run.first)] == 0;
  const int64_t before = shape.taps - 1;
  std::array<float, kMaxConvTaps> inputs{};  // oldest first
  for (int64_t j = 0; j < before; ++j) inputs[static_cast<size_t>(j)] = begins ? 0.0f : history[j * shape.channels()];
  for (int64_t t = run.first; t < run.first + run.count; ++t) {
    float& x = buffers_[Slot::kDeltaMixed].row(t)[channel];
    inputs[static_cast<size_t>(before)] = x;
    double y = 0;
    for (int64_t j = 0; j < shape.taps; ++j) {
      y += static_cast<double>(w[j * shape.channels()]) * static_cast<double>(inputs[static_cast<size_t>(j)]);
    }
    x = static_cast<float>(y * sigmoid(y));
    std::copy_n(inputs.begin() + 1, before, inputs.begin());
  }
  for (int64_t j = 0; j < before; ++j) history[j * shape.channels()] = inputs[static_cast<size_t>(j)];
}

// One value head over the run, with its output's norm and gate. The state is (key_dim, value_dim).
void ReferenceBackend::run_delta_head(const DeltaNetSpec& spec, const StepTokens::Run& run, int64_t head) {
  const DeltaNetShape& shape = spec.shape;
  const int64_t keys = shape.key_dim, values = shape.value_dim;
  float* state = states_.layer(run.sequence, spec.state_layer, shape.layer_floats()) + shape.history_floats() +
                 head * delta_state_floats(keys, values);
  if (tokens_->position[static_cast<size_t>(run.first)] == 0) std::fill_n(state, keys * values, 0.0f);
  const auto index = static_cast<size_t>(head);
  const auto log = static_cast<double>(parts_.weights[spec.decay_log][index]);
  const auto bias = static_cast<double>(parts_.weights[spec.decay_bias][index]);
  KeyVector q, k;
  for (int64_t t = run.first; t < run.first + run.count; ++t) {
    const float* x = buffers_[Slot::kDeltaMixed].row(t) + head / (shape.value_heads / shape.key_heads) * keys;
    normalize(x, keys, 1.0 / std::sqrt(static_cast<double>(keys)), q);
    normalize(x + shape.key_width(), keys, 1.0, k);
    const float* v = buffers_[Slot::kDeltaMixed].row(t) + 2 * shape.key_width() + head * values;
    const double write = sigmoid(static_cast<double>(buffers_[Slot::kDeltaWrite].row(t)[head]));
    const double decay = decay_of(log, bias, static_cast<double>(buffers_[Slot::kDeltaDecay].row(t)[head]));
    float* out = buffers_[Slot::kAttention].row(t) + head * values;
    for (int64_t j = 0; j < values; ++j) {
      double predicted = 0, read = 0;
      for (int64_t i = 0; i < keys; ++i) {
        predicted += static_cast<double>(state[i * values + j]) * decay * k[static_cast<size_t>(i)];
      }
      const double error = write * (static_cast<double>(v[j]) - predicted);
      for (int64_t i = 0; i < keys; ++i) {
        float& s = state[i * values + j];
        s = static_cast<float>(static_cast<double>(s) * decay + k[static_cast<size_t>(i)] * error);
        read += static_cast<double>(s) * q[static_cast<size_t>(i)];
      }
      out[j] = static_cast<float>(read);
    }
    rmsnorm_row(out, parts_.weights[spec.norm.weight].data(), spec.norm.eps, values, out);
    const float* gate = buffers_[Slot::kDeltaGate].row(t) + head * values;
    for (int64_t j = 0; j < values; ++j) out[j] = gated_value(spec.gate, out[j], gate[j]);
  }
}

void ReferenceBackend::delta_net(const DeltaNetSpec& spec) {
  const auto runs = static_cast<int64_t>(tokens_->runs.size());
  const int64_t channels = spec.shape.channels(), heads = spec.shape.value_heads;
  const auto run_of = [&](int64_t index) { return tokens_->runs[static_cast<size_t>(index)]; };
  split(parts_.pool, runs * channels,
        [&](int64_t task, int) { convolve(spec, run_of(task / channels), task % channels); });
  split(parts_.pool, runs * heads,
        [&](int64_t task, int) { run_delta_head(spec, run_of(task / heads), task % heads); });
}

}  // namespace ft
