// Checked against: the formats' own decode_row, weight for weight (rows of the unit matrix as activations, so every
// place of k and every code is seen alone); sums in float64; and the products themselves with fewer or more rows, whose
// bits may not change.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cuda/prefill.h"
#include "kernels/formats/fp8_block.h"
#include "kernels/ops/activations.h"
#include "tests/device/prefill_lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

// Of the error, against the root of the sum of squares of the terms: fp32 sums of a few thousand terms.
constexpr double kSumLimit = 2e-5;
// The activation is rounded to bf16: 2^-8 of itself, and a little for approximate exp and division.
constexpr double kActivatedLimit = 4.1e-3;

struct Matrix {
  PackedLayout layout;
  HostArray<std::byte> bytes{0};
  std::vector<float> weights;  // (rows, cols) without the global

  Matrix(const FormatInfo& format, int64_t rows, int64_t cols, Weights kind, Random& random)
      : layout(format.layout(rows, cols)), bytes(layout.bytes), weights(static_cast<size_t>(rows * cols)) {
    fill_matrix(layout, kind, random, bytes.data());
    if (kind == Weights::kAny && format.id == FormatId::kFp8Block) repeat_scales();
    for (int64_t row = 0; row < rows; ++row) {
      format.decode_row(layout, bytes.data(), row, weights.data() + row * cols);
    }
  }

  // The tiles of 128 rows have the same scales (kernels/formats/fp8_block.h).
  void repeat_scales() {
    constexpr int64_t kTiles = formats::fp8_block::kScaleBlock / kRowsPerTile;
    std::byte* scales = bytes.data() + layout.scales_offset;
    for (int64_t tile = 0; tile < layout.row_tiles; ++tile) {
      if (tile % kTiles == 0) continue;
      std::copy_n(scales + tile / kTiles * kTiles * layout.scale_bytes_per_tile, layout.scale_bytes_per_tile,
                  scales + tile * layout.scale_bytes_per_tile);
    }
  }
};

struct LinearRun {
  const PackedMatrix& w;
  const DeviceArray<uint32_t>& x;
  int64_t first = 0, tokens = 0;
};

HostArray<float> linear(Context& context, const LinearRun& run, int64_t stride) {
  const DeviceArray<float> y(context, run.tokens * stride);
  cuda::PrefillLinearArgs args;
  args.w = run.w;
  args.x = run.x.data() + run.first * activation_words(run.w.layout.cols);
  args.tokens = run.tokens;
  args.y = y.data();
  args.y_stride = stride;
  cuda::prefill_linear(args, context.stream.handle());
  HostArray<float> result = y.read();
  if (!y.intact()) context.report.check("prefill products", "wrote outside y");
  return result;
}

// `alone`: no weight of the row is infinite or NaN. Products with denormal factors may count or not.
bool is_weight(float got, float expected, bool alone) {
  if (!std::isfinite(expected)) return !std::isfinite(got);
  if (!alone && !std::isfinite(got)) return true;
  return got == expected || (std::abs(expected) < 0x1p-110f && std::abs(got) <= std::abs(expected));
}

// y of the unit matrix is W transposed; a row with an infinite or NaN weight may be all NaN.
void check_weights(Context& context, const FormatInfo& format, int64_t rows, int64_t cols, Weights kind) {
  Random random(static_cast<uint64_t>(rows * 1000 + cols));
  const Matrix matrix(format, rows, cols, kind, random);
  std::vector<float> unit(static_cast<size_t>(cols * cols));
  for (int64_t i = 0; i < cols; ++i) unit[static_cast<size_t>(i * cols + i)] = 1.0f;
  HostArray<uint32_t> words(cols * activation_words(cols));
  context.cpu.pack_activations({unit.data(), cols, cols, cols, words.data()});
  const DeviceArray<std::byte> bytes(context, matrix.bytes);
  const DeviceArray<uint32_t> x(context, words);
  const PackedMatrix w{matrix.layout, bytes.data(), 1.0f};
  const HostArray<float> y = linear(context, {w, x, 0, cols}, rows);
  std::string text;
  for (int64_t row = 0; row < rows && text.empty(); ++row) {
    const float* expected = matrix.weights.data() + row * cols;
    const bool finite = std::all_of(expected, expected + cols, [](float v) { return std::isfinite(v); });
    for (int64_t k = 0; k < cols && text.empty(); ++k) {
      const float got = y[k * rows + row];
      if (!is_weight(got, expected[k], finite)) {
        text = "row " + std::to_string(row) + " k " + std::to_string(k) + ": " + std::to_string(got) + " instead of " +
               std::to_string(expected[k]);
      }
    }
  }
  context.report.check("prefill weights " + std::string(format.name),
                       text.empty() ? text : std::to_string(rows) + " x " + std::to_string(cols) + " " + text);
}

