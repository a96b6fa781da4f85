// Checked against: softmax attention in float64 over the same bf16 keys and values, and against itself with other cuts
// into tiles, whose bits may not change. What the cache holds past a sequence's end is NaN, so it must not be read.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/prefill.h"
#include "tests/device/prefill_lists.h"

namespace ft::device_test {
namespace {

// Weights and values are bf16, so an element is off by 2^-9 of the values' size at most; much less on average.
constexpr double kLimit = 6e-3;

struct Shape {
  int heads, kv_heads;
  int64_t head_dim, window;
  bool gated = false, sinks = false;
  int64_t ring = 0;  // rows of a sequence; 0: a row for every position

  int64_t query_width() const { return heads * head_dim * (gated ? 2 : 1); }
  int64_t query_stride() const { return gated ? 2 * head_dim : head_dim; }
  int64_t row(int64_t position) const { return ring == 0 ? position : position % ring; }
};

struct Run {
  int32_t sequence;
  int64_t position, count;
};

constexpr int64_t kPositions = 700;
constexpr int kSequences = 3;

struct Data {
  std::vector<Run> runs;
  int64_t tokens = 0;
  HostArray<float> q{0}, sinks{0};
  HostArray<bf16> kv{0};

  Data(const Shape& shape, const std::vector<Run>& runs_, Random& random) : runs(runs_) {
    const int64_t stride = 2 * shape.kv_heads * shape.head_dim;
    const int64_t rows = shape.ring > 0 ? shape.ring : kPositions;
    kv = HostArray<bf16>(kSequences * rows * stride);
    for (int64_t i = 0; i < kv.size(); ++i) kv[i].bits = 0x7fc0;
    for (const Run& run : runs) {
      bf16* sequence = kv.data() + run.sequence * rows * stride;
      for (int64_t p = 0; p < run.position + run.count; ++p) {
        bf16* row = sequence + shape.row(p) * stride;
        for (int64_t i = 0; i < stride; ++i) row[i] = to_bf16(static_cast<float>(random.normal()));
      }
      tokens += run.count;
    }
    sinks = random_floats(random, test::Values::kNormal, shape.heads);
    q = HostArray<float>(tokens * shape.query_width());
    for (int64_t i = 0; i < q.size(); ++i) q[i] = to_float(to_bf16(static_cast<float>(2 * random.normal())));
  }
};

std::vector<cuda::PrefillQueries> tiles_of(const std::vector<Run>& runs, int64_t rows) {
  std::vector<cuda::PrefillQueries> tiles;
  int64_t token = 0;
  for (const Run& run : runs) {
    for (int64_t at = 0; at < run.count; at += rows) {
      const int64_t count = std::min(rows, run.count - at);
      tiles.push_back(
          {run.position + at, static_cast<int32_t>(token + at), static_cast<int32_t>(count), run.sequence, 0});
    }
    token += run.count;
  }
  return tiles;
}

float scale_of(const Shape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }

HostArray<float> attend(Context& context, const Shape& shape, const Data& data, int64_t rows) {
  const int64_t width = shape.heads * shape.head_dim;
  const std::vector<cuda::PrefillQueries> tiles = tiles_of(data.runs, rows);
  const DeviceArray<cuda::PrefillQueries> device_tiles(context, tiles);
  const DeviceArray<float> q(context, data.q), sinks(context, data.sinks), out(context, data.tokens * (width + 2));
  const DeviceArray<bf16> kv(context, data.kv);
  cuda::PrefillAttentionArgs args;
  args.q = q.data();
  args.q_stride = shape.query_width();
  args.tiles = device_tiles.data();
  args.tile_count = static_cast<int>(tiles.size());
  args.heads = shape.heads;
  args.kv_heads = shape.kv_heads;
  args.head_dim = shape.head_dim;
  args.scale = scale_of(shape);
  args.window = shape.window;
  args.gated = shape.gated;
  args.sinks = shape.sinks ? sinks.data() : nullptr;
  args.kv = {kv.data(), shape.ring > 0 ? shape.ring : kPositions, shape.ring};
  args.out = out.data();
  args.out_stride = width + 2;
  cuda::prefill_attention(args, context.stream.handle());
  if (!out.intact()) context.report.check("prefill attention", "wrote outside out");
  return out.read();
}

double exact_error(const Shape& shape, const Data& data, const HostArray<float>& got) {
  const int64_t stride = 2 * shape.kv_heads * shape.head_dim, width = shape.heads * shape.head_dim;
  const int64_t rows = shape.ring > 0 ? shape.ring : kPositions;
  double worst = 0;
  int64_t token = 0;
  for (const Run& run : data.runs) {
    for (int64_t i = 0; i < run.count; ++i, ++token) {
      if (i % 13 != 0 && i + 1 != run.count) continue;
      const int64_t position = run.position + i;
      const int64_t begin = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
      for (int head = 0; head < shape.heads; ++head) {
        const float* q = data.q.data() + token * shape.query_width() + head * shape.query_stride();
        const bf16* keys =
            data.kv.data() + run.sequence * rows * stride + head / (shape.heads / shape.kv_heads) * shape.head_dim;
        std::vector<double> out(static_cast<size_t>(shape.head_dim)), weights;
        double largest = -1e300, sum = 0;
        for (int64_t t = begin; t <= position; ++t) {
          double score = 0;
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            score += static_cast<double>(q[d]) * static_cast<double>(to_float(keys[shape.row(t) * stride + d]));
          }
          weights.push_back(score * static_cast<double>(scale_of(shape)));
          largest = std::max(largest, weights.back());
        }
        if (shape.sinks) {
          const auto sink = static_cast<double>(data.sinks[head]);
          largest = std::max(largest, sink);
          sum = std::exp(sink - largest);
        }
        for (int64_t t = begin; t <= position; ++t) {
          const double e = std::exp(weights[static_cast<size_t>(t - begin)] - largest);
          sum += e;
          const bf16* value = keys + shape.row(t) * stride + shape.kv_heads * shape.head_dim;
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            out[static_cast<size_t>(d)] += e * static_cast<double>(to_float(value[d]));
          }
        }
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          const double value = static_cast<double>(got[token * (width + 2) + head * shape.head_dim + d]);
          const double gate = shape.gated ? 1 / (1 + std::exp(-static_cast<double>(q[shape.head_dim + d]))) : 1.0;
          const double error = std::abs(value - gate * out[static_cast<size_t>(d)] / sum);
          worst = std::isfinite(error) ? std::max(worst, error) : 1e9;
        }
      }
    }
  }
  return worst;
}

}  // namespace

