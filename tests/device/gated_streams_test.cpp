// Gated residual streams beside their products, and what n-grams add to streams. Checked against: the CPU's rmsnorm,
// squash, gate, merge, dot_rows, stream_gates, causal_conv and add, bit for bit; sequences through steps of one token
// and of several, so that what a step keeps is seen by the next ones.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cuda/ngrams.h"
#include "kernels/cuda/streams.h"
#include "tests/device/lists.h"

namespace ft::device_test {
namespace {

using test::Values;

constexpr int64_t kTokens = 3;
constexpr float kEps = 1e-6f;

struct Streams {
  int count;
  int64_t width;
  int64_t cols() const { return count * width; }
  std::string what() const { return std::to_string(count) + " streams of " + std::to_string(width); }
};

void norm_on_cpu(Context& context, const Streams& streams, const float* x, const float* w, float* y) {
  const int64_t width = streams.width;
  for (int64_t at = 0; at < streams.cols(); at += width) {
    context.cpu.rmsnorm({x + at, width, y + at, width, 1, width, w + at, kEps});
  }
}

void check_norm(Context& context, const Streams& streams, Values kind, Random& random) {
  const int64_t x_stride = streams.cols() + 5, y_stride = streams.cols() + 2;
  const HostArray<float> x = random_floats(random, kind, kTokens * x_stride);
  const HostArray<float> w = random_floats(random, Values::kNormal, streams.cols());
  HostArray<float> expected = poisoned<float>(kTokens * y_stride);
  for (int64_t t = 0; t < kTokens; ++t) {
    norm_on_cpu(context, streams, x.data() + t * x_stride, w.data(), expected.data() + t * y_stride);
  }
  const DeviceArray<float> device_x(context, x), device_w(context, w), y(context, expected.size());
  cuda::norm_streams(
      {device_x.data(), x_stride, kTokens, streams.count, streams.width, device_w.data(), kEps, y.data(), y_stride},
      context.stream.handle());
  check_same(context, "streams normed", streams.what(), y, expected);
}

void check_squash(Context& context, int64_t low, int64_t writes, Values kind, Random& random) {
  const int64_t low_stride = low + 3, write_stride = writes + 1;
  HostArray<float> x = random_floats(random, kind, kTokens * low_stride);
  HostArray<float> y = random_floats(random, kind, kTokens * write_stride);
  const DeviceArray<float> device_x(context, x), device_y(context, y);
  for (int64_t t = 0; t < kTokens; ++t) {
    context.cpu.squash({x.data() + t * low_stride, low, 0.25f, GateKind::kSilu, 1});
    if (writes > 0) context.cpu.squash({y.data() + t * write_stride, writes, 0.25f, GateKind::kSigmoid, 2});
  }
  cuda::SquashStreamsArgs args;
  args.low = {device_x.data(), low_stride, low, 0.25f, GateKind::kSilu, 1};
  args.write = {device_y.data(), write_stride, writes, 0.25f, GateKind::kSigmoid, 2};
  args.tokens = kTokens;
  cuda::squash_streams(args, context.stream.handle());
  const std::string what = std::to_string(low) + " and " + std::to_string(writes);
  check_same(context, "streams squashed", what, device_x, x);
  check_same(context, "streams squashed", what, device_y, y);
}

void check_read_and_write(Context& context, const Streams& streams, Values kind, Random& random) {
  const int64_t cols = streams.cols(), stride = cols + 5, gate_stride = cols + 1, to_stride = streams.width + 3;
  HostArray<float> x = random_floats(random, kind, kTokens * stride);
  const HostArray<float> gate = random_floats(random, kind, kTokens * gate_stride);
  const HostArray<float> from = random_floats(random, kind, kTokens * to_stride);
  const HostArray<float> factors = random_floats(random, kind, kTokens * streams.count);
  HostArray<float> read = poisoned<float>(kTokens * to_stride);
  const DeviceArray<float> device_x(context, x), device_gate(context, gate), device_from(context, from),
      device_factors(context, factors), to(context, read.size());
  const std::vector<float> shares(static_cast<size_t>(streams.count), 1.0f / static_cast<float>(streams.count));
  std::vector<float> gated(static_cast<size_t>(cols)), written(static_cast<size_t>(streams.width));
  for (int64_t t = 0; t < kTokens; ++t) {
    float* row = x.data() + t * stride;
    std::copy_n(row, cols, gated.begin());
    context.cpu.gate({gated.data(), gate.data() + t * gate_stride, cols, GateKind::kSigmoid});
    std::array<const float*, kMaxStreams> y{};
    for (int64_t p = 0; p < streams.count; ++p) y[static_cast<size_t>(p)] = gated.data() + p * streams.width;
    context.cpu.merge({y.data(), shares.data(), streams.count, streams.width, read.data() + t * to_stride});
    for (int64_t q = 0; q < streams.count; ++q) {
      const std::array<const float*, 2> rows{row + q * streams.width, from.data() + t * to_stride};
      const std::array<float, 2> weights{1.0f, factors[t * streams.count + q]};
      context.cpu.merge({rows.data(), weights.data(), 2, streams.width, written.data()});
      std::copy(written.begin(), written.end(), row + q * streams.width);
    }
  }
  cuda::gated_streams_read({device_x.data(), stride, device_gate.data(), gate_stride, kTokens, streams.count,
                            streams.width, to.data(), to_stride},
                           context.stream.handle());
  check_same(context, "gated streams read", streams.what(), to, read);
  cuda::gated_streams_write({device_x.data(), stride, kTokens, streams.count, streams.width, device_factors.data(),
                             streams.count, device_from.data(), to_stride},
                            context.stream.handle());
  check_same(context, "gated streams write", streams.what(), device_x, x);
}

// ---- n-grams

constexpr int kSequences = 3;

struct NgramShape {
  Streams streams;
  int64_t taps, dilation;
  int64_t ring() const { return (taps - 1) * dilation; }
  std::string what() const {
    return streams.what() + ", " + std::to_string(taps) + " taps " + std::to_string(dilation) + " apart";
  }
};

// A layer on the CPU, each sequence's history as the host keeps it, and on the device.
class NgramLayer {
 public:
  NgramLayer(Context& context, const NgramShape& shape, Random& random)
      : context_(context),
        shape_(shape),
        norms_(random_floats(random, Values::kNormal, 3 * cols())),
        conv_(random_floats(random, Values::kNormal, shape.taps * cols())),
        sequence_floats_(shape.ring() * cols() + 16),
        device_norms_(context, norms_),
        device_conv_(context, conv_),
        device_history_(context, kSequences * sequence_floats_) {
    for (int i = 0; i < kSequences; ++i) histories_.emplace_back(std::max<int64_t>(1, shape.ring() * cols()));
  }