// Activations as the device reads them, in order of k.
std::vector<float> unpacked(const HostArray<uint32_t>& words, int64_t tokens, int64_t cols) {
  std::vector<float> x(static_cast<size_t>(tokens * cols));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < cols; ++k) {
      const uint32_t word = words[t * activation_words(cols) + k / 256 * 128 + k % 16 / 2 * 16 + k % 256 / 16];
      x[static_cast<size_t>(t * cols + k)] = std::bit_cast<float>(k % 2 == 0 ? word << 16 : word & 0xffff0000u);
    }
  }
  return x;
}

struct Exact {
  double sum = 0, scale = 0;
};
Exact exact_dot(const float* w, const float* x, int64_t cols) {
  double sum = 0, squares = 0;
  for (int64_t k = 0; k < cols; ++k) {
    const double term = static_cast<double>(w[k]) * static_cast<double>(x[k]);
    sum += term;
    squares += term * term;
  }
  return {sum, std::sqrt(squares)};
}

void check_linear(Context& context, const FormatInfo& format, int64_t rows, int64_t cols, int64_t tokens) {
  Random random(static_cast<uint64_t>(rows * 31 + cols * 7 + tokens));
  const Matrix matrix(format, rows, cols, Weights::kOrdinary, random);
  const HostArray<uint32_t> words = random_rows(context, tokens, cols, Activations::kNormal, random);
  const std::vector<float> x = unpacked(words, tokens, cols);
  const DeviceArray<std::byte> bytes(context, matrix.bytes);
  const DeviceArray<uint32_t> device_x(context, words);
  const PackedMatrix w{matrix.layout, bytes.data(), random_global(random)};
  const int64_t stride = rows + 3;
  const HostArray<float> y = linear(context, {w, device_x, 0, tokens}, stride);
  double worst = 0;
  for (int64_t t = 0; t < tokens; t += 1 + tokens / 40) {
    for (int64_t row = 0; row < rows; ++row) {
      const Exact exact = exact_dot(matrix.weights.data() + row * cols, x.data() + t * cols, cols);
      const double got = static_cast<double>(y[t * stride + row]) / static_cast<double>(w.global);
      worst = std::max(worst, std::abs(got - exact.sum) / exact.scale);
    }
  }
  const std::string what =
      std::to_string(rows) + " x " + std::to_string(cols) + ", " + std::to_string(tokens) + " rows";
  const std::string name(format.name);
  context.report.check("prefill sums " + name,
                       worst <= kSumLimit ? "" : what + ": error " + std::to_string(worst * 1e6) + "e-6");
  // Any other number of rows, at any place of the tile.
  for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{17}, int64_t{64}, int64_t{65}, int64_t{127}}) {
    const int64_t first = tokens > count ? (tokens - count) * 2 / 3 : 0;
    const int64_t own = std::min(count, tokens - first);
    const HostArray<float> part = linear(context, {w, device_x, first, own}, stride);
    HostArray<float> expected(own * stride);
    std::copy_n(y.data() + first * stride, own * stride, expected.data());
    const std::string text = difference(part, expected);
    context.report.check("prefill rows alone " + name,
                         text.empty() ? text : what + ", " + std::to_string(own) + ": " + text);
  }
}

