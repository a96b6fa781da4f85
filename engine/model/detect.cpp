#include "engine/model/detect.h"

#include <algorithm>

#include "engine/model/detect_endings.h"
#include "engine/model/detect_tensors.h"
#include "engine/model/quantization.h"
#include "kernels/formats/fp8_block.h"

namespace ft {

using detect::ceil_div;
using detect::expect;
using detect::refuse_absent;
using detect::refuse_format;
using detect::refuse_tensor;
using detect::shape_text;
using detect::stacked;

namespace {

constexpr int64_t kFp8Block = formats::fp8_block::kScaleBlock;

std::string either(const std::vector<std::string>& names, std::string_view ending) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += " or ";
    text += name;
    text += ending;
  }
  return text;
}

bool is_float(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16;
}

// [rows] or [rows, 1], more than the one of a whole matrix.
bool is_channel_scale(const TensorView& scale, int experts, int64_t rows) {
  return rows > 1 && (scale.shape == stacked(experts, rows) || scale.shape == stacked(experts, rows, int64_t{1}));
}

}  // namespace

const TensorView* Detector::side(const std::string& stem, std::string_view ending) const {
  return ending.empty() ? nullptr : checkpoint_.find(stem + std::string(ending));
}

// Codes two to a byte.
void Detector::take_codes(FormatId format, const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                          FoundMatrix& found) const {
  const FormatInfo& info = format_info(format);
  found.format = format;
  found.name = name;
  const TensorView& view = *checkpoint_.find(name);
  if (found.cols % info.group != 0) {
    refuse_tensor(name, view,
                  std::string(info.name) + " matrices with a multiple of " + std::to_string(info.group) +
                      " columns, not " + std::to_string(found.cols));
  }
  expect(name, view, dtype, shape);
  found.codes = view.bytes;
}

// One scale for the k of a lane.
void Detector::take_scales(const std::string& name, DType dtype, int experts, FoundMatrix& found) const {
  const TensorView* view = checkpoint_.find(name);
  if (view == nullptr) refuse_absent(name);
  expect(name, *view, dtype, stacked(experts, found.rows, found.cols / format_info(found.format).group));
  found.scales = view->bytes;
  found.scale_dtype = dtype;
}

void Detector::take_fp4(FormatId format, const std::string& codes, DType code_dtype, const std::string& scales,
                        DType scale_dtype, int experts, FoundMatrix& found) const {
  take_codes(format, codes, code_dtype, stacked(experts, found.rows, found.cols / 2), found);
  take_scales(scales, scale_dtype, experts, found);
}

void Detector::take_nvfp4(const std::string& codes, const std::string& scales, const std::string& global, int experts,
                          FoundMatrix& found) const {
  take_fp4(FormatId::kNvfp4, codes, DType::kU8, scales, DType::kF8E4M3, experts, found);
  const TensorView& global_view = *checkpoint_.find(global);
  if (global_view.dtype != DType::kF32 || (global_view.elements() != 1 && global_view.elements() != experts)) {
    refuse_tensor(global, global_view, experts == 0 ? "one F32" : "one F32, or one per expert");
  }
  found.global = global_view.bytes;
}

// One scale for each block of 128 x 128, for each row, or for each matrix.
void Detector::take_fp8(const std::string& codes, const std::string& scales, int experts, FoundMatrix& found) const {
  check_fp8_block_size(config_);
  const TensorView& code_view = *checkpoint_.find(codes);
  const TensorView& scale_view = *checkpoint_.find(scales);
  const bool of_rows = is_channel_scale(scale_view, experts, found.rows);
  found.format = of_rows ? FormatId::kFp8Channel : FormatId::kFp8Block;
  found.name = codes;
  expect(codes, code_view, DType::kF8E4M3, stacked(experts, found.rows, found.cols));
  const bool readable = scale_view.dtype == DType::kBf16 || scale_view.dtype == DType::kF8E8M0;
  const DType scale_dtype = readable ? scale_view.dtype : DType::kF32;
  if (scale_view.dtype != scale_dtype || (!of_rows && scale_view.elements() != std::max(experts, 1))) {
    expect(scales, scale_view, scale_dtype,
           stacked(experts, ceil_div(found.rows, kFp8Block), ceil_div(found.cols, kFp8Block)));
  }
  found.codes = code_view.bytes;
  found.scales = scale_view.bytes;
  found.scale_dtype = scale_dtype;
}