void test_prefill_attention(Context& context) {
  const std::vector<std::vector<Run>> all_runs = {
      {{0, 0, 1}}, {{1, 0, 300}}, {{2, 513, 170}}, {{0, 63, 2}, {2, 0, 129}, {1, 5, 200}}};
  for (const Shape& shape : {Shape{8, 2, 128, 0},
                             Shape{4, 4, 64, 0},
                             Shape{6, 1, 64, 100},
                             Shape{8, 2, 128, 1},
                             Shape{4, 2, 128, 129},
                             Shape{4, 2, 16, 0},
                             Shape{2, 1, 80, 33},
                             Shape{2, 2, 8, 0},
                             Shape{8, 1, 64, 0, false, true},
                             Shape{4, 2, 128, 0, true, true},
                             Shape{6, 3, 64, 128, true, true, 448},
                             Shape{2, 1, 128, 1, false, false, 384},
                             Shape{4, 1, 256, 0},
                             Shape{4, 2, 256, 0, true},
                             Shape{2, 2, 192, 63, true, true, 384},
                             Shape{4, 1, 256, 129, false, false, 448},
                             Shape{4, 2, 512, 0},
                             Shape{2, 1, 512, 65, true},
                             Shape{2, 1, 264, 0, true, true},
                             Shape{2, 1, 504, 100, false, true, 512}}) {
    const std::string name = "prefill attention head_dim " + std::to_string(shape.head_dim) + " window " +
                             std::to_string(shape.window) + (shape.gated ? " gated" : "") +
                             (shape.sinks ? " sinks" : "") + (shape.ring > 0 ? " ring" : "");
    if (!cuda::prefill_attention_takes(shape.head_dim)) {
      context.report.skip(name, "not with this device's shared memory");
      continue;
    }
    for (const std::vector<Run>& runs : all_runs) {
      Random random(static_cast<uint64_t>(shape.head_dim + runs[0].position));
      const Data data(shape, runs, random);
      const HostArray<float> out = attend(context, shape, data, cuda::kPrefillQueryRows);
      const double error = exact_error(shape, data, out);
      context.report.check(name, error <= kLimit ? "" : "error " + std::to_string(error));
      for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{64}}) {
        if (rows == 1 && data.tokens > 200) continue;
        const std::string text = difference(attend(context, shape, data, rows), out);
        context.report.check(name + ", other tiles", text.empty() ? text : std::to_string(rows) + " rows: " + text);
      }
    }
  }
}

}  // namespace ft::device_test
