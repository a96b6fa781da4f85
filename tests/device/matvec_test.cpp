// Checked against: the CPU's matvec kernel, bit for bit, over formats, ragged shapes, token counts and kinds of values.
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

struct Case {
  int64_t rows, cols, tokens;
  bool bias;
};

// y rows are 3 apart from each other's end; what lies between stays as it was.
constexpr int64_t kGap = 3;

void check_matvec(Context& context, const FormatInfo& format, const Mix& mix, const Case& c, uint64_t seed) {
  Random random(seed);
  const PackedLayout layout = format.layout(c.rows, c.cols);
  HostArray<std::byte> w(layout.bytes);
  fill_matrix(layout, mix.weights, random, w.data());
  const float global = random_global(random);
  const HostArray<uint32_t> x = random_rows(context, c.tokens, c.cols, mix.activations, random);
  HostArray<float> bias(c.rows);
  for (int64_t i = 0; i < c.rows; ++i) bias[i] = random_activation(mix.activations, random);

  const int64_t stride = c.rows + kGap;
  HostArray<float> expected = poisoned<float>(c.tokens * stride);
  std::vector<const uint32_t*> x_rows;
  std::vector<float*> y_rows;
  for (int64_t t = 0; t < c.tokens; ++t) {
    x_rows.push_back(x.data() + t * activation_words(c.cols));
    y_rows.push_back(expected.data() + t * stride);
  }
  const PackedMatrix host{layout, w.data(), global};
  context.cpu.matvec[static_cast<int>(format.id)]({&host, x_rows.data(), c.tokens, 0, layout.row_tiles, y_rows.data()});
  for (int64_t t = 0; c.bias && t < c.tokens; ++t) {
    context.cpu.add({y_rows[static_cast<size_t>(t)], bias.data(), c.rows});
  }

  const DeviceArray<std::byte> device_w(context, w);
  const DeviceArray<uint32_t> device_x(context, x);
  const DeviceArray<float> device_bias(context, bias);
  DeviceArray<float> y(context, c.tokens * stride);
  cuda::MatvecArgs args;
  args.input.words = device_x.data();
  args.tokens = c.tokens;
  args.outputs[0] = {{layout, device_w.data(), global}, c.bias ? device_bias.data() : nullptr, y.data(), stride, false};
  args.output_count = 1;
  cuda::matvec(args, context.stream.handle());
  const std::string what = "rows " + std::to_string(c.rows) + " cols " + std::to_string(c.cols) + " tokens " +
                           std::to_string(c.tokens) + " seed " + std::to_string(seed);
  check_same(context, "matvec " + std::string(format.name) + " " + std::string(mix.name), what, y, expected);
}

}  // namespace

void test_matvec(Context& context) {
  constexpr int64_t kRows[] = {1, 3, 4, 9, 130};
  constexpr int64_t kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 17, 64};
  for (const FormatInfo& format : all_formats()) {
    uint64_t seed = 1;
    for (const Mix& mix : kMixes) {
      for (const int64_t cols : {1,   2,   15,  16,  17,  31,  32,  48,  64,  127, 128, 129,  160,  240, 255,
                                 256, 257, 272, 288, 300, 400, 480, 512, 528, 544, 640, 1024, 1056, 2048}) {
        if (!takes_cols(format, cols)) continue;
        for (const int64_t rows : kRows) {
          const int64_t tokens = kTokens[seed % std::size(kTokens)];
          check_matvec(context, format, mix, {rows, cols, tokens, seed % 3 == 0}, seed);
          ++seed;
        }
      }
      // More tiles than the split kernel takes, and too many blocks for its shared memory.
      for (const int64_t tokens : {1, 2, 3, 8, 9}) {
        check_matvec(context, format, mix, {8194, 288, tokens, tokens == 3}, seed++);
        check_matvec(context, format, mix, {7, 32768 - 32, tokens, tokens == 3}, seed++);
      }
    }
  }
}

}  // namespace ft::device_test
