// Attention of prompts to a window and to compressed entries. Checked against: softmax attention in float64 over the
// rows that a token's position says, found here by position, and turned back in float64; and against itself with the
// tokens in other groups, whose bits may not change. Rows that no token may see are NaN.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cuda/compressed.h"
#include "tests/device/prefill_lists.h"

namespace ft::device_test {
namespace {

using cuda::SequenceRun;

// Of elements of up to 5: two bf16 hold a weight to 2^-17 of itself, and a score's fp32 sum in the tensor cores, of 512
// products of up to 100 together, is off by 1e-3 before the scale of 1 / 22: 5e-5 of a weight.
constexpr double kLimit = 1e-3;

struct Shape {
  int heads, head_dim, window, ratio, kept;  // kept: entries that a token attends to at most; 0: all
  bool sinks;
  int half = 4;

  std::string name() const {
    return "attention to entries: " + std::to_string(heads) + " heads of " + std::to_string(head_dim) + ", window " +
           std::to_string(window) + ", ratio " + std::to_string(ratio) +
           (kept > 0 ? ", the best " + std::to_string(kept) : "") + (sinks ? ", sinks" : "");
  }
};

constexpr int64_t kPositions = 700;
constexpr int kSequences = 3;
constexpr int kIndexDim = 8;

cuda::CompressedLayerView layer_of(const Shape& shape) {
  cuda::CompressedLayerView layer;
  layer.head_dim = shape.head_dim;
  layer.window = shape.window;
  layer.ratio = shape.ratio;
  layer.ring_rows = shape.window + 3;  // more than the window, no power of 2
  if (shape.ratio == 0) {
    layer.sequence_elements = int64_t{layer.ring_rows} * shape.head_dim;
    return layer;
  }
  layer.entries = static_cast<int>(kPositions / shape.ratio);
  layer.index_dim = shape.kept > 0 ? kIndexDim : 0;
  layer.index_heads = shape.kept > 0 ? 1 : 0;
  layer.index_top_k = shape.kept;
  layer.sequence_elements =
      int64_t{layer.ring_rows} * shape.head_dim + int64_t{layer.entries} * (shape.head_dim + layer.index_dim);
  return layer;
}

struct Data {
  cuda::CompressedLayerView layer;
  std::vector<SequenceRun> runs;
  std::vector<int32_t> sequence;
  std::vector<int64_t> position;
  HostArray<bf16> memory, fresh{0};
  HostArray<float> q{0}, sinks, cos, sin;
  HostArray<int32_t> chosen{0};
  int64_t q_stride, tokens = 0;

  Data(const Shape& shape, const std::vector<SequenceRun>& all, Random& random)
      : layer(layer_of(shape)),
        runs(all),
        memory(kSequences * layer.sequence_elements, bf16{0x7fc0}),
        sinks(random_floats(random, test::Values::kNormal, shape.heads)),
        cos(kPositions * shape.half),
        sin(kPositions * shape.half),
        q_stride(int64_t{shape.heads} * shape.head_dim + 4) {
    for (int64_t i = 0; i < cos.size(); ++i) {
      const double angle = random.normal();
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
    for (SequenceRun& run : runs) {
      run.token = static_cast<int32_t>(tokens);
      for (int i = 0; i < run.count; ++i) {
        sequence.push_back(run.sequence);
        position.push_back(run.position + i);
      }
      tokens += run.count;
      // The ring as steps before this one left it: it holds no row of this run.
      for (int64_t p = std::max<int64_t>(0, run.position - layer.ring_rows); p < run.position; ++p) {
        fill(memory.data() + ring_at(run.sequence, p), random);
      }
      for (int64_t e = 0; shape.ratio > 0 && e < (run.position + run.count) / shape.ratio; ++e) {
        fill(memory.data() + entry_at(run.sequence, e), random);
      }
    }
    fresh = HostArray<bf16>(tokens * shape.head_dim);
    for (int64_t t = 0; t < tokens; ++t) fill(fresh.data() + t * shape.head_dim, random);
    q = HostArray<float>(tokens * q_stride, NAN);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < q_stride - 4; ++i) {
        q[t * q_stride + i] = round_to_bf16(static_cast<float>(random.normal()));
      }
    }
    choose(shape, random);
  }

  int64_t ring_at(int32_t of, int64_t p) const {
    return of * layer.sequence_elements + p % layer.ring_rows * layer.head_dim;
  }
  int64_t entry_at(int32_t of, int64_t entry) const {
    return of * layer.sequence_elements + (layer.ring_rows + entry) * layer.head_dim;
  }
  const int32_t* chosen_of(int64_t token) const { return chosen.data() + token * layer.index_top_k; }