  // Runs of different sequences in order of tokens. Of one token each, they are given as a decode step unless
  // `as_runs`.
  void step(std::vector<cuda::SequenceRun> runs, bool as_runs, Values kind, Random& random) {
    int64_t tokens = 0;
    std::vector<int32_t> sequence;
    std::vector<int64_t> position;
    for (cuda::SequenceRun& run : runs) {
      run.token = static_cast<int32_t>(tokens);
      tokens += run.count;
      for (int i = 0; i < run.count; ++i) sequence.push_back(run.sequence), position.push_back(run.position + i);
    }
    const int64_t x_stride = cols() + 2, key_stride = cols() + 3, value_stride = shape_.streams.width + 1;
    HostArray<float> x = random_floats(random, kind, tokens * x_stride);
    HostArray<float> key = random_floats(random, kind, tokens * key_stride);
    const HostArray<float> value = random_floats(random, kind, tokens * value_stride);
    const DeviceArray<float> device_x(context_, x), device_key(context_, key), device_value(context_, value),
        normed(context_, tokens * cols());
    const DeviceArray<cuda::SequenceRun> device_runs(context_, runs);
    const DeviceArray<int32_t> device_sequence(context_, sequence);
    const DeviceArray<int64_t> device_position(context_, position);
    cuda::NgramAddArgs args;
    args.x = device_x.data(), args.x_stride = x_stride;
    args.tokens = tokens;
    args.streams = shape_.streams.count, args.width = shape_.streams.width;
    args.key = device_key.data(), args.key_stride = key_stride;
    args.value = device_value.data(), args.value_stride = value_stride;
    args.normed = normed.data(), args.normed_stride = cols();
    args.key_norm = device_norms_.data();
    args.query_norm = args.key_norm + cols();
    args.conv_norm = args.query_norm + cols();
    args.norm_eps = kEps;
    args.conv = device_conv_.data();
    args.taps = static_cast<int>(shape_.taps), args.dilation = static_cast<int>(shape_.dilation);
    args.history = device_history_.data();
    args.sequence_floats = sequence_floats_;
    args.sequence = device_sequence.data(), args.position = device_position.data();
    if (as_runs) args.runs = device_runs.data(), args.run_count = static_cast<int>(runs.size());
    cuda::add_ngrams(args, context_.stream.handle());
    for (const cuda::SequenceRun& run : runs) {
      on_cpu(run, x.data() + run.token * x_stride, x_stride, key.data() + run.token * key_stride, key_stride,
             value.data() + run.token * value_stride, value_stride);
    }
    const std::string what = shape_.what() + ", position " + std::to_string(runs.front().position);
    check_same(context_, "n-grams added", what, device_x, x);
    check_same(context_, "n-grams gated", what, device_key, key);
    context_.report.check("n-grams added", device_history_.intact() ? "" : what + ": wrote outside the history");
  }

 private:
  int64_t cols() const { return shape_.streams.cols(); }

