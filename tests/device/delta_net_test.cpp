// Checked against: the CPU's convolution, norms, gates and delta rule, bit for bit, outputs and the state that is left.
#include "kernels/cuda/delta_net.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/device/lists.h"

namespace ft::device_test {
namespace {

using test::Values;

constexpr int kSequences = 3;
constexpr float kEps = 1e-6f;

std::string what(const DeltaNetShape& shape) {
  return "heads " + std::to_string(shape.key_heads) + "/" + std::to_string(shape.value_heads) + " of " +
         std::to_string(shape.key_dim) + "/" + std::to_string(shape.value_dim) + " taps " + std::to_string(shape.taps);
}

struct Weights {
  HostArray<float> conv, decay_log, decay_bias, norm;

  Weights(const DeltaNetShape& shape, Random& random)
      : conv(random_floats(random, Values::kNormal, shape.taps * shape.channels())),
        decay_log(random_floats(random, Values::kNormal, shape.value_heads)),
        decay_bias(random_floats(random, Values::kNormal, shape.value_heads)),
        norm(random_floats(random, Values::kNormal, shape.value_dim)) {}
};

// Inputs of a step: rows of all its tokens, and its runs.
struct Step {
  std::vector<cuda::SequenceRun> runs;
  int64_t tokens = 0;
  int64_t x_stride, gate_stride, write_stride, out_stride;
  HostArray<float> x{0}, gate{0}, write{0}, decay{0}, expected{0};

  Step(const DeltaNetShape& shape, std::vector<cuda::SequenceRun> all, Values kind, Random& random)
      : runs(std::move(all)),
        x_stride(shape.channels() + 3),
        gate_stride(shape.value_width() + 1),
        write_stride(shape.value_heads + 2),
        out_stride(shape.value_width() + 5) {
    for (cuda::SequenceRun& run : runs) {
      run.token = static_cast<int32_t>(tokens);
      tokens += run.count;
    }
    x = random_floats(random, kind, tokens * x_stride);
    gate = random_floats(random, kind == Values::kSpecial ? Values::kNormal : kind, tokens * gate_stride);
    write = random_floats(random, kind, tokens * write_stride);
    decay = random_floats(random, kind, tokens * write_stride);
    expected = poisoned<float>(tokens * out_stride);
  }
};

// A sequence as the host keeps it.
struct HostState {
  HostArray<float> history, heads;
  explicit HostState(const DeltaNetShape& shape)
      : history(std::max<int64_t>(1, (shape.taps - 1) * shape.channels())),
        heads(shape.value_heads * delta_state_floats(shape.key_dim, shape.value_dim)) {}
};

// One run by the CPU kernels, head by head, into step.expected.
void run_on_cpu(Context& context, const DeltaNetShape& shape, const Weights& weights, Step& step,
                const cuda::SequenceRun& run, GateKind kind, HostState& state) {
  const KernelTable& cpu = context.cpu;
  if (run.position == 0) state = HostState(shape);
  std::vector<float> x(step.x.data() + run.token * step.x_stride,
                       step.x.data() + (run.token + run.count) * step.x_stride);
  std::vector<float> write(step.write.data() + run.token * step.write_stride,
                           step.write.data() + (run.token + run.count) * step.write_stride);
  std::vector<float> decay(step.decay.data() + run.token * step.write_stride,
                           step.decay.data() + (run.token + run.count) * step.write_stride);
  cpu.causal_conv({x.data(), step.x_stride, run.count, shape.channels(), shape.taps, weights.conv.data(),
                   shape.channels(), state.history.data(), shape.channels()});
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key_dim)));
  for (int64_t head = 0; head < 2 * shape.key_heads; ++head) {
    cpu.l2_norm({x.data() + head * shape.key_dim, step.x_stride, run.count, shape.key_dim,
                 head < shape.key_heads ? scale : 1.0f});
  }
  for (int64_t t = 0; t < run.count; ++t) {
    cpu.delta_gates({write.data() + t * step.write_stride, decay.data() + t * step.write_stride,
                     weights.decay_log.data(), weights.decay_bias.data(), shape.value_heads});
  }
  for (int64_t head = 0; head < shape.value_heads; ++head) {
    DeltaRuleArgs rule;
    rule.q = x.data() + head / (shape.value_heads / shape.key_heads) * shape.key_dim;
    rule.k = rule.q + shape.key_width();
    rule.v = x.data() + 2 * shape.key_width() + head * shape.value_dim;
    rule.x_stride = step.x_stride;
    rule.write = write.data() + head;
    rule.decay = decay.data() + head;
    rule.gate_stride = step.write_stride;
    rule.tokens = run.count;
    rule.key_dim = shape.key_dim;
    rule.value_dim = shape.value_dim;
    rule.state = state.heads.data() + head * delta_state_floats(shape.key_dim, shape.value_dim);
    float* out = step.expected.data() + run.token * step.out_stride + head * shape.value_dim;
    rule.out = out;
    rule.out_stride = step.out_stride;
    cpu.delta_rule(rule);
    for (int64_t t = 0; t < run.count; ++t) {
      float* row = out + t * step.out_stride;
      cpu.rmsnorm({row, shape.value_dim, row, shape.value_dim, 1, shape.value_dim, weights.norm.data(), kEps});
      cpu.gate(
          {row, step.gate.data() + (run.token + t) * step.gate_stride + head * shape.value_dim, shape.value_dim, kind});
    }
  }
}

