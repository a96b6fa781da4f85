// Gated residual streams, and what n-grams add to streams, in reference numerics.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/runtime/ngram_rows.h"
#include "engine/runtime/reference_backend.h"
#include "engine/runtime/reference_math.h"
#include "kernels/base/error.h"
#include "kernels/ops/streams.h"

namespace ft {

using namespace reference_math;

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double gate_of(double product, double width) {
  const double score = product / std::sqrt(width);
  if (score == 0) return 0.5;
  return sigmoid(std::copysign(std::sqrt(std::max(std::fabs(score), static_cast<double>(kStreamGateFloor))), score));
}

}  // namespace

void ReferenceBackend::norm_streams(const float* x, VectorId weight, int streams, float eps, float* y) {
  const std::span<const float> w = parts_.weights[weight];
  const int64_t width = static_cast<int64_t>(w.size()) / streams;
  for (int64_t at = 0; at < streams * width; at += width) rmsnorm_row(x + at, w.data() + at, eps, width, y + at);
}

void ReferenceBackend::read_gated_streams(const StreamsSpec& spec, Slot to) {
  const RowBuffer<float>&streams = buffers_[Slot::kResidual], &normed = buffers_[Slot::kStreamNormed];
  const RowBuffer<float>&low = buffers_[Slot::kStreamLow], &factors = buffers_[Slot::kStreamFactors];
  const int64_t rows = tokens_->count(), width = streams.width() / spec.streams;
  const auto count = static_cast<double>(spec.streams);
  FT_CHECK(width * spec.streams == streams.width());
  split(parts_.pool, rows, [&](int64_t token, int) {
    norm_streams(streams.row(token), spec.norm, spec.streams, spec.norm_eps, normed.row(token));
  });
  multiply(parts_.weights[spec.down], normed, rows, low);
  if (spec.writes) multiply(parts_.weights[spec.write], normed, rows, factors);
  for (int64_t token = 0; token < rows; ++token) {
    for (float& x : std::span(low.row(token), static_cast<size_t>(low.width()))) {
      x = static_cast<float>(x / count * sigmoid(x / count));
    }
    for (float& x : std::span(factors.row(token), spec.writes ? static_cast<size_t>(spec.streams) : 0)) {
      x = static_cast<float>(2 * sigmoid(x / count));
    }
  }
  multiply(parts_.weights[spec.up], low, rows, buffers_[Slot::kStreamGate]);
  split(parts_.pool, rows, [&](int64_t token, int) {
    const float *gate = buffers_[Slot::kStreamGate].row(token), *x = normed.row(token);
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (int64_t at = i; at < streams.width(); at += width) {
        sum += sigmoid(static_cast<double>(gate[at])) * static_cast<double>(x[at]);
      }
      buffers_[to].row(token)[i] = static_cast<float>(sum / count);
    }
  });
}

void ReferenceBackend::write_gated_streams(const StreamsSpec& spec, Slot from) {
  const int64_t width = buffers_[Slot::kResidual].width() / spec.streams;
  split(parts_.pool, tokens_->count(), [&](int64_t token, int) {
    float* stream = buffers_[Slot::kResidual].row(token);
    for (int p = 0; p < spec.streams; ++p, stream += width) {
      const float factor = buffers_[Slot::kStreamFactors].row(token)[p];
      for (int64_t i = 0; i < width; ++i) stream[i] += factor * buffers_[from].row(token)[i];
    }
  });
}

void ReferenceBackend::embed_ngrams(const NgramEmbedSpec& spec) {
  const RowBuffer<float>& to = buffers_[Slot::kNgram];
  ft::embed_ngrams(spec, parts_.weights, parts_.pool, *tokens_, states_, {to.row(0), to.stride()});
}

// What a token's n-grams add before the convolution, to kNgramKey, and its norm, to kStreamNormed.
void ReferenceBackend::gate_ngrams(const NgramAddSpec& spec, int64_t token) {
  const int64_t width = buffers_[Slot::kResidual].width() / spec.streams;
  float *key = buffers_[Slot::kNgramKey].row(token), *normed = buffers_[Slot::kStreamNormed].row(token);
  const float* value = buffers_[Slot::kNgramValue].row(token);
  norm_streams(key, spec.key_norm, spec.streams, spec.norm_eps, key);
  norm_streams(buffers_[Slot::kResidual].row(token), spec.query_norm, spec.streams, spec.norm_eps, normed);
  for (int64_t at = 0; at < spec.streams * width; at += width) {
    const double gate = gate_of(dot(key + at, normed + at, width), static_cast<double>(width));
    for (int64_t i = 0; i < width; ++i) key[at + i] = static_cast<float>(gate * static_cast<double>(value[i]));
  }
  norm_streams(key, spec.conv_norm, spec.streams, spec.norm_eps, normed);
}

// One channel over the run, with what stands before the convolution, to the streams.
void ReferenceBackend::convolve_ngrams(const NgramAddSpec& spec, const StepTokens::Run& run, int64_t channel) {
  const int64_t channels = buffers_[Slot::kResidual].width(), before = (spec.taps - 1) * spec.dilation;
  const float* w = parts_.weights[spec.conv].data() + channel;
  const int64_t floats = NgramAddSpec::history_floats(spec.taps, spec.dilation, channels);
  float* history = states_.part(run.sequence, spec.state_begin, floats) + channel;
  std::array<float, (kMaxConvTaps - 1) * kMaxConvDilation + 1> inputs{};  // oldest first
  const bool begins = tokens_->position[static_cast<size_t>(run.first)] == 0;
  for (int64_t i = 0; i < before && !begins; ++i) inputs[static_cast<size_t>(i)] = history[i * channels];
  for (int64_t t = run.first; t < run.first + run.count; ++t) {
    inputs[static_cast<size_t>(before)] = buffers_[Slot::kStreamNormed].row(t)[channel];
    double y = 0;
    for (int64_t j = 0; j < spec.taps; ++j) {
      y += static_cast<double>(w[j * channels]) * static_cast<double>(inputs[static_cast<size_t>(j * spec.dilation)]);
    }
    const double added = static_cast<double>(buffers_[Slot::kNgramKey].row(t)[channel]) + y * sigmoid(y);
    float& x = buffers_[Slot::kResidual].row(t)[channel];
    x = static_cast<float>(static_cast<double>(x) + added);
    std::copy_n(inputs.begin() + 1, before, inputs.begin());
  }
  for (int64_t i = 0; i < before; ++i) history[i * channels] = inputs[static_cast<size_t>(i)];
}

void ReferenceBackend::add_ngrams(const NgramAddSpec& spec) {
  const auto runs = static_cast<int64_t>(tokens_->runs.size());
  const int64_t channels = buffers_[Slot::kResidual].width();
  split(parts_.pool, tokens_->count(), [&](int64_t token, int) { gate_ngrams(spec, token); });
  split(parts_.pool, runs * channels, [&](int64_t task, int) {
    convolve_ngrams(spec, tokens_->runs[static_cast<size_t>(task / channels)], task % channels);
  });
}

}  // namespace ft
