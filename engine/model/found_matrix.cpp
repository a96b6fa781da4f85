#include "engine/model/found_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/bf16.h"
#include "kernels/base/error.h"
#include "kernels/base/fp_codes.h"
#include "kernels/formats/fp8_block.h"

namespace ft {
namespace {

constexpr int64_t kScaleBlock = formats::fp8_block::kScaleBlock;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

float half_to_float(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t mantissa = bits & 0x3ffu;
  const float sign = (bits & 0x8000u) != 0 ? -1.0f : 1.0f;
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-24f;
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;  // bias 15 to 127; infinity and NaN stay
  return sign * std::bit_cast<float>((wide_exponent << 23) | (mantissa << 13));
}

float read_global(const FoundMatrix& found) {
  if (found.global.empty()) return 1.0f;
  float value = 0;
  std::memcpy(&value, found.global.data(), sizeof value);
  const float multiplier = found.global_divides ? 1.0f / value : value;
  if (!std::isfinite(value) || !std::isfinite(multiplier)) {
    throw Error(ErrorKind::kFailed,
                {.what = "the global scale of a matrix cannot be used",
                 .value = std::to_string(value),
                 .allowed = found.global_divides ? "a finite divisor other than 0" : "finite values",
                 .path = found.name});
  }
  return multiplier;
}

}  // namespace

int64_t FoundMatrix::rows_per_scale() const {
  if (format != FormatId::kFp8Block) return 1;
  return static_cast<int64_t>(scales.size()) == dtype_bytes(scale_dtype) ? 0 : kScaleBlock;
}

RawMatrix raw_matrix(const FoundMatrix& found, std::vector<float>& scales) {
  FT_CHECK(found.step == 1 && !found.input_major);
  RawMatrix raw{found.format, found.rows, found.cols, found.codes, found.scales, read_global(found)};
  if (found.format != FormatId::kFp8Block && found.format != FormatId::kFp8Channel) return raw;
  const bool single = found.rows_per_scale() == 0;
  if (found.scale_dtype == DType::kF32 && !single) return raw;
  TensorView view;
  view.dtype = found.scale_dtype;
  view.bytes = found.scales;
  scales.resize(static_cast<size_t>(view.elements()));
  convert_to_f32(view, scales);
  if (single) {
    const float scale = scales.front();
    scales.assign(static_cast<size_t>(ceil_div(found.rows, kScaleBlock) * ceil_div(found.cols, kScaleBlock)), scale);
  }
  raw.scales = std::as_bytes(std::span(scales));
  return raw;
}

void convert_to_f32(const TensorView& view, std::span<float> out) {
  FT_CHECK(static_cast<int64_t>(out.size()) == view.elements());
  if (view.dtype == DType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), view.bytes.data(), view.bytes.size());
    return;
  }
  if (view.dtype == DType::kF8E8M0) {
    std::transform(view.bytes.begin(), view.bytes.end(), out.begin(),
                   [](std::byte code) { return decode_e8m0(static_cast<uint8_t>(code)); });
    return;
  }
  FT_CHECK(view.dtype == DType::kBf16 || view.dtype == DType::kF16);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, view.bytes.data() + i * sizeof bits, sizeof bits);
    out[i] = view.dtype == DType::kBf16 ? to_float(bf16{bits}) : half_to_float(bits);
  }
}

}  // namespace ft
