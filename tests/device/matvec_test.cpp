// Checked against: the CPU's rmsnorm, pack_activations, matvec and add kernels one after the other, bit for bit, over
// formats, ragged shapes, token counts, kinds of values, outputs of one input, and where its input is packed.
#include <algorithm>

#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

enum class Input { kWords, kRows, kNormedRows };

struct OutputCase {
  FormatId format;
  int64_t rows;
  bool bias, add;
};
struct Case {
  std::vector<OutputCase> outputs;
  int64_t cols, tokens;
  Input input;
};

// Rows are so far apart from each other's end; what lies between stays as it was.
constexpr int64_t kGap = 3;
constexpr float kEps = 1e-6f;

struct Output {
  PackedLayout layout;
  HostArray<std::byte> w{0};
  float global = 1;
  HostArray<float> bias{0}, before{0};
};

struct Problem {
  HostArray<float> x{0}, norm_w{0};
  HostArray<uint32_t> words{0};
  std::vector<Output> outputs;
};

HostArray<float> random_row(Activations kind, int64_t count, Random& random) {
  HostArray<float> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = random_activation(kind, random);
  return result;
}

Problem random_problem(Context& context, const Mix& mix, const Case& c, Random& random) {
  Problem problem;
  const int64_t stride = c.cols + kGap;
  problem.x = random_row(mix.activations, c.tokens * stride, random);
  problem.norm_w = random_row(Activations::kNormal, c.cols, random);
  problem.words = HostArray<uint32_t>(c.tokens * activation_words(c.cols));
  HostArray<float> normed(c.tokens * stride);
  if (c.input == Input::kNormedRows) {
    context.cpu.rmsnorm(
        {problem.x.data(), stride, normed.data(), stride, c.tokens, c.cols, problem.norm_w.data(), kEps});
  }
  const float* rows = c.input == Input::kNormedRows ? normed.data() : problem.x.data();
  context.cpu.pack_activations({rows, stride, c.tokens, c.cols, problem.words.data()});
  for (const OutputCase& o : c.outputs) {
    Output output;
    output.layout = format_info(o.format).layout(o.rows, c.cols);
    output.w = HostArray<std::byte>(output.layout.bytes);
    fill_matrix(output.layout, mix.weights, random, output.w.data());
    output.global = random_global(random);
    output.bias = random_row(mix.activations, o.rows, random);
    output.before = o.add ? random_row(mix.activations, c.tokens * (o.rows + kGap), random)
                          : poisoned<float>(c.tokens * (o.rows + kGap));
    problem.outputs.push_back(std::move(output));
  }
  return problem;
}

HostArray<float> expected_rows(Context& context, const Problem& problem, const Output& output, const OutputCase& o,
                               const Case& c) {
  HostArray<float> expected(output.before.size());
  std::copy_n(output.before.data(), output.before.size(), expected.data());
  HostArray<float> product(o.rows);
  const PackedMatrix matrix{output.layout, output.w.data(), output.global};
  for (int64_t t = 0; t < c.tokens; ++t) {
    const uint32_t* x = problem.words.data() + t * activation_words(c.cols);
    float* y = product.data();
    context.cpu.matvec[static_cast<int>(o.format)]({&matrix, &x, 1, 0, output.layout.row_tiles, &y});
    if (o.bias) context.cpu.add({y, output.bias.data(), o.rows});
    float* to = expected.data() + t * (o.rows + kGap);
    if (o.add) {
      context.cpu.add({to, y, o.rows});
    } else {
      std::copy_n(y, o.rows, to);
    }
  }
  return expected;
}