// A layer of kSequences sequences on the device; between them other layers' floats, which stay poisoned.
struct DeviceLayer {
  DeltaNetShape shape;
  GateKind kind;
  Weights weights;
  DeviceArray<float> conv, decay_log, decay_bias, norm;
  int64_t sequence_floats;
  DeviceArray<float> state;
  std::vector<HostState> host;

  DeviceLayer(Context& context, const DeltaNetShape& of, GateKind gate, Random& random)
      : shape(of),
        kind(gate),
        weights(of, random),
        conv(context, weights.conv),
        decay_log(context, weights.decay_log),
        decay_bias(context, weights.decay_bias),
        norm(context, weights.norm),
        sequence_floats(of.layer_floats() + 16),
        state(context, kSequences * sequence_floats) {
    for (int i = 0; i < kSequences; ++i) host.emplace_back(of);
  }

  cuda::DeltaNetArgs args() const {
    cuda::DeltaNetArgs args;
    args.shape = shape;
    args.conv = conv.data();
    args.decay_log = decay_log.data();
    args.decay_bias = decay_bias.data();
    args.norm = norm.data();
    args.norm_eps = kEps;
    args.gate_kind = kind;
    args.state = state.data();
    args.sequence_floats = sequence_floats;
    return args;
  }
};

void set_inputs(cuda::DeltaNetArgs& args, const Step& step, const DeviceArray<float>& x, const DeviceArray<float>& gate,
                const DeviceArray<float>& write, const DeviceArray<float>& decay, const DeviceArray<float>& out) {
  args.x = x.data(), args.x_stride = step.x_stride;
  args.gate = gate.data(), args.gate_stride = step.gate_stride;
  args.write = write.data(), args.decay = decay.data(), args.write_stride = step.write_stride;
  args.tokens = step.tokens;
  args.out = out.data(), args.out_stride = step.out_stride;
}