  // Rows of token `token`, which is of `run`.
  std::vector<const bf16*> rows_of(const Shape& shape, const SequenceRun& run, int64_t token) const {
    std::vector<const bf16*> rows;
    const int64_t last = position[static_cast<size_t>(token)];
    for (int64_t p = std::max<int64_t>(0, last - shape.window + 1); p <= last; ++p) {
      rows.push_back(p >= run.position ? fresh.data() + (run.token + p - run.position) * shape.head_dim
                                       : memory.data() + ring_at(run.sequence, p));
    }
    const int64_t closed = shape.ratio > 0 ? (last + 1) / shape.ratio : 0;
    const bool some = shape.kept > 0 && closed > shape.kept;
    for (int64_t i = 0; i < (some ? shape.kept : closed); ++i) {
      rows.push_back(memory.data() + entry_at(run.sequence, some ? chosen_of(token)[i] : i));
    }
    return rows;
  }

 private:
  void fill(bf16* row, Random& random) const {
    for (int i = 0; i < layer.head_dim; ++i) row[i] = to_bf16(static_cast<float>(random.normal()));
  }
  // A list in order of entries where there are more than kept; elsewhere entries that do not exist.
  void choose(const Shape& shape, Random& random) {
    chosen = HostArray<int32_t>(std::max<int64_t>(1, tokens * shape.kept), 1 << 24);
    if (shape.kept == 0) return;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t closed = (position[static_cast<size_t>(t)] + 1) / shape.ratio;
      if (closed <= shape.kept) continue;
      int64_t left = shape.kept;
      for (int64_t e = 0; e < closed && left > 0; ++e) {
        const bool needed = closed - e <= left;
        if (needed || random.uniform() < static_cast<double>(shape.kept) / static_cast<double>(closed)) {
          chosen[t * shape.kept + shape.kept - left--] = static_cast<int32_t>(e);
        }
      }
    }
  }
};

float scale_of(const Shape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }

// The tokens in groups; nothing when the device does not take the shape.
HostArray<float> attend(Context& context, const Shape& shape, const Data& data, int64_t group_tokens) {
  const int64_t out_stride = int64_t{shape.heads} * shape.head_dim + 2;
  const DeviceArray<bf16> memory(context, data.memory), fresh(context, data.fresh);
  const DeviceArray<float> q(context, data.q), sinks(context, data.sinks), cos(context, data.cos),
      sin(context, data.sin), out(context, data.tokens * out_stride);
  const DeviceArray<int32_t> chosen(context, data.chosen), sequence(context, data.sequence);
  const DeviceArray<int64_t> position(context, data.position);
  const DeviceArray<SequenceRun> runs(context, data.runs);
  cuda::CompressedArgs args;
  args.layer = data.layer;
  args.layer.rows = memory.data();
  args.tokens = data.tokens;
  args.runs = runs.data();
  args.run_count = static_cast<int>(data.runs.size());
  args.sequence = sequence.data();
  args.position = position.data();
  args.max_positions = kPositions;
  args.heads = shape.heads;
  args.cos = cos.data(), args.sin = sin.data(), args.half = shape.half;
  args.q = q.data(), args.q_stride = data.q_stride;
  args.fresh = fresh.data();
  args.out = out.data(), args.out_stride = out_stride;
  if (!cuda::compressed_attend_takes(args)) return HostArray<float>(0);
  for (int64_t first = 0; first < data.tokens; first += group_tokens) {
    cuda::CompressedGroup group;
    group.first = first;
    group.count = std::min(group_tokens, data.tokens - first);
    group.chosen = chosen.data() + first * shape.kept;
    cuda::compressed_attend(args, group, {scale_of(shape), shape.sinks ? sinks.data() : nullptr},
                            context.stream.handle());
  }
  if (!out.intact()) context.report.check(shape.name(), "wrote outside out");
  return out.read();
}

