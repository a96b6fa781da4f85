#include "engine/model/detect.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "engine/model/quantization.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr const char* kSupported =
    "bf16 (BF16 weight); NVFP4 of modelopt (weight, weight_scale, weight_scale_2) or compressed-tensors "
    "(weight_packed, weight_scale, weight_global_scale); MXFP4 of compressed-tensors (weight_packed, weight_scale) or "
    "DeepSeek-V4 (weight, scale); fp8 with 128x128 blocks (weight, weight_scale_inv)";
constexpr int64_t kFp8Block = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  text += "]";
  return text;
}

std::string describe(const TensorView& view) {
  return std::string(dtype_name(view.dtype)) + " " + shape_text(view.shape);
}

[[noreturn]] void refuse_tensor(const std::string& name, const TensorView& view, std::string allowed) {
  throw Error(ErrorKind::kFailed, {.what = "a tensor of the checkpoint does not fit config.json",
                                   .value = describe(view),
                                   .allowed = std::move(allowed),
                                   .action = "check that config.json and the weights belong together",
                                   .path = name});
}

[[noreturn]] void refuse_format(const std::string& name, std::string format) {
  throw Error(ErrorKind::kFailed, {.what = "the weights are in a format that is not supported",
                                   .value = std::move(format),
                                   .allowed = kSupported,
                                   .path = name});
}

[[noreturn]] void refuse_absent(std::string names) {
  throw Error(ErrorKind::kFailed, {.what = "the checkpoint lacks a tensor",
                                   .value = std::move(names),
                                   .action = "check that config.json and the weights belong together"});
}

std::string either(const std::vector<std::string>& names, std::string_view ending) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += " or ";
    text += name;
    text += ending;
  }
  return text;
}

// `experts` 0: the shape itself; otherwise a stack of that many.
std::vector<int64_t> stacked(int experts, int64_t rows, int64_t cols) {
  if (experts == 0) return {rows, cols};
  return {experts, rows, cols};
}

void expect(const std::string& name, const TensorView& view, DType dtype, const std::vector<int64_t>& shape) {
  if (view.dtype != dtype || view.shape != shape) {
    refuse_tensor(name, view, std::string(dtype_name(dtype)) + " " + shape_text(shape));
  }
}

bool is_float(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16;
}

// Rows [row, row + rows) of expert `expert` of a stack of `experts`. REQUIRES for fp8: row on a block boundary.
FoundMatrix slice(const FoundMatrix& stack, int experts, int expert, int64_t row, int64_t rows) {
  const auto cut = [&](std::span<const std::byte> bytes, int64_t stack_rows, int64_t begin, int64_t count) {
    const size_t row_bytes = bytes.size() / static_cast<size_t>(experts * stack_rows);
    return bytes.subspan(static_cast<size_t>(expert * stack_rows + begin) * row_bytes,
                         static_cast<size_t>(count) * row_bytes);
  };
  FoundMatrix part = stack;
  part.rows = rows;
  part.codes = cut(stack.codes, stack.rows, row, rows);
  const int64_t unit = stack.format == FormatId::kFp8Block ? kFp8Block : 1;  // matrix rows per row of scales
  if (!stack.scales.empty()) {
    part.scales = cut(stack.scales, ceil_div(stack.rows, unit), row / unit, ceil_div(rows, unit));
  }
  if (stack.global.size() > sizeof(float)) {
    part.global = stack.global.subspan(static_cast<size_t>(expert) * sizeof(float), sizeof(float));
  }
  return part;
}

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

// How the tensors of one matrix are called after its stem. Fused experts may come without ".weight"; their fp8 scales
// are then called as transformers' fp8 experts call them. An empty side ending does not exist.
struct Detector::Endings {
  std::string_view weight, packed, scale, scale_2, global_scale, scale_inv;
};
const Detector::Endings Detector::kWithWeight{".weight",         ".weight_packed",       ".weight_scale",
                                              ".weight_scale_2", ".weight_global_scale", ".weight_scale_inv"};
const Detector::Endings Detector::kBare{"", {}, {}, {}, {}, "_scale_inv"};