// decode: runs of one token go as a decode step.
void check_step(Context& context, const std::string& group, DeviceLayer& layer, Step step, bool decode) {
  for (const cuda::SequenceRun& run : step.runs) {
    run_on_cpu(context, layer.shape, layer.weights, step, run, layer.kind,
               layer.host[static_cast<size_t>(run.sequence)]);
  }
  const auto count = static_cast<int64_t>(step.runs.size());
  HostArray<int32_t> sequence(count);
  HostArray<int64_t> position(count);
  for (int64_t i = 0; i < count; ++i) {
    sequence[i] = step.runs[static_cast<size_t>(i)].sequence;
    position[i] = step.runs[static_cast<size_t>(i)].position;
  }
  const DeviceArray<float> x(context, step.x), gate(context, step.gate), write(context, step.write),
      decay(context, step.decay), out(context, step.expected.size());
  const DeviceArray<float> room(context, step.tokens * 2 * layer.shape.key_width());
  const DeviceArray<cuda::SequenceRun> runs(context, step.runs);
  const DeviceArray<int32_t> device_sequence(context, sequence);
  const DeviceArray<int64_t> device_position(context, position);
  cuda::DeltaNetArgs args = layer.args();
  set_inputs(args, step, x, gate, write, decay, out);
  if (decode) {
    args.sequence = device_sequence.data();
    args.position = device_position.data();
  } else {
    args.ready = room.data();
    args.runs = runs.data();
    args.run_count = static_cast<int>(count);
  }
  cuda::delta_net(args, context.stream.handle());
  std::string text = what(layer.shape) + (decode ? " step at" : " run at");
  for (const cuda::SequenceRun& run : step.runs) {
    text += " " + std::to_string(run.position) + "+" + std::to_string(run.count);
  }
  check_same(context, group, text, out, step.expected);
  check_same(context, group, text + " inputs", x, step.x);
  context.report.check(group, room.intact() ? "" : text + ": wrote outside what may be overwritten");
}

// What is left of a sequence that has `length` tokens.
std::string state_difference(const DeviceLayer& layer, const HostArray<float>& got, int sequence, int64_t length) {
  const DeltaNetShape& shape = layer.shape;
  const HostState& host = layer.host[static_cast<size_t>(sequence)];
  const float* own = got.data() + sequence * layer.sequence_floats;
  HostArray<float> device_history(host.history.size()), device_heads(host.heads.size());
  for (int64_t back = 1; back < shape.taps; ++back) {  // inputs before position 0 are zeros on the host
    const int64_t position = length - back, row = shape.taps - 1 - back;
    for (int64_t c = 0; c < shape.channels(); ++c) {
      device_history[row * shape.channels() + c] =
          position < 0 ? 0.0f : own[position % shape.taps * shape.channels() + c];
    }
  }
  std::string text = difference(device_history, host.history);
  if (!text.empty()) return "history: " + text;
  const int64_t head_floats = delta_state_floats(shape.key_dim, shape.value_dim);
  for (int64_t i = 0; i < host.heads.size(); ++i) {
    const int64_t in_head = i % head_floats, column = in_head / (shape.key_dim * 16) * 16 + in_head % 16;
    const float* heads = own + shape.history_floats();
    device_heads[i] = column < shape.value_dim ? heads[i] : host.heads[i];  // columns past the last have no meaning
  }
  text = difference(device_heads, host.heads);
  return text.empty() ? text : "state: " + text;
}

void check_state(Context& context, const std::string& group, const DeviceLayer& layer, int sequence, int64_t length) {
  const HostArray<float> got = layer.state.read();
  std::string text = state_difference(layer, got, sequence, length);
  const HostArray<float> poison = poisoned<float>(16);
  for (int s = 0; text.empty() && s < kSequences; ++s) {
    const float* gap = got.data() + (s + 1) * layer.sequence_floats - 16;
    if (std::memcmp(gap, poison.data(), 16 * sizeof(float)) != 0) text = "wrote into another layer";
  }
  context.report.check(group, text.empty() ? text
                                           : what(layer.shape) + " sequence " + std::to_string(sequence) + " length " +
                                                 std::to_string(length) + " " + text);
}

