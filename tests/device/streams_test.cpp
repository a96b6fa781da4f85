// Mixed residual streams, and the choice of compressed entries. Checked against: the CPU's dot_rows, stream_factors,
// merge and index_scores, and the functions of cache_grid.h, bit for bit; for the choice a sort of these scores, with
// equal ones and NaN among them.
#include "kernels/cuda/streams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/cuda/compressed.h"
#include "kernels/ops/cache_grid.h"
#include "tests/device/lists.h"

namespace ft::device_test {
namespace {

using test::Values;

constexpr int64_t kFewTokens = 3, kPromptTokens = 67;  // 67: the kernel of prompts, and no multiple of its tokens
constexpr float kEps = 1e-6f;

struct Site {
  int streams;
  int64_t width;
  int rounds;
  bool writes;
  int64_t tokens = kFewTokens;
  std::string what() const {
    return std::to_string(tokens) + " tokens, " + std::to_string(streams) + " streams of " + std::to_string(width) +
           ", " + std::to_string(rounds) + " rounds";
  }
};

void check_site(Context& context, const Site& site, Values kind, Random& random) {
  const int64_t tokens = site.tokens;
  const int64_t n = site.streams, cols = n * site.width, logits = site.writes ? stream_logit_count(n) : n;
  const int64_t x_stride = cols + 5, to_stride = site.width + 3, logits_stride = logits + 2;
  const int64_t factors_stride = 2 * n + n * n + 1;
  HostArray<float> x = random_floats(random, kind, tokens * x_stride);
  const HostArray<float> fn = random_floats(random, Values::kNormal, logits * cols);
  const HostArray<float> scale = random_floats(random, Values::kNormal, 3);
  const HostArray<float> base = random_floats(random, Values::kNormal, logits);
  const HostArray<float> from = random_floats(random, kind, tokens * to_stride);
  HostArray<float> read = poisoned<float>(tokens * to_stride), factors = poisoned<float>(tokens * factors_stride);
  HostArray<float> written = poisoned<float>(tokens * x_stride);
  std::copy_n(x.data(), x.size(), written.data());
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = x.data() + t * x_stride;
    std::vector<float> products(static_cast<size_t>(logits + 1));
    context.cpu.dot_rows({row, fn.data(), logits, cols, products.data()});
    context.cpu.dot_rows({row, row, 1, cols, products.data() + logits});
    float* own = factors.data() + t * factors_stride;
    StreamFactorsArgs args;
    args.logits = products.data();
    args.squares = products.back();
    args.cols = cols;
    args.norm_eps = kEps;
    args.scale = scale.data();
    args.base = base.data();
    args.streams = n;
    args.rounds = site.rounds;
    args.eps = kEps;
    args.read = own;
    if (site.writes) args.write = own + n, args.mix = own + 2 * n;
    context.cpu.stream_factors(args);
    std::array<const float*, kMaxStreams + 1> y{};
    for (int64_t p = 0; p < n; ++p) y[static_cast<size_t>(p)] = row + p * site.width;
    context.cpu.merge({y.data(), own, n, site.width, read.data() + t * to_stride});
    if (!site.writes) continue;
    for (int64_t p = n; p > 0; --p) y[static_cast<size_t>(p)] = y[static_cast<size_t>(p - 1)];
    y[0] = from.data() + t * to_stride;
    for (int64_t q = 0; q < n; ++q) {
      std::vector<float> weights{own[n + q]};
      weights.insert(weights.end(), own + 2 * n + q * n, own + 2 * n + (q + 1) * n);
      context.cpu.merge({y.data(), weights.data(), n + 1, site.width, written.data() + t * x_stride + q * site.width});
    }
  }
  const DeviceArray<float> device_x(context, x), device_fn(context, fn), device_scale(context, scale),
      device_base(context, base), device_from(context, from), to(context, read.size()),
      device_logits(context, tokens * logits_stride), device_factors(context, factors.size());
  cuda::StreamsReadArgs args;
  args.x = device_x.data(), args.x_stride = x_stride;
  args.tokens = tokens;
  args.streams = site.streams;
  args.width = site.width;
  args.fn = device_fn.data(), args.scale = device_scale.data(), args.base = device_base.data();
  args.writes = site.writes;
  args.rounds = site.rounds;
  args.eps = args.norm_eps = kEps;
  args.logits = device_logits.data(), args.logits_stride = logits_stride;
  args.factors = device_factors.data(), args.factors_stride = factors_stride;
  args.to = to.data(), args.to_stride = to_stride;
  cuda::streams_read(args, context.stream.handle());
  check_same(context, "streams read", site.what(), to, read);
  check_same(context, "streams read", site.what() + " factors", device_factors, factors);
  if (!site.writes) return;
  cuda::streams_write({device_x.data(), x_stride, tokens, site.streams, site.width, device_factors.data(),
                       factors_stride, device_from.data(), to_stride},
                      context.stream.handle());
  check_same(context, "streams write", site.what(), device_x, written);
}

// One token with `visible` entries of which it takes the best `kept`.
void check_choice(Context& context, int visible, int kept, bool coarse, Random& random) {
  constexpr int kHeads = 5, kDim = 24, kHeadDim = 8;
  const int entries = visible + 3;
  cuda::CompressedLayerView layer;
  layer.head_dim = kHeadDim;
  layer.window = 4;
  layer.ratio = 4;
  layer.index_dim = kDim, layer.index_heads = kHeads, layer.index_top_k = kept;
  layer.ring_rows = 4, layer.entries = entries;
  layer.sequence_elements = (layer.ring_rows + entries) * kHeadDim + entries * kDim;
  HostArray<bf16> memory(layer.sequence_elements);
  bf16* keys = memory.data() + (layer.ring_rows + entries) * kHeadDim;
  for (int64_t i = 0; i < int64_t{entries} * kDim; ++i) {
    const double value = random.normal();
    keys[i] = to_bf16(static_cast<float>(coarse ? std::round(value) : value));  // coarse: many equal scores
  }
  if (visible > 20) keys[7 * kDim + 3] = to_bf16(NAN), keys[11 * kDim] = to_bf16(NAN);
  HostArray<float> q = random_floats(random, Values::kNormal, kHeads * kDim);
  HostArray<float> weight = random_floats(random, Values::kNormal, kHeads);
  for (int64_t i = 0; i < q.size(); ++i) q[i] = coarse ? std::round(q[i]) : round_to_bf16(q[i]);
  for (int64_t i = 0; i < weight.size() && coarse; ++i) weight[i] = 1;
  HostArray<float> scores = poisoned<float>(entries);
  context.cpu.index_scores({q.data(), weight.data(), kHeads, kDim, keys, visible, scores.data()});
  std::vector<int> order(static_cast<size_t>(visible));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b])) return !std::isnan(scores[a]) && std::isnan(scores[b]);
    return scores[a] > scores[b];
  });
  std::sort(order.begin(), order.begin() + kept);
  HostArray<int32_t> expected(kept);
  std::copy_n(order.begin(), kept, expected.data());

  const DeviceArray<bf16> device_memory(context, memory);
  const DeviceArray<float> device_q(context, q), device_weight(context, weight), device_scores(context, entries);
  const DeviceArray<int32_t> chosen(context, kept), sequence(context, std::vector<int32_t>{0});
  const DeviceArray<int64_t> position(context, std::vector<int64_t>{int64_t{visible} * 4 + 1});
  layer.rows = device_memory.data();
  cuda::CompressedArgs args;
  args.layer = layer;
  args.tokens = 1;
  args.sequence = sequence.data(), args.position = position.data();
  args.max_positions = int64_t{entries} * 4;
  args.index_q = {device_q.data(), kHeads * kDim};
  args.index_weight = {device_weight.data(), kHeads};
  cuda::CompressedGroup group;
  group.count = 1;
  group.scores = device_scores.data();
  group.chosen = chosen.data();
  cuda::compressed_choose(args, group, context.stream.handle());
  const std::string what = std::to_string(kept) + " of " + std::to_string(visible) + (coarse ? ", ties" : "");
  check_same(context, "compressed entries' scores", what, device_scores, scores);
  check_same(context, "compressed entries chosen", what, chosen, expected);
}

