#include "engine/model/detect_tensors.h"

#include "kernels/base/error.h"

namespace ft::detect {
namespace {

constexpr const char* kSupported =
    "bf16 (BF16 weight); NVFP4 of modelopt (weight, weight_scale, weight_scale_2) or compressed-tensors "
    "(weight_packed, weight_scale, weight_global_scale); MXFP4 of compressed-tensors (weight_packed, weight_scale), "
    "DeepSeek-V4 (weight, scale) or gpt-oss (_blocks, _scales); fp8 with 128x128 blocks (weight, weight_scale_inv or "
    "weight_scale, or e8m0 scale), one scale a row or one a matrix (weight, weight_scale)";

std::string describe(const TensorView& view) {
  return std::string(dtype_name(view.dtype)) + " " + shape_text(view.shape);
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  text += "]";
  return text;
}

void refuse_tensor(const std::string& name, const TensorView& view, std::string allowed) {
  throw Error(ErrorKind::kFailed, {.what = "a tensor of the checkpoint does not fit config.json",
                                   .value = describe(view),
                                   .allowed = std::move(allowed),
                                   .action = "check that config.json and the weights belong together",
                                   .path = name});
}

void refuse_format(const std::string& name, std::string format) {
  throw Error(ErrorKind::kFailed, {.what = "the weights are in a format that is not supported",
                                   .value = std::move(format),
                                   .allowed = kSupported,
                                   .path = name});
}

void refuse_absent(std::string names) {
  throw Error(ErrorKind::kFailed, {.what = "the checkpoint lacks a tensor",
                                   .value = std::move(names),
                                   .action = "check that config.json and the weights belong together"});
}

void expect(const std::string& name, const TensorView& view, DType dtype, const std::vector<int64_t>& shape) {
  if (view.dtype != dtype || view.shape != shape) {
    refuse_tensor(name, view, std::string(dtype_name(dtype)) + " " + shape_text(shape));
  }
}

}  // namespace ft::detect
