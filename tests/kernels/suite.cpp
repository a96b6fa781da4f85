#include "tests/kernels/suite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "kernels/base/error.h"

namespace ft::test {
namespace {

std::vector<OpCase>& case_list() {
  static std::vector<OpCase> cases;
  return cases;
}

bool same_half(uint16_t a, uint16_t b) {
  const auto is_nan = [](uint16_t x) { return (x & 0x7fffu) > 0x7f80u; };
  return a == b || (is_nan(a) && is_nan(b));
}

std::string describe(size_t index, uint32_t got, uint32_t expected) {
  std::ostringstream text;
  text << "element " << index << ": got 0x" << std::hex << got << " (" << std::bit_cast<float>(got) << "), expected 0x"
       << expected << " (" << std::bit_cast<float>(expected) << ")";
  return text.str();
}

}  // namespace

std::vector<uint8_t> guarded_bytes(size_t lead, size_t size, size_t tail, uint8_t mark) {
  std::vector<uint8_t> bytes(lead + size + tail, mark);
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(lead), size, uint8_t{0});
  return bytes;
}

std::span<const OpCase> op_cases() { return case_list(); }

bool register_case(const OpCase& op_case) {
  case_list().push_back(op_case);
  return true;
}

const KernelDesc& reference_of(OpId op, int format) {
  const KernelDesc* kernel = find_kernel(op, format, Isa::kScalar);
  FT_CHECK(kernel != nullptr);
  return *kernel;
}

bool same_pair(uint32_t a, uint32_t b) {
  return same_half(static_cast<uint16_t>(a), static_cast<uint16_t>(b)) &&
         same_half(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16));
}

std::string difference(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (!same(got[i], expected[i])) {
      return describe(i, std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]));
    }
  }
  return "";
}

std::string difference_of_pairs(std::span<const uint32_t> got, std::span<const uint32_t> expected) {
  if (got.size() != expected.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (!same_pair(got[i], expected[i])) return describe(i, got[i], expected[i]);
  }
  return "";
}

float random_with(Random& random, const Exponents& exponents) {
  if (exponents.special_in > 0 && random.below(static_cast<uint64_t>(exponents.special_in)) == 0) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSpecial[] = {0.0f,
                                  -0.0f,
                                  0x1p-127f,
                                  -0x1p-149f,
                                  0x1.fffffcp-127f,
                                  0x1p-126f,
                                  -0x1p-126f,
                                  0x1p127f,
                                  kInfinity,
                                  -kInfinity,
                                  std::numeric_limits<float>::quiet_NaN()};
    return kSpecial[random.below(std::size(kSpecial))];
  }
  const auto span = static_cast<uint64_t>(exponents.high - exponents.low + 1);
  const int exponent = exponents.low + static_cast<int>(random.below(span));
  const double magnitude = std::ldexp(1.0 + random.uniform(), exponent);
  return static_cast<float>(random.below(2) == 0 ? magnitude : -magnitude);
}

}  // namespace ft::test
