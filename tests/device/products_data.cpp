#include "tests/device/products_data.h"

#include <cmath>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/ops/activations.h"

namespace ft::device_test {
namespace {

uint32_t random_word(Random& random) { return static_cast<uint32_t>(random.next() >> 16); }

void set_word(std::byte* data, int64_t index, uint32_t word) { std::memcpy(data + index * 4, &word, 4); }

float with_exponent(Random& random, int low, int high) {
  const int exponent = low + static_cast<int>(random.below(static_cast<uint64_t>(high - low + 1)));
  const double magnitude = std::ldexp(1.0 + random.uniform(), exponent);
  return static_cast<float>(random.below(2) == 0 ? magnitude : -magnitude);
}

}  // namespace

void fill_matrix(const PackedLayout& layout, Weights kind, Random& random, std::byte* data) {
  const int64_t words = layout.bytes / 4;  // a whole number: kPackedAlign
  if (kind == Weights::kAny) {
    for (int64_t i = 0; i < words; ++i) set_word(data, i, random_word(random));
    return;
  }
  std::memset(data, 0, static_cast<size_t>(layout.bytes));
  format_info(layout.format).synthesize(layout, random.next(), 0, layout.row_tiles, data);
  if (kind == Weights::kOrdinary) return;
  for (int64_t i = 0; i < words; ++i) {
    if (random.below(200) == 0) set_word(data, i, random_word(random));
  }
}

float random_global(Random& random) { return with_exponent(random, -3, 3); }

void fill_expert(const ExpertLayout& layout, Weights kind, Random& random, std::byte* blob) {
  fill_matrix(layout.gate, kind, random, blob);
  fill_matrix(layout.gate, kind, random, blob + layout.up_offset);
  fill_matrix(layout.down, kind, random, blob + layout.down_offset);
  const ExpertTrailer trailer{
      .gate_global = random_global(random), .up_global = random_global(random), .down_global = random_global(random)};
  std::memcpy(blob + layout.trailer_offset, &trailer, sizeof trailer);
  if (layout.bias_offset == 0) return;
  std::memset(blob + layout.bias_offset, 0, static_cast<size_t>(layout.trailer_offset - layout.bias_offset));
  for (int64_t i = 0; i < 2 * layout.intermediate + layout.hidden; ++i) {
    const auto bias = static_cast<float>(random.normal());
    std::memcpy(blob + layout.bias_offset + i * 4, &bias, sizeof bias);
  }
}

float random_activation(Activations kind, Random& random) {
  switch (kind) {
    case Activations::kNormal:
      break;
    case Activations::kSparseSpecial:
      if (random.below(25) == 0) return test::random_value(random, test::Values::kSpecial);  // one in 8 of these is
      break;
    case Activations::kTiny:
      return test::random_value(random, test::Values::kTiny);
    case Activations::kEdge:
      return with_exponent(random, -126, -117);
    case Activations::kHuge:
      return with_exponent(random, 100, 126);
    case Activations::kWide:
      return test::random_value(random, test::Values::kWide);
  }
  return static_cast<float>(random.normal());
}

HostArray<uint32_t> random_rows(Context& context, int64_t tokens, int64_t cols, Activations kind, Random& random) {
  std::vector<float> x(static_cast<size_t>(tokens * cols));
  for (float& value : x) value = random_activation(kind, random);
  HostArray<uint32_t> words(tokens * activation_words(cols));
  context.cpu.pack_activations({x.data(), cols, tokens, cols, words.data()});
  return words;
}

bool takes_cols(const FormatInfo& format, int64_t cols) {
  try {
    format.layout(4, cols);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace ft::device_test