// Prompts in pieces, decode steps alone and together, a sequence that begins again.
void check_shape(Context& context, const DeltaNetShape& shape, Values kind, GateKind gate, Random& random) {
  constexpr const char* kNames[] = {"normal", "wide", "tiny", "special"};
  const std::string group = std::string("delta_net ") + kNames[static_cast<int>(kind)];
  DeviceLayer layer(context, shape, gate, random);
  std::vector<int64_t> lengths(kSequences);
  const auto go = [&](std::vector<std::pair<int, int>> counts, bool decode) {
    std::vector<cuda::SequenceRun> runs;
    for (const auto& [sequence, count] : counts) {
      runs.push_back({lengths[static_cast<size_t>(sequence)], 0, count, sequence, 0});
      lengths[static_cast<size_t>(sequence)] += count;
    }
    check_step(context, group, layer, Step(shape, runs, kind, random), decode);
    for (const auto& [sequence, count] : counts) {
      check_state(context, group, layer, sequence, lengths[static_cast<size_t>(sequence)]);
    }
  };
  go({{1, 1}}, true);  // begins with a step
  for (int i = 0; i < 3; ++i) go({{1, 1}}, true);
  go({{2, 1}, {0, 37}}, false);
  go({{0, 1}}, false);
  go({{2, 2}, {1, 16}, {0, 17}}, false);
  for (int i = 0; i < 10; ++i) go({{2, 1}, {0, 1}, {1, 1}}, true);
  lengths[0] = 0;  // another sequence in the same place
  go({{1, 3}, {0, 33}}, false);
  go({{0, 1}, {1, 1}}, true);
}

void bench(Context& context) {
  Random random(3);
  const DeltaNetShape shape{16, 32, 128, 128, 4};
  const DeviceLayer layer(context, shape, GateKind::kSilu, random);
  for (const int tokens : {1, 3, 512, 2048}) {
    std::vector<cuda::SequenceRun> runs;
    if (tokens > kSequences) {
      runs.push_back({64, 0, tokens, 0, 0});
    } else {
      for (int i = 0; i < tokens; ++i) runs.push_back({64, 0, 1, i, 0});
    }
    const Step step(shape, runs, Values::kNormal, random);
    HostArray<int32_t> sequence(tokens);
    HostArray<int64_t> position(tokens, 64);
    for (int i = 0; i < tokens && tokens <= kSequences; ++i) sequence[i] = i;
    const DeviceArray<float> x(context, step.x), gate(context, step.gate), write(context, step.write),
        decay(context, step.decay), out(context, step.expected.size());
    const DeviceArray<cuda::SequenceRun> device_runs(context, step.runs);
    const DeviceArray<int32_t> device_sequence(context, sequence);
    const DeviceArray<int64_t> device_position(context, position);
    cuda::DeltaNetArgs args = layer.args();
    set_inputs(args, step, x, gate, write, decay, out);
    args.sequence = device_sequence.data();
    args.position = device_position.data();
    const DeviceArray<float> room(context, tokens * 2 * shape.key_width());
    if (tokens > kSequences) args.runs = device_runs.data(), args.run_count = 1, args.ready = room.data();
    constexpr int kTimes = 10;
    const double seconds = replay_seconds(context, 10,
                                          [&] {
                                            for (int i = 0; i < kTimes; ++i)
                                              cuda::delta_net(args, context.stream.handle());
                                          }) /
                           kTimes;
    std::printf("delta_net 16/32 heads of 128, %s%d: %.2f us, %.3f us a token\n",
                tokens > kSequences ? "a prompt of " : "steps of ", tokens, 1e6 * seconds, 1e6 * seconds / tokens);
  }
}

}  // namespace

void test_delta_net(Context& context) {
  Random random(929);
  for (const DeltaNetShape& shape :
       {DeltaNetShape{2, 4, 128, 128, 4}, DeltaNetShape{1, 3, 64, 96, 4}, DeltaNetShape{2, 6, 12, 20, 3},
        DeltaNetShape{1, 1, 1, 1, 1}, DeltaNetShape{3, 3, 7, 5, 2}, DeltaNetShape{1, 2, 128, 33, 8},
        DeltaNetShape{1, 2, 100, 256, 5}, DeltaNetShape{1, 1, 129, 257, 4}, DeltaNetShape{1, 2, 511, 40, 6},
        DeltaNetShape{1, 1, 512, 512, 4}}) {
    for (const Values kind : test::kAllValues) {
      check_shape(context, shape, kind, random.below(2) == 0 ? GateKind::kSilu : GateKind::kSigmoid, random);
    }
  }
  check_shape(context, {16, 32, 128, 128, 4}, Values::kNormal, GateKind::kSilu, random);
  bench(context);
}

}  // namespace ft::device_test