RawMatrix raw_matrix(const FoundMatrix& found, std::vector<float>& scales) {
  RawMatrix raw{found.format, found.rows, found.cols, found.codes, found.scales, read_global(found)};
  if (found.format != FormatId::kFp8Block || found.scale_dtype == DType::kF32) return raw;
  TensorView view;
  view.dtype = found.scale_dtype;
  view.bytes = found.scales;
  scales.resize(static_cast<size_t>(view.elements()));
  convert_to_f32(view, scales);
  raw.scales = std::as_bytes(std::span(scales));
  return raw;
}

void convert_to_f32(const TensorView& view, std::span<float> out) {
  FT_CHECK(static_cast<int64_t>(out.size()) == view.elements());
  if (view.dtype == DType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), view.bytes.data(), view.bytes.size());
    return;
  }
  FT_CHECK(view.dtype == DType::kBf16 || view.dtype == DType::kF16);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, view.bytes.data() + i * sizeof bits, sizeof bits);
    out[i] = view.dtype == DType::kBf16 ? to_float(bf16{bits}) : half_to_float(bits);
  }
}

const TensorView* Detector::side(const std::string& stem, std::string_view ending) const {
  return ending.empty() ? nullptr : checkpoint_.find(stem + std::string(ending));
}

// Codes two to a byte, and one scale for the k of a lane.
void Detector::take_fp4(FormatId format, const std::string& codes, DType code_dtype, const std::string& scales,
                        DType scale_dtype, int experts, FoundMatrix& found) const {
  const FormatInfo& info = format_info(format);
  found.format = format;
  found.name = codes;
  const TensorView& code_view = *checkpoint_.find(codes);
  if (found.cols % info.group != 0) {
    refuse_tensor(codes, code_view,
                  std::string(info.name) + " matrices with a multiple of " + std::to_string(info.group) +
                      " columns, not " + std::to_string(found.cols));
  }
  expect(codes, code_view, code_dtype, stacked(experts, found.rows, found.cols / 2));
  const TensorView* scale_view = checkpoint_.find(scales);
  if (scale_view == nullptr) refuse_absent(scales);
  expect(scales, *scale_view, scale_dtype, stacked(experts, found.rows, found.cols / info.group));
  found.codes = code_view.bytes;
  found.scales = scale_view->bytes;
  found.scale_dtype = scale_view->dtype;
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

void Detector::take_fp8(const std::string& codes, const std::string& scales, int experts, FoundMatrix& found) const {
  check_fp8_block_size(config_);
  found.format = FormatId::kFp8Block;
  found.name = codes;
  const TensorView& code_view = *checkpoint_.find(codes);
  const TensorView& scale_view = *checkpoint_.find(scales);
  expect(codes, code_view, DType::kF8E4M3, stacked(experts, found.rows, found.cols));
  const DType scale_dtype = scale_view.dtype == DType::kBf16 ? DType::kBf16 : DType::kF32;
  expect(scales, scale_view, scale_dtype,
         stacked(experts, ceil_div(found.rows, kFp8Block), ceil_div(found.cols, kFp8Block)));
  found.codes = code_view.bytes;
  found.scales = scale_view.bytes;
  found.scale_dtype = scale_dtype;
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
    expect(name, *weight, DType::kBf16, stacked(experts, found.rows, found.cols));
    found.format = FormatId::kBf16;
    found.name = name;
    found.codes = weight->bytes;
    return true;
  }
  if (weight->dtype == DType::kU8 && side(stem, endings.scale_2) != nullptr) {
    take_nvfp4(name, stem + std::string(endings.scale), stem + std::string(endings.scale_2), experts, found);
    return true;
  }
  if (weight->dtype == DType::kF8E4M3 && scale_inv != nullptr && is_float(scale_inv->dtype)) {
    take_fp8(name, stem + std::string(endings.scale_inv), experts, found);
    return true;
  }
  const TensorView* plain_scale = checkpoint_.find(stem + ".scale");
  const bool small = weight->dtype == DType::kI8 || weight->dtype == DType::kU8;
  if (small && plain_scale != nullptr) {
    take_fp4(FormatId::kMxfp4, name, weight->dtype, stem + ".scale", DType::kF8E8M0, experts, found);
    return true;
  }
  if (weight->dtype == DType::kF8E4M3) {
    if (plain_scale != nullptr) refuse_format(name, "fp8 with e8m0 .scale (DeepSeek-V4)");
    if (scale_inv != nullptr || (scale != nullptr && !is_float(scale->dtype))) refuse_format(name, "MXFP8");
    refuse_format(name, scale != nullptr ? "fp8 with one scale per tensor or channel" : "fp8 without scales");
  }
  refuse_format(name, std::string(dtype_name(weight->dtype)) + " matrix");
}

