#include "tests/kernels/suite.h"

#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/host/isa.h"

namespace ft::test {

std::vector<OpCase>& op_cases() {
  static std::vector<OpCase> cases;
  return cases;
}

bool register_case(const OpCase& op_case) {
  op_cases().push_back(op_case);
  return true;
}

const KernelDesc& reference_of(OpId op, int format) {
  const KernelDesc* kernel = find_kernel(op, format, Isa::kScalar);
  FT_CHECK(kernel != nullptr);
  return *kernel;
}

void for_each_runnable(OpId op, const std::function<void(const KernelDesc&)>& f) {
  for (const KernelDesc& kernel : kernel_registry()) {
    if (kernel.op == op && kernel.isa <= detect_isa()) f(kernel);
  }
}

float random_float(Random& random, const Values& values) {
  if (values.special_in > 0 && random.below(static_cast<uint64_t>(values.special_in)) == 0) {
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
  const auto span = static_cast<uint64_t>(values.exponent_high - values.exponent_low + 1);
  const int exponent = values.exponent_low + static_cast<int>(random.below(span));
  const double magnitude = std::ldexp(1.0 + random.uniform(), exponent);
  return static_cast<float>(random.below(2) == 0 ? magnitude : -magnitude);
}

}  // namespace ft::test