void check_matvec(Context& context, const std::string& group, const Mix& mix, const Case& c, uint64_t seed) {
  Random random(seed);
  const Problem problem = random_problem(context, mix, c, random);
  const DeviceArray<uint32_t> words(context, problem.words);
  const DeviceArray<float> x(context, problem.x), norm_w(context, problem.norm_w);
  DeviceArray<uint32_t> scratch(context, problem.words.size());
  cuda::MatvecArgs args;
  args.tokens = c.tokens;
  args.output_count = static_cast<int>(c.outputs.size());
  if (c.input == Input::kWords) {
    args.input.words = words.data();
  } else {
    args.input.x = x.data();
    args.input.x_stride = c.cols + kGap;
    args.input.norm_w = c.input == Input::kNormedRows ? norm_w.data() : nullptr;
    args.input.norm_eps = kEps;
    args.input.scratch = scratch.data();
  }
  std::vector<DeviceArray<std::byte>> w;
  std::vector<DeviceArray<float>> bias, y;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    const Output& output = problem.outputs[i];
    w.emplace_back(context, output.w);
    bias.emplace_back(context, output.bias);
    y.emplace_back(context, output.before);
    args.outputs[i] = {{output.layout, w[i].data(), output.global},
                       c.outputs[i].bias ? bias[i].data() : nullptr,
                       y[i].data(),
                       c.outputs[i].rows + kGap,
                       c.outputs[i].add};
  }
  cuda::matvec(args, context.stream.handle());
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    const std::string what = "output " + std::to_string(i) + " of " + std::to_string(c.outputs.size()) + " rows " +
                             std::to_string(c.outputs[i].rows) + " cols " + std::to_string(c.cols) + " tokens " +
                             std::to_string(c.tokens) + " input " + std::to_string(static_cast<int>(c.input)) +
                             " seed " + std::to_string(seed);
    check_same(context, group, what, y[i], expected_rows(context, problem, problem.outputs[i], c.outputs[i], c));
  }
}

constexpr int64_t kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 17, 64};

// One output of every shape.
void check_shapes(Context& context, const FormatInfo& format, const Mix& mix, uint64_t& seed) {
  const std::string group = "matvec " + std::string(format.name) + " " + std::string(mix.name);
  for (const int64_t cols : {1,   2,   15,  16,  17,  31,  32,  48,  64,  127, 128, 129,  160,  240, 255,
                             256, 257, 272, 288, 300, 400, 480, 512, 528, 544, 640, 1024, 1056, 2048}) {
    if (!takes_cols(format, cols)) continue;
    for (const int64_t rows : {1, 3, 4, 9, 130}) {
      const auto input = static_cast<Input>(seed % 3);
      const OutputCase output{format.id, rows, seed % 3 == 0, seed % 4 == 0};
      check_matvec(context, group, mix, {{output}, cols, kTokens[seed % std::size(kTokens)], input}, seed);
      ++seed;
    }
  }
  // Blocks of several rounds, and more blocks of k than are staged at once (which, with rows of x, is a launch of its
  // own for the packing).
  for (const int64_t tokens : {1, 2, 3, 8, 9}) {
    const OutputCase tall{format.id, 8194, tokens == 3, false}, long_rows{format.id, 7, tokens == 3, tokens == 8};
    check_matvec(context, group, mix, {{tall}, 288, tokens, static_cast<Input>(tokens % 3)}, seed++);
    check_matvec(context, group, mix, {{long_rows}, 32768 - 32, tokens, static_cast<Input>(tokens % 3)}, seed++);
  }
}

// Several outputs of one input, of one format and of two.
void check_outputs(Context& context, const FormatInfo& format, const Mix& mix, uint64_t& seed) {
  const std::string group = "matvec of several " + std::string(format.name) + " " + std::string(mix.name);
  const FormatId other = format.id == FormatId::kBf16 ? FormatId::kMxfp4 : FormatId::kBf16;
  for (const int64_t cols : {32, 544, 2048, 2560}) {
    for (const int64_t tokens : {1, 2, 5, 9}) {
      for (const Input input : {Input::kWords, Input::kRows, Input::kNormedRows}) {
        const OutputCase a{format.id, 130, true, false}, b{format.id, 5, false, true}, d{format.id, 64, true, true};
        const OutputCase e{other, 33, false, false};
        check_matvec(context, group, mix, {{a, b, d}, cols, tokens, input}, seed++);
        check_matvec(context, group, mix, {{b, e, a}, cols, tokens, input}, seed++);
      }
    }
  }
}

}  // namespace

void test_matvec(Context& context) {
  for (const FormatInfo& format : all_formats()) {
    uint64_t seed = 1;
    for (const Mix& mix : kMixes) {
      check_shapes(context, format, mix, seed);
      check_outputs(context, format, mix, seed);
    }
  }
}

}  // namespace ft::device_test