// Bias and addition: one fp32 rounding each, on top of the plain product's bits.
void check_epilogue(Context& context, const FormatInfo& format) {
  Random random(77);
  constexpr int64_t kRows = 203, kCols = 96, kTokens = 37, kStride = 209;
  const Matrix matrix(format, kRows, kCols, Weights::kOrdinary, random);
  const DeviceArray<std::byte> bytes(context, matrix.bytes);
  const DeviceArray<uint32_t> x(context, random_rows(context, kTokens, kCols, Activations::kNormal, random));
  const PackedMatrix w{matrix.layout, bytes.data(), 0.75f};
  const HostArray<float> plain = linear(context, {w, x, 0, kTokens}, kStride);
  const HostArray<float> bias = random_floats(random, test::Values::kNormal, kRows);
  const HostArray<float> before = random_floats(random, test::Values::kNormal, kTokens * kStride);
  const DeviceArray<float> device_bias(context, bias);
  const DeviceArray<float> y(context, before);
  cuda::PrefillLinearArgs args{w, x.data(), kTokens, device_bias.data(), y.data(), kStride, true};
  cuda::prefill_linear(args, context.stream.handle());
  HostArray<float> expected(kTokens * kStride);
  for (int64_t i = 0; i < kTokens * kStride; ++i) {
    const int64_t row = i % kStride;
    expected[i] = row < kRows ? before[i] + (plain[i] + bias[row]) : before[i];
  }
  check_same(context, "prefill bias and addition", std::string(format.name), y, expected);
}

// Groups in one launch against a launch for each of them, over the same columns packed by themselves.
void check_groups(Context& context, const FormatInfo& format) {
  Random random(91);
  constexpr int64_t kRows = 256, kCols = 512, kTokens = 131;
  constexpr int kGroups = 3;
  constexpr int64_t kStride = kGroups * kRows + 2, kWords = activation_words(kCols);
  const HostArray<uint32_t> words = random_rows(context, kTokens, kGroups * kCols, Activations::kNormal, random);
  const DeviceArray<uint32_t> x(context, words);
  const Matrix whole(format, kGroups * kRows, kCols, Weights::kOrdinary, random);
  const DeviceArray<std::byte> bytes(context, whole.bytes);
  const PackedMatrix w{whole.layout, bytes.data(), 0.75f};
  if (!cuda::prefill_groups_take(whole.layout, kGroups)) {
    return context.report.check("prefill groups", std::string(format.name) + ": not taken");
  }
  HostArray<float> expected = poisoned<float>(kTokens * kStride);
  for (int group = 0; group < kGroups; ++group) {
    HostArray<uint32_t> own(kTokens * kWords);
    for (int64_t t = 0; t < kTokens; ++t) {
      std::copy_n(words.data() + (t * kGroups + group) * kWords, kWords, own.data() + t * kWords);
    }
    const DeviceArray<uint32_t> own_x(context, own);  // all rows of the matrix, of which the group's are taken
    const HostArray<float> y = linear(context, {w, own_x, 0, kTokens}, kStride);
    for (int64_t t = 0; t < kTokens; ++t) {
      std::copy_n(y.data() + t * kStride + group * kRows, kRows, expected.data() + t * kStride + group * kRows);
    }
  }
  const DeviceArray<float> y(context, kTokens * kStride);
  cuda::PrefillLinearArgs args;
  args.w = w;
  args.x = x.data();
  args.tokens = kTokens;
  args.y = y.data();
  args.y_stride = kStride;
  args.groups = kGroups;
  cuda::prefill_linear(args, context.stream.handle());
  check_same(context, "prefill groups", std::string(format.name), y, expected);
}

struct ExpertCase {
  int64_t hidden, intermediate;
  int64_t tokens;
  int experts, top_k;
};

