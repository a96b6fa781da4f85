// What the detector's files share: messages about tensors that do not fit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/safetensors.h"

namespace ft::detect {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string shape_text(const std::vector<int64_t>& shape);  // "[8, 64]"

[[noreturn]] void refuse_tensor(const std::string& name, const TensorView& view, std::string allowed);
// Lists the formats that are supported.
[[noreturn]] void refuse_format(const std::string& name, std::string format);
[[noreturn]] void refuse_absent(std::string names);

// Throws Error unless the tensor is of this dtype and shape.
void expect(const std::string& name, const TensorView& view, DType dtype, const std::vector<int64_t>& shape);

// The shape of a matrix, or of a stack of `experts` of them; 0: no stack.
template <class... Dimensions>
std::vector<int64_t> stacked(int experts, Dimensions... dimensions) {
  if (experts == 0) return {dimensions...};
  return {experts, dimensions...};
}

}  // namespace ft::detect