// Of a head of a token, all dimensions.
std::vector<double> exact(const Shape& shape, const Data& data, const std::vector<const bf16*>& rows, int64_t token,
                          int head) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  const float* q = data.q.data() + token * data.q_stride + int64_t{head} * shape.head_dim;
  std::vector<double> scores;
  for (const bf16* row : rows) {
    double score = 0;
    for (size_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * static_cast<double>(to_float(row[d]));
    scores.push_back(score * static_cast<double>(scale_of(shape)));
  }
  double largest = *std::max_element(scores.begin(), scores.end()), sum = 0;
  if (shape.sinks) {
    const auto sink = static_cast<double>(data.sinks[head]);
    largest = std::max(largest, sink);
    sum = std::exp(sink - largest);
  }
  std::vector<double> out(dim);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    sum += weight;
    for (size_t d = 0; d < dim; ++d) out[d] += weight * static_cast<double>(to_float(rows[i][d]));
  }
  for (double& value : out) value /= sum;
  const int64_t position = data.position[static_cast<size_t>(token)];
  for (int j = 0; j < shape.half; ++j) {  // by minus the angle
    double& x = out[dim - 2 * static_cast<size_t>(shape.half - j)];
    double& y = out[dim - 2 * static_cast<size_t>(shape.half - j) + 1];
    const auto cos = static_cast<double>(data.cos[position * shape.half + j]);
    const auto sin = static_cast<double>(data.sin[position * shape.half + j]);
    const double a = x, b = y;
    x = a * cos + b * sin;
    y = b * cos - a * sin;
  }
  return out;
}

// Every 7th token and the last of each run; of many heads the first, some and the last.
double exact_error(const Shape& shape, const Data& data, const HostArray<float>& got) {
  const int64_t out_stride = int64_t{shape.heads} * shape.head_dim + 2;
  double worst = 0;
  for (const SequenceRun& run : data.runs) {
    for (int i = 0; i < run.count; ++i) {
      if (i % 7 != 0 && i + 1 != run.count) continue;
      const int64_t token = run.token + i;
      const std::vector<const bf16*> rows = data.rows_of(shape, run, token);
      for (int head = 0; head < shape.heads; ++head) {
        if (head % 9 != 0 && head + 2 < shape.heads) continue;
        const std::vector<double> expected = exact(shape, data, rows, token, head);
        for (int d = 0; d < shape.head_dim; ++d) {
          const auto value = static_cast<double>(got[token * out_stride + int64_t{head} * shape.head_dim + d]);
          const double error = std::abs(value - expected[static_cast<size_t>(d)]);
          worst = std::isfinite(error) ? std::max(worst, error) : 1e9;
        }
      }
    }
  }
  return worst;
}

void check_shape(Context& context, const Shape& shape, const std::vector<SequenceRun>& runs) {
  Random random(static_cast<uint64_t>(shape.heads + shape.head_dim + runs[0].position));
  const Data data(shape, runs, random);
  const HostArray<float> out = attend(context, shape, data, data.tokens);
  if (out.size() == 0) return context.report.skip(shape.name(), "not with this device's shared memory");
  const double error = exact_error(shape, data, out);
  context.report.check(shape.name(), error <= kLimit ? "" : "error " + std::to_string(error));
  for (const int64_t group : {int64_t{5}, int64_t{64}}) {
    const std::string text = difference(attend(context, shape, data, group), out);
    context.report.check("attention to entries in other groups",
                         text.empty() ? text : shape.name() + ", " + std::to_string(group) + " tokens: " + text);
  }
}

}  // namespace

void test_compressed_attend(Context& context) {
  // Position, token (counted by Data), count, sequence.
  const std::vector<std::vector<SequenceRun>> all_runs = {
      {{0, 0, 1, 0}}, {{0, 0, 150, 1}}, {{513, 0, 70, 2}}, {{63, 0, 2, 0}, {0, 0, 40, 2}, {300, 0, 65, 1}}};
  for (const Shape& shape :
       {Shape{64, 512, 128, 0, 0, true, 32}, Shape{64, 512, 128, 4, 32, true, 32}, Shape{65, 512, 128, 128, 0, false},
        Shape{1, 512, 7, 4, 9, false}, Shape{4, 128, 64, 4, 0, false}, Shape{64, 128, 65, 4, 5, true},
        Shape{65, 128, 1, 0, 0, true}, Shape{1, 64, 128, 4, 16, true}, Shape{4, 64, 16, 8, 0, true},
        Shape{64, 64, 33, 0, 0, false}, Shape{65, 64, 20, 2, 100, false}, Shape{4, 32, 8, 4, 6, true},
        Shape{17, 256, 100, 4, 64, true}, Shape{3, 200, 31, 4, 0, false}}) {
    for (const std::vector<SequenceRun>& runs : all_runs) check_shape(context, shape, runs);
  }
}

}  // namespace ft::device_test
