// Gated residual streams, and what n-grams add to streams, on the host device.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/runtime/host_backend.h"
#include "engine/runtime/ngram_rows.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kColumns = 512;   // of one task: 2 KiB of every stream
constexpr int64_t kChannels = 128;  // of one task of a convolution

}  // namespace

// Each stream of a token by itself, with its part of the weight.
void HostBackend::norm_streams(const float* x, VectorId weight, int streams, float eps, float* y) {
  const std::span<const float> w = parts_.weights[weight];
  const int64_t width = static_cast<int64_t>(w.size()) / streams;
  for (int64_t at = 0; at < streams * width; at += width) {
    kernels_.rmsnorm({x + at, width, y + at, width, 1, width, w.data() + at, eps});
  }
}

// Some columns: the gated streams' mean.
void HostBackend::read_gated(const StreamsSpec& spec, int64_t token, int64_t column, int64_t cols, float* out) {
  const int64_t width = buffers_[Slot::kResidual].width() / spec.streams;
  float* normed = buffers_[Slot::kStreamNormed].row(token) + column;
  const float* gate = buffers_[Slot::kStreamGate].row(token) + column;
  std::array<const float*, kMaxStreams> y{};
  std::array<float, kMaxStreams> weights{};
  weights.fill(1.0f / static_cast<float>(spec.streams));
  for (int p = 0; p < spec.streams; ++p) {
    kernels_.gate({normed + p * width, gate + p * width, cols, GateKind::kSigmoid});
    y[static_cast<size_t>(p)] = normed + p * width;
  }
  kernels_.merge({y.data(), weights.data(), spec.streams, cols, out});
}

void HostBackend::read_gated_streams(const StreamsSpec& spec, Slot to) {
  const RowBuffer<float>&streams = buffers_[Slot::kResidual], &normed = buffers_[Slot::kStreamNormed];
  const RowBuffer<float>&low = buffers_[Slot::kStreamLow], &factors = buffers_[Slot::kStreamFactors];
  const int64_t rows = tokens_->count(), width = streams.width() / spec.streams;
  FT_CHECK(spec.streams <= kMaxStreams && width * spec.streams == streams.width());
  for_rows(rows, streams.width(), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      norm_streams(streams.row(token), spec.norm, spec.streams, spec.norm_eps, normed.row(token));
    }
  });
  if (spec.writes) {
    products(normed, {{spec.down, {}, Slot::kStreamLow}, {spec.write, {}, Slot::kStreamFactors}}, nullptr);
  } else {
    products(normed, {{spec.down, {}, Slot::kStreamLow}}, nullptr);
  }
  const float share = 1.0f / static_cast<float>(spec.streams);
  for_rows(rows, low.width(), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      kernels_.squash({low.row(token), low.width(), share, GateKind::kSilu, 1});
      if (spec.writes) kernels_.squash({factors.row(token), spec.streams, share, GateKind::kSigmoid, 2});
    }
  });
  products(low, {{spec.up, {}, Slot::kStreamGate}}, nullptr);
  const int64_t chunks = (width + kColumns - 1) / kColumns;
  for_rows(rows * chunks, spec.streams * kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t token = task / chunks, column = task % chunks * kColumns;
      read_gated(spec, token, column, std::min(kColumns, width - column), buffers_[to].row(token) + column);
    }
  });
}

void HostBackend::embed_ngrams(const NgramEmbedSpec& spec) {
  const RowBuffer<float>& to = buffers_[Slot::kNgram];
  ft::embed_ngrams(spec, parts_.weights, parts_.pool, *tokens_, states_, {to.row(0), to.stride()});
}

// What a token's n-grams add before the convolution, to kNgramKey, and its norm, to kStreamNormed.
void HostBackend::gate_ngrams(const NgramAddSpec& spec, int64_t token) {
  const int64_t width = buffers_[Slot::kResidual].width() / spec.streams;
  float* key = buffers_[Slot::kNgramKey].row(token);
  float* normed = buffers_[Slot::kStreamNormed].row(token);
  float* gates = buffers_[Slot::kStreamFactors].row(token);
  const float* value = buffers_[Slot::kNgramValue].row(token);
  norm_streams(key, spec.key_norm, spec.streams, spec.norm_eps, key);
  norm_streams(buffers_[Slot::kResidual].row(token), spec.query_norm, spec.streams, spec.norm_eps, normed);
  for (int64_t p = 0; p < spec.streams; ++p) {
    kernels_.dot_rows({key + p * width, normed + p * width, 1, width, gates + p});
  }
  kernels_.stream_gates({gates, spec.streams, static_cast<float>(std::sqrt(static_cast<double>(width)))});
  for (int64_t p = 0; p < spec.streams; ++p) kernels_.merge({&value, gates + p, 1, width, key + p * width});
  norm_streams(key, spec.conv_norm, spec.streams, spec.norm_eps, normed);
}

void HostBackend::convolve_ngrams(const NgramAddSpec& spec, const StepTokens::Run& run, int64_t channel) {
  const RowBuffer<float>& x = buffers_[Slot::kStreamNormed];
  const int64_t all = x.width(), channels = std::min(kChannels, all - channel), before = spec.taps - 1;
  const int64_t floats = NgramAddSpec::history_floats(spec.taps, spec.dilation, all);
  float* history = states_.part(run.sequence, spec.state_begin, floats) + channel;
  if (tokens_->position[static_cast<size_t>(run.first)] == 0) {
    for (int64_t row = 0; row < before * spec.dilation; ++row) std::fill_n(history + row * all, channels, 0.0f);
  }
  kernels_.causal_conv({x.row(run.first) + channel, x.stride(), run.count, channels, spec.taps,
                        parts_.weights[spec.conv].data() + channel, all, history, all, spec.dilation});
}

void HostBackend::add_ngrams(const NgramAddSpec& spec) {
  const RowBuffer<float>&streams = buffers_[Slot::kResidual], &update = buffers_[Slot::kNgramKey];
  const int64_t rows = tokens_->count(), width = streams.width();
  const auto runs = static_cast<int64_t>(tokens_->runs.size());
  const int64_t chunks = (width + kChannels - 1) / kChannels;
  FT_CHECK(spec.streams <= kMaxStreams);
  parts_.pool.run([&](int worker, int workers) {
    const Range first = split_range(rows, worker, workers);
    for (int64_t token = first.begin; token < first.end; ++token) gate_ngrams(spec, token);
    parts_.pool.barrier();
    const Range second = split_range(runs * chunks, worker, workers);
    for (int64_t task = second.begin; task < second.end; ++task) {
      convolve_ngrams(spec, tokens_->runs[static_cast<size_t>(task / chunks)], task % chunks * kChannels);
    }
    parts_.pool.barrier();
    for (int64_t token = first.begin; token < first.end; ++token) {
      kernels_.add({update.row(token), buffers_[Slot::kStreamNormed].row(token), width});
      kernels_.add({streams.row(token), update.row(token), width});
    }
  });
}

}  // namespace ft