// Distinct experts per token; expert 0 gets none, expert 1 one token's, the others what chance gives.
HostArray<int32_t> random_ids(const ExpertCase& shape, Random& random) {
  HostArray<int32_t> ids(shape.tokens * shape.top_k);
  std::vector<int32_t> experts(static_cast<size_t>(shape.experts));
  for (int64_t t = 0; t < shape.tokens; ++t) {
    std::iota(experts.begin(), experts.end(), 0);
    experts.erase(experts.begin(), experts.begin() + 2);
    if (t == 0) ids[0] = 1;
    for (int slot = t == 0 ? 1 : 0; slot < shape.top_k; ++slot) {
      const size_t pick = random.below(experts.size());
      ids[t * shape.top_k + slot] = experts[pick];
      experts.erase(experts.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    experts.resize(static_cast<size_t>(shape.experts));
  }
  return ids;
}

// Everything one call needs, over tokens [first, first + tokens) of a longer input.
struct ExpertResult {
  HostArray<uint32_t> activated{0};
  HostArray<float> out{0};
};

ExpertResult run_experts(Context& context, const ExpertCase& shape, const ExpertLayout& layout,
                         const DeviceArray<std::byte>& blobs, const HostArray<int32_t>& ids,
                         const HostArray<uint32_t>& x, int64_t first, int64_t tokens, int split) {
  const int64_t pairs = tokens * shape.top_k;
  HostArray<int32_t> own_ids(pairs);
  std::copy_n(ids.data() + first * shape.top_k, pairs, own_ids.data());
  HostArray<uint32_t> own_x(tokens * activation_words(shape.hidden));
  std::copy_n(x.data() + first * activation_words(shape.hidden), own_x.size(), own_x.data());
  PrefillListArrays lists(context, own_ids, shape.experts);
  HostArray<const std::byte*> by_item(shape.experts);
  for (int i = 0; i < shape.experts; ++i) by_item[i] = blobs.data() + lists.expert_of_item[i] * layout.bytes;
  const DeviceArray<const std::byte*> device_items(context, by_item);
  const DeviceArray<uint32_t> device_x(context, own_x);
  const DeviceArray<uint32_t> activated(context, HostArray<uint32_t>(pairs * activation_words(shape.intermediate)));
  const int64_t stride = shape.hidden + 2;
  const DeviceArray<float> out(context, pairs * stride);
  cuda::PrefillExpertArgs args;
  args.layout = layout;
  args.blobs = device_items.data();
  args.lists = lists.view();
  args.pairs = pairs;
  args.top_k = shape.top_k;
  args.x = device_x.data();
  args.activated = activated.data();
  args.out = out.data();
  args.out_stride = stride;
  for (const auto& [begin, end] : {std::pair{0, split}, std::pair{split, shape.experts}}) {
    args.item_begin = begin;
    args.item_end = end;
    cuda::prefill_gate_up(args, context.stream.handle());
    cuda::prefill_down(args, context.stream.handle());
  }
  ExpertResult result{activated.read(), out.read()};
  if (!activated.intact() || !out.intact()) context.report.check("prefill experts", "wrote outside an array");
  return result;
}

// kernels/ops/glu.h in float64; the largest slope of value and gate's part says how an error of the sums shows.
double gated(const Glu& how, double g, double u) {
  const double limit = static_cast<double>(how.limit);
  if (how.kind == GluKind::kSiluClamped || how.kind == GluKind::kOss) {
    g = std::min(g, limit);
    u = std::clamp(u, -limit, limit);
  }
  switch (how.kind) {
    case GluKind::kGeluTanh:
      return 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
    case GluKind::kOss:
      return g / (1 + std::exp(-1.702 * g)) * (u + 1);
    default:
      return g / (1 + std::exp(-g)) * u;
  }
}

void check_experts(Context& context, const FormatInfo& format, const ExpertCase& shape, const ExpertForm& form) {
  Random random(static_cast<uint64_t>(shape.hidden + shape.tokens));
  const ExpertLayout layout = expert_layout(format.id, shape.hidden, shape.intermediate, form);
  HostArray<std::byte> bytes(layout.bytes * shape.experts);
  for (int e = 0; e < shape.experts; ++e) {
    fill_expert(layout, Weights::kOrdinary, random, bytes.data() + e * layout.bytes);
  }
  const DeviceArray<std::byte> blobs(context, bytes);
  const HostArray<int32_t> ids = random_ids(shape, random);
  const HostArray<uint32_t> x = random_rows(context, shape.tokens, shape.hidden, Activations::kNormal, random);
  const ExpertResult all = run_experts(context, shape, layout, blobs, ids, x, 0, shape.tokens, shape.experts / 2);
  const std::string name(format.name);
  const std::vector<float> in = unpacked(x, shape.tokens, shape.hidden);
  const std::vector<float> act = unpacked(all.activated, shape.tokens * shape.top_k, shape.intermediate);
  const int64_t stride = shape.hidden + 2;
  double worst_up = 0, worst_down = 0;
  std::vector<float> gate(static_cast<size_t>(shape.hidden)), up(gate), down(static_cast<size_t>(shape.intermediate));
  for (int64_t pair = 0; pair < shape.tokens * shape.top_k; pair += pair < 8 ? 1 : 61) {
    const std::byte* blob = bytes.data() + ids[pair] * layout.bytes;
    const PackedMatrix g = expert_gate(layout, blob), u = expert_up(layout, blob), d = expert_down(layout, blob);
    for (int64_t row = 0; row < shape.intermediate; ++row) {
      format.decode_row(layout.gate, g.data, row, gate.data());
      format.decode_row(layout.gate, u.data, row, up.data());
      const float* from = in.data() + pair / shape.top_k * shape.hidden;
      const Exact eg = exact_dot(gate.data(), from, shape.hidden), eu = exact_dot(up.data(), from, shape.hidden);
      const auto bias_of = [row](const PackedMatrix& m) {
        return m.bias == nullptr ? 0.0 : static_cast<double>(m.bias[row]);
      };
      const double gate_value = eg.sum * static_cast<double>(g.global) + bias_of(g);
      const double up_value = eu.sum * static_cast<double>(u.global) + bias_of(u);
      const double expected = gated(form.glu, gate_value, up_value);
      const double unit = (eg.scale * std::abs(static_cast<double>(g.global)) + std::abs(bias_of(g))) *
                          (eu.scale * std::abs(static_cast<double>(u.global)) + std::abs(bias_of(u)) + 1);
      const double got = static_cast<double>(act[static_cast<size_t>(pair * shape.intermediate + row)]);
      worst_up = std::max(worst_up, std::abs(got - expected) / std::max(std::abs(expected), 0.05 * unit));
    }
    for (int64_t row = 0; row < shape.hidden; ++row) {
      format.decode_row(layout.down, d.data, row, down.data());
      const Exact exact = exact_dot(down.data(), act.data() + pair * shape.intermediate, shape.intermediate);
      const double global = static_cast<double>(d.global);
      const double bias = d.bias == nullptr ? 0.0 : static_cast<double>(d.bias[row]);
      const double error = static_cast<double>(all.out[pair * stride + row]) - (exact.sum * global + bias);
      worst_down = std::max(worst_down, std::abs(error) / (exact.scale * std::abs(global) + std::abs(bias)));
    }
  }
  context.report.check("prefill gate and up " + name,
                       worst_up <= kActivatedLimit ? "" : "error " + std::to_string(worst_up));
  context.report.check("prefill down " + name, worst_down <= kSumLimit ? "" : "error " + std::to_string(worst_down));
  // Other tokens beside them, another split of the items.
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{0, 1}, {3, 18}, {shape.tokens / 2, shape.tokens / 3}}) {
    const ExpertResult part = run_experts(context, shape, layout, blobs, ids, x, first, count, 1);
    HostArray<float> expected(part.out.size());
    std::copy_n(all.out.data() + first * shape.top_k * stride, expected.size(), expected.data());
    const std::string text = difference(part.out, expected);
    context.report.check("prefill experts alone " + name, text);
  }
}