// Rows and index vectors on the grids of kernels/ops/cache_grid.h, turned by an angle of 0.
void check_grids(Context& context, int head_dim, int index_dim, Random& random) {
  constexpr int kHeads = 2, kIndexHeads = 3, kHalf = 4, kRows = 5;
  const HostArray<float> key = random_floats(random, Values::kNormal, kRows * head_dim);
  const HostArray<float> index = random_floats(random, Values::kNormal, kRows * kIndexHeads * index_dim);
  HostArray<bf16> rows(key.size());
  HostArray<float> vectors(index.size());
  std::copy_n(index.data(), index.size(), vectors.data());
  for (int token = 0; token < kRows; ++token) {
    std::vector<float> row(key.data() + token * head_dim, key.data() + (token + 1) * head_dim);
    round_cached_row(row.data(), head_dim, 2 * kHalf);
    for (int i = 0; i < head_dim; ++i) rows[token * head_dim + i] = to_bf16(row[static_cast<size_t>(i)]);
    for (int head = 0; head < kIndexHeads; ++head) {
      float* vector = vectors.data() + (token * kIndexHeads + head) * index_dim;
      round_index_vector(vector, index_dim);
      for (int i = 0; i < index_dim; ++i) vector[i] = round_to_bf16(vector[i]);
    }
  }
  const DeviceArray<float> device_key(context, key), device_index(context, index);
  const DeviceArray<float> q(context, random_floats(random, Values::kNormal, kRows * kHeads * head_dim));
  const DeviceArray<float> weight(context, random_floats(random, Values::kNormal, kRows * kIndexHeads));
  const DeviceArray<float> cos(context, std::vector<float>(kRows * kHalf, 1.0f));
  const DeviceArray<float> sin(context, std::vector<float>(kRows * kHalf, 0.0f));
  const DeviceArray<int64_t> position(context, std::vector<int64_t>{0, 1, 2, 3, 4});
  const DeviceArray<bf16> fresh(context, rows.size());
  cuda::CompressedArgs args;
  args.layer.head_dim = head_dim;
  args.layer.index_dim = index_dim, args.layer.index_heads = kIndexHeads;
  args.tokens = kRows, args.heads = kHeads;
  args.position = position.data();
  args.norm_eps = kEps;
  args.cos = cos.data(), args.sin = sin.data(), args.half = kHalf;
  args.on_grids = true;
  args.hadamard_scale = hadamard_scale(index_dim);
  args.q = q.data(), args.q_stride = kHeads * head_dim;
  args.key = device_key.data(), args.key_stride = head_dim;
  args.fresh = fresh.data();
  args.index_q = {device_index.data(), kIndexHeads * index_dim};
  args.index_weight = {weight.data(), kIndexHeads};
  cuda::compressed_prepare(args, context.stream.handle());
  const std::string what = std::to_string(head_dim) + " and " + std::to_string(index_dim) + " dimensions";
  check_same(context, "rows on a grid", what, fresh, rows);
  check_same(context, "index vectors on a grid", what, device_index, vectors);
}

}  // namespace

void test_streams(Context& context) {
  Random random(71);
  for (const Values kind : test::kAllValues) {
    for (const Site& site :
         {Site{4, 4096, 20, true}, Site{4, 4096, 1, false}, Site{1, 7, 1, true}, Site{3, 33, 20, true},
          Site{8, 300, 3, true}, Site{8, 65, 1, false}, Site{4, 4096, 20, true, kPromptTokens},
          Site{3, 33, 1, true, kPromptTokens}, Site{8, 300, 1, true, kPromptTokens},
          Site{2, 257, 1, false, kPromptTokens}, Site{1, 7, 1, true, kPromptTokens}}) {
      check_site(context, site, kind, random);
    }
  }
  for (const auto& [head_dim, index_dim] : {std::pair{512, 128}, {96, 16}, {32, 8}, {72, 24}}) {
    check_grids(context, head_dim, index_dim, random);
  }
  for (const bool coarse : {false, true}) {
    for (const auto& [visible, kept] :
         {std::pair{2, 1}, std::pair{65, 64}, std::pair{1000, 512}, std::pair{1025, 6}, std::pair{5000, 2048}}) {
      check_choice(context, visible, kept, coarse, random);
    }
  }
}

}  // namespace ft::device_test