bool Detector::try_stack(const std::string& stem, const Endings& endings, int experts, int64_t rows, int64_t cols,
                         FoundMatrix& found) const {
  found = FoundMatrix{};
  found.rows = rows;
  found.cols = cols;
  if (try_packed(stem, endings, experts, found) || try_weight(stem, endings, experts, found)) return true;
  if (side(stem, ".qweight") != nullptr) refuse_format(stem + ".qweight", "GPTQ or AWQ int4");
  if (side(stem, "_blocks") != nullptr) refuse_format(stem + "_blocks", "MXFP4 of gpt-oss");
  return false;
}

FoundMatrix Detector::matrix(const MatrixSpec& spec) const {
  FoundMatrix found;
  for (const std::string& stem : spec.stems) {
    if (try_stack(stem, kWithWeight, 0, spec.rows, spec.cols, found)) return found;
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

FoundMatrix Detector::split_expert(const ExpertLayerSpec& spec, int expert, const std::string& part, int64_t rows,
                                   int64_t cols) const {
  std::vector<std::string> stems;
  for (const std::string& prefix : spec.prefixes) stems.push_back(prefix + std::to_string(expert) + "." + part);
  return matrix({std::move(stems), rows, cols});
}

bool Detector::try_fused(const ExpertLayerSpec& spec, const ExpertGeometry& geometry,
                         std::vector<FoundExpert>& experts) const {
  for (const std::string& prefix : spec.prefixes) {
    if (try_fused(prefix, geometry, experts)) return true;
  }
  return false;
}

bool Detector::try_fused(const std::string& prefix, const ExpertGeometry& geometry,
                         std::vector<FoundExpert>& experts) const {
  const int count = geometry.experts;
  for (const Endings* endings : {&kBare, &kWithWeight}) {
    FoundMatrix gate_up, down;
    if (!try_stack(prefix + "gate_up_proj", *endings, count, 2 * geometry.intermediate, geometry.hidden, gate_up)) {
      continue;
    }
    const std::string down_stem = prefix + "down_proj";
    if (!try_stack(down_stem, *endings, count, geometry.hidden, geometry.intermediate, down)) {
      refuse_absent(down_stem + std::string(endings->weight));
    }
    if (gate_up.format == FormatId::kFp8Block && geometry.intermediate % kFp8Block != 0) {
      refuse_format(gate_up.name, "fused fp8 experts whose gate and up rows share a block of scales");
    }
    for (int e = 0; e < count; ++e) {
      experts.push_back({slice(gate_up, count, e, 0, geometry.intermediate),
                         slice(gate_up, count, e, geometry.intermediate, geometry.intermediate),
                         slice(down, count, e, 0, geometry.hidden)});
    }
    return true;
  }
  return false;
}

std::vector<FoundExpert> Detector::experts(const ExpertLayerSpec& spec, const ExpertGeometry& geometry) const {
  std::vector<FoundExpert> experts;
  experts.reserve(static_cast<size_t>(geometry.experts));
  if (!try_fused(spec, geometry, experts)) {
    for (int e = 0; e < geometry.experts; ++e) {
      experts.push_back({split_expert(spec, e, spec.gate, geometry.intermediate, geometry.hidden),
                         split_expert(spec, e, spec.up, geometry.intermediate, geometry.hidden),
                         split_expert(spec, e, spec.down, geometry.hidden, geometry.intermediate)});
    }
  }
  const FoundMatrix& first = experts.front().gate;
  for (const FoundExpert& expert : experts) {
    for (const FoundMatrix* part : {&expert.gate, &expert.up, &expert.down}) {
      if (part->format == first.format) continue;
      throw Error(ErrorKind::kFailed, {.what = "the experts of one layer have different formats",
                                       .value = std::string(format_info(part->format).name),
                                       .allowed = std::string(format_info(first.format).name) + ", as " + first.name,
                                       .path = part->name});
    }
  }
  return experts;
}

}  // namespace ft