// Against merge of a decode step, which are tested against the CPU's, bit for bit.
void check_merge(Context& context, int64_t tokens, int top_k, int64_t cols, int64_t stride) {
  Random random(static_cast<uint64_t>(tokens * 100 + top_k));
  const HostArray<float> shared = random_floats(random, test::Values::kNormal, tokens * stride);
  const HostArray<float> gates = random_floats(random, test::Values::kNormal, tokens);
  const DeviceArray<float> device_shared(context, shared), device_gates(context, gates);
  const HostArray<float> rows = random_floats(random, test::Values::kSpecial, tokens * top_k * stride);
  const HostArray<float> weights = random_floats(random, test::Values::kNormal, tokens * top_k);
  HostArray<float> residual = random_floats(random, test::Values::kNormal, tokens * stride);
  HostArray<int32_t> ids(tokens * top_k, 1);
  for (int64_t t = 0; t < tokens; t += 3) ids[t * top_k + top_k - 1] = -1;
  const DeviceArray<float> device_rows(context, rows), device_weights(context, weights);
  const DeviceArray<int32_t> device_ids(context, ids);
  cuda::MergeArgs merge;
  merge.ids = device_ids.data();
  merge.weights = device_weights.data();
  merge.tokens = tokens;
  merge.top_k = top_k;
  merge.rows = device_rows.data();
  merge.rows_stride = stride;
  merge.cols = cols;
  merge.out_stride = stride;
  for (int form = 0; form < 6; ++form) {
    const DeviceArray<float> y(context, residual), expected(context, residual);
    merge.out = expected.data();
    merge.add = form % 2 == 0;
    merge.shared = {};
    if (form >= 2) merge.shared = {device_shared.data(), stride, form >= 4 ? device_gates.data() : nullptr};
    cuda::prefill_merge({device_ids.data(), device_weights.data(), tokens, top_k, device_rows.data(), stride, cols,
                         y.data(), stride, merge.add, merge.shared},
                        context.stream.handle());
    cuda::merge(merge, context.stream.handle());
    check_same(context, "prefill merge", std::to_string(cols) + " cols", y, expected.read());
  }
}