// gpt-oss: a row of codes is groups of 16 bytes, which follow each other as the bytes of other MXFP4 rows do.
bool Detector::try_blocks(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const {
  const TensorView* blocks = side(stem, endings.blocks);
  if (blocks == nullptr) return false;
  const std::string name = stem + std::string(endings.blocks);
  found.input_major = false;
  const int64_t group = format_info(FormatId::kMxfp4).group;
  take_codes(FormatId::kMxfp4, name, DType::kU8, stacked(experts, found.rows, found.cols / group, group / 2), found);
  take_scales(stem + std::string(endings.block_scales), DType::kU8, experts, found);
  return true;
}

bool Detector::try_packed(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const {
  const TensorView* packed = side(stem, endings.packed);
  if (packed == nullptr) return false;
  const std::string name = stem + std::string(endings.packed);
  if (packed->dtype == DType::kI32) refuse_format(name, "compressed-tensors int4 (I32 weight_packed)");
  const std::string scales = stem + std::string(endings.scale), global = stem + std::string(endings.global_scale);
  const TensorView* scale = checkpoint_.find(scales);
  if (checkpoint_.find(global) == nullptr) {  // MXFP4, unless the scales are NVFP4's
    if (scale != nullptr && scale->dtype == DType::kF8E4M3) refuse_absent(global);
    take_fp4(FormatId::kMxfp4, name, DType::kU8, scales, DType::kU8, experts, found);
    return true;
  }
  take_nvfp4(name, scales, global, experts, found);
  found.global_divides = true;
  return true;
}

bool Detector::try_weight(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const {
  const std::string name = stem + std::string(endings.weight);
  const TensorView* weight = checkpoint_.find(name);
  if (weight == nullptr) return false;
  const TensorView* scale = side(stem, endings.scale);
  const TensorView* scale_inv = side(stem, endings.scale_inv);
  if (weight->dtype == DType::kBf16) {
    const bool turned = found.input_major;
    expect(name, *weight, DType::kBf16,
           stacked(experts, turned ? found.cols : found.rows, turned ? found.rows : found.cols));
    found.format = FormatId::kBf16;
    found.name = name;
    found.codes = weight->bytes;
    return true;
  }
  found.input_major = false;
  if (weight->dtype == DType::kU8 && side(stem, endings.scale_2) != nullptr) {
    take_nvfp4(name, stem + std::string(endings.scale), stem + std::string(endings.scale_2), experts, found);
    return true;
  }
  if (weight->dtype == DType::kF8E4M3 && scale_inv != nullptr && is_float(scale_inv->dtype)) {
    take_fp8(name, stem + std::string(endings.scale_inv), experts, found);
    return true;
  }
  if (weight->dtype == DType::kF8E4M3 && scale != nullptr && is_float(scale->dtype)) {
    take_fp8(name, stem + std::string(endings.scale), experts, found);
    return true;
  }
  const TensorView* plain_scale = checkpoint_.find(stem + ".scale");
  const bool small = weight->dtype == DType::kI8 || weight->dtype == DType::kU8;
  if (small && plain_scale != nullptr) {
    take_fp4(FormatId::kMxfp4, name, weight->dtype, stem + ".scale", DType::kF8E8M0, experts, found);
    return true;
  }
  if (weight->dtype == DType::kF8E4M3 && plain_scale != nullptr && plain_scale->dtype == DType::kF8E8M0) {
    take_fp8(name, stem + ".scale", experts, found);
    return true;
  }
  if (weight->dtype == DType::kF8E4M3) {
    refuse_format(name, scale != nullptr || scale_inv != nullptr ? "MXFP8" : "fp8 without scales");
  }
  refuse_format(name, std::string(dtype_name(weight->dtype)) + " matrix");
}

bool Detector::try_stack(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const {
  if (try_blocks(stem, endings, experts, found) || try_packed(stem, endings, experts, found) ||
      try_weight(stem, endings, experts, found))
    return true;
  if (side(stem, ".qweight") != nullptr) refuse_format(stem + ".qweight", "GPTQ or AWQ int4");
  return false;
}

FoundMatrix Detector::matrix(const MatrixSpec& spec) const {
  for (const std::string& stem : spec.stems) {
    FoundMatrix found;
    found.rows = spec.rows;
    found.cols = spec.cols;
    if (try_stack(stem, detect::kWithWeight, 0, found)) return found;
  }
  refuse_absent(either(spec.stems, ".weight"));
}

const TensorView& Detector::vector(const VectorSpec& spec) const {
  for (const std::string& name : spec.names) {
    const TensorView* view = checkpoint_.find(name);
    if (view == nullptr) continue;
    const bool readable = view->dtype == DType::kBf16 || view->dtype == DType::kF16 || view->dtype == DType::kF32;
    const std::vector<int64_t> shape = spec.form.shape.empty() ? std::vector<int64_t>{spec.size} : spec.form.shape;
    if (!readable || view->shape != shape) refuse_tensor(name, *view, "BF16, F16 or F32 " + shape_text(shape));
    return *view;
  }
  refuse_absent(either(spec.names, ""));
}

const TensorView& Detector::table(const TableSpec& spec) const {
  for (const std::string& name : spec.names) {
    const TensorView* view = checkpoint_.find(name);
    if (view == nullptr) continue;
    expect(name, *view, DType::kBf16, {spec.rows, spec.cols});
    return *view;
  }
  refuse_absent(either(spec.names, ""));
}

const TensorView& Detector::index_table(const IndexTableSpec& spec) const {
  for (const std::string& name : spec.names) {
    const TensorView* view = checkpoint_.find(name);
    if (view == nullptr) continue;
    expect(name, *view, DType::kI64, {spec.rows, spec.cols});
    return *view;
  }
  refuse_absent(either(spec.names, ""));
}

}  // namespace ft