  void on_cpu(const cuda::SequenceRun& run, float* x, int64_t x_stride, float* key, int64_t key_stride,
              const float* value, int64_t value_stride) {
    const Streams& streams = shape_.streams;
    const int64_t width = streams.width;
    std::vector<float> normed(static_cast<size_t>(run.count * cols()));
    for (int64_t t = 0; t < run.count; ++t) {
      float *own_key = key + t * key_stride, *own = normed.data() + t * cols();
      const float* own_value = value + t * value_stride;
      norm_on_cpu(context_, streams, own_key, norms_.data(), own_key);
      norm_on_cpu(context_, streams, x + t * x_stride, norms_.data() + cols(), own);
      std::array<float, kMaxStreams> gates{};
      for (int64_t p = 0; p < streams.count; ++p) {
        context_.cpu.dot_rows({own_key + p * width, own + p * width, 1, width, &gates[static_cast<size_t>(p)]});
      }
      context_.cpu.stream_gates(
          {gates.data(), streams.count, static_cast<float>(std::sqrt(static_cast<double>(width)))});
      for (int64_t p = 0; p < streams.count; ++p) {
        context_.cpu.merge({&own_value, &gates[static_cast<size_t>(p)], 1, width, own_key + p * width});
      }
      norm_on_cpu(context_, streams, own_key, norms_.data() + 2 * cols(), own);
    }
    HostArray<float>& history = histories_[static_cast<size_t>(run.sequence)];
    if (run.position == 0) std::fill_n(history.data(), history.size(), 0.0f);
    context_.cpu.causal_conv({normed.data(), cols(), run.count, cols(), shape_.taps, conv_.data(), cols(),
                              history.data(), cols(), shape_.dilation});
    std::vector<float> update(static_cast<size_t>(cols()));
    for (int64_t t = 0; t < run.count; ++t) {
      std::copy_n(key + t * key_stride, cols(), update.begin());
      context_.cpu.add({update.data(), normed.data() + t * cols(), cols()});
      context_.cpu.add({x + t * x_stride, update.data(), cols()});
    }
  }

  Context& context_;
  NgramShape shape_;
  HostArray<float> norms_, conv_;
  std::vector<HostArray<float>> histories_;
  int64_t sequence_floats_;
  DeviceArray<float> device_norms_, device_conv_, device_history_;
};

void check_ngrams(Context& context, const NgramShape& shape, Values kind, Random& random) {
  NgramLayer layer(context, shape, random);
  const auto ring = static_cast<int32_t>(shape.ring());
  // A prompt longer than the ring, one as long as it is, and a sequence that begins with a step.
  layer.step({{0, 0, ring + 5, 2}, {0, 0, std::max(1, ring), 0}}, true, kind, random);
  int64_t at[kSequences] = {std::max(1, ring), 0, ring + 5};
  const auto decode = [&](bool as_runs) {
    layer.step({{at[1], 0, 1, 1}, {at[2], 0, 1, 2}, {at[0], 0, 1, 0}}, as_runs, kind, random);
    for (int64_t& position : at) ++position;
  };
  for (int i = 0; i < ring + 2; ++i) decode(i % 5 == 3);
  layer.step({{at[1], 0, 2, 1}, {at[0], 0, ring + 1, 0}}, true, kind, random);  // more of both
  at[1] += 2, at[0] += ring + 1;
  for (int i = 0; i < 3; ++i) decode(false);
  at[2] = 0;  // another sequence in the same place
  for (int i = 0; i < 3; ++i) decode(false);
}

void check_pinned_rows(Context& context, int64_t cols, Random& random) {
  const HostArray<float> rows = random_floats(random, Values::kNormal, kTokens * cols);
  const cuda::PinnedBuffer pinned(rows.size() * static_cast<int64_t>(sizeof(float)));
  std::copy_n(rows.data(), rows.size(), pinned.as_host<float>());
  const int64_t stride = cols + 3;
  HostArray<float> expected = poisoned<float>(kTokens * stride);
  for (int64_t t = 0; t < kTokens; ++t) std::copy_n(rows.data() + t * cols, cols, expected.data() + t * stride);
  const DeviceArray<float> to(context, expected.size());
  cuda::read_pinned_rows({pinned.as_device<float>(), kTokens, cols, to.data(), stride}, context.stream.handle());
  check_same(context, "rows from pinned memory", std::to_string(cols), to, expected);
}

}  // namespace

void test_gated_streams(Context& context) {
  Random random(72);
  for (const Values kind : test::kAllValues) {
    for (const Streams& streams : {Streams{4, 2048}, Streams{3, 33}, Streams{8, 65}, Streams{1, 7}, Streams{2, 4100}}) {
      check_norm(context, streams, kind, random);
      check_read_and_write(context, streams, kind, random);
    }
    check_squash(context, 320, 4, kind, random);
    check_squash(context, 12, 0, kind, random);
    check_squash(context, 256, 8, kind, random);
    for (const NgramShape& shape : {NgramShape{{3, 32}, 3, 3}, NgramShape{{4, 2048}, 4, 3}, NgramShape{{1, 7}, 8, 16},
                                    NgramShape{{8, 40}, 1, 2}, NgramShape{{2, 2049}, 2, 1}}) {
      check_ngrams(context, shape, kind, random);
    }
  }
  for (const int64_t cols : {1, 32, 256, 257, 2048}) check_pinned_rows(context, cols, random);
}

}  // namespace ft::device_test