void check_lists(Context& context, int64_t tokens, int experts, int top_k) {
  Random random(static_cast<uint64_t>(tokens + experts));
  HostArray<int32_t> ids(tokens * top_k);
  for (int64_t i = 0; i < ids.size(); ++i) {
    ids[i] = random.below(50) == 0 ? -1 : static_cast<int32_t>(random.below(static_cast<uint64_t>(experts)));
  }
  PrefillListArrays lists(context, ids, experts);
  const HostArray<int32_t> order = lists.order.read(), begins = lists.tile_begin.read();
  const HostArray<cuda::PrefillTile> tiles = lists.tiles.read();
  std::string text;
  int32_t place = 0, tile = 0;
  for (int item = 0; item < experts && text.empty(); ++item) {
    if (begins[item] != tile)
      text = "tiles of item " + std::to_string(item) + " begin at " + std::to_string(begins[item]);
    std::vector<int32_t> own;
    for (int64_t pair = 0; pair < ids.size(); ++pair) {
      if (ids[pair] == lists.expert_of_item[item]) own.push_back(static_cast<int32_t>(pair));
    }
    for (size_t i = 0; i < own.size(); ++i, ++place) {
      if (order[place] != own[i]) text = "order of item " + std::to_string(item);
      if (i % cuda::kPrefillTileTokens != 0) continue;
      const auto rest = static_cast<int32_t>(std::min<size_t>(cuda::kPrefillTileTokens, own.size() - i));
      const cuda::PrefillTile& got = tiles[tile++];
      if (got.item != item || got.begin != place || got.count != rest) text = "tile of item " + std::to_string(item);
    }
  }
  if (text.empty() && begins[experts] != tile) text = "end of the tiles";
  if (text.empty() && !lists.intact()) text = "wrote outside a list";
  context.report.check("prefill lists", text.empty() ? text : std::to_string(tokens) + " tokens: " + text);
}

}  // namespace

void test_prefill_lists(Context& context) {
  check_merge(context, 37, 8, 512, 512);
  check_merge(context, 5, 10, 301, 303);
  check_merge(context, 9, 3, 64, 66);
  check_lists(context, 1, 4, 2);
  check_lists(context, 300, 5, 3);
  check_lists(context, 1000, 128, 8);
  check_lists(context, 2000, 512, 10);
  check_lists(context, 40, 4096, 64);
}

void test_prefill_products(Context& context) {
  for (const FormatInfo& format : all_formats()) {
    check_weights(context, format, 130, 32, Weights::kOrdinary);
    check_weights(context, format, 2049, 32, Weights::kAny);
    check_weights(context, format, 257, 672, Weights::kOrdinary);
    if (takes_cols(format, 400)) check_weights(context, format, 68, 400, Weights::kOrdinary);
    if (takes_cols(format, 301)) check_weights(context, format, 5, 301, Weights::kOrdinary);
    check_linear(context, format, 256, 2048, 300);
    check_linear(context, format, 301, 640, 129);
    check_linear(context, format, 129, 1056, 70);
    if (takes_cols(format, 333)) check_linear(context, format, 131, 333, 40);
    check_epilogue(context, format);
    check_groups(context, format);
    const ExpertForm oss{{GluKind::kOss, 1.5f}, true};
    check_experts(context, format, {512, 192, 200, 8, 3}, {});
    check_experts(context, format, {288, 160, 70, 6, 2}, {});
    check_experts(context, format, {288, 160, 70, 6, 2}, oss);
    check_experts(context, format, {288, 160, 70, 6, 2}, {{GluKind::kSiluClamped, 0.75f}, false});
    check_experts(context, format, {512, 192, 70, 6, 2}, {{GluKind::kGeluTanh, 0}, false});
    if (takes_cols(format, 300)) check_experts(context, format, {300, 70, 33, 5, 2}, oss);
  }
}

}  // namespace ft::device_test
