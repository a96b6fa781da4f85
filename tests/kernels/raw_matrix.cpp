#include "tests/kernels/raw_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/bf16.h"
#include "kernels/base/error.h"
#include "kernels/base/fp_codes.h"

namespace ft::test {
namespace {

size_t index_of(const OwnedMatrix& matrix, int64_t row, int64_t col) {
  return static_cast<size_t>(row * matrix.cols + col);
}

size_t fp8_scale_index(const OwnedMatrix& matrix, int64_t row, int64_t col) {
  if (matrix.format == FormatId::kFp8Channel) return static_cast<size_t>(row);
  return static_cast<size_t>(row / 128 * ((matrix.cols + 127) / 128) + col / 128);
}

bool is_fp8(FormatId format) { return format == FormatId::kFp8Block || format == FormatId::kFp8Channel; }
bool is_fp4(FormatId format) { return format == FormatId::kNvfp4 || format == FormatId::kMxfp4; }

// Columns that share a scale code.
int64_t scale_group(FormatId format) { return format == FormatId::kNvfp4 ? 16 : 32; }

void set_float(std::vector<std::byte>& bytes, size_t index, float value) {
  std::memcpy(bytes.data() + index * 4, &value, 4);
}

uint8_t random_e4m3(Random& random, const Exponents& exponents) {
  const bool any = exponents.special_in > 0 && random.below(static_cast<uint64_t>(exponents.special_in)) == 0;
  if (any) return static_cast<uint8_t>(random.below(256));
  const int low = std::clamp(exponents.low + 7, 0, 15);
  const int high = std::clamp(exponents.high + 7, low, 15);
  const auto exponent = static_cast<unsigned>(low) + random.below(static_cast<uint64_t>(high - low + 1));
  const auto code = static_cast<uint8_t>(exponent << 3 | random.below(8) | random.below(2) << 7);
  return (code & 0x7f) == 0x7f ? static_cast<uint8_t>(code ^ 1) : code;
}

uint8_t random_e8m0(Random& random, const Exponents& exponents) {
  const bool any = exponents.special_in > 0 && random.below(static_cast<uint64_t>(exponents.special_in)) == 0;
  if (any) return static_cast<uint8_t>(random.below(256));
  const auto span = static_cast<uint64_t>(exponents.high - exponents.low + 1);
  return static_cast<uint8_t>(std::clamp(127 + exponents.low + static_cast<int>(random.below(span)), 0, 254));
}

}  // namespace

std::vector<int64_t> cols_of(FormatId format, std::vector<int64_t> candidates) {
  std::erase_if(candidates, [&](int64_t cols) { return cols % format_info(format).cols_multiple != 0; });
  return candidates;
}

OwnedMatrix zero_matrix(FormatId format, int64_t rows, int64_t cols) {
  OwnedMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.cols = cols;
  const auto count = static_cast<size_t>(rows * cols);
  switch (format) {
    case FormatId::kBf16:
      matrix.codes.resize(count * 2);
      break;
    case FormatId::kNvfp4:
      matrix.codes.resize(count / 2);
      matrix.scales.resize(count / 16, std::byte{0x38});
      break;
    case FormatId::kMxfp4:
      matrix.codes.resize(count / 2);
      matrix.scales.resize(count / 32, std::byte{127});
      break;
    case FormatId::kFp8Block:
    case FormatId::kFp8Channel: {
      matrix.codes.resize(count);
      const size_t scales = fp8_scale_index(matrix, rows - 1, cols - 1) + 1;
      matrix.scales.resize(scales * 4);
      for (size_t i = 0; i < scales; ++i) set_float(matrix.scales, i, 1.0f);
      break;
    }
  }
  return matrix;
}

OwnedMatrix random_matrix(FormatId format, int64_t rows, int64_t cols, const Exponents& exponents, Random& random) {
  OwnedMatrix matrix = zero_matrix(format, rows, cols);
  matrix.global = random_with(random, {-2, 2, 0});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      switch (format) {
        case FormatId::kBf16:
          set_code(matrix, row, col, to_bf16(random_with(random, exponents)).bits);
          break;
        case FormatId::kNvfp4:
          set_code(matrix, row, col, static_cast<uint32_t>(random.below(16)));
          if (col % 16 == 0) set_scale_code(matrix, row, col, random_e4m3(random, exponents));
          break;
        case FormatId::kMxfp4:
          set_code(matrix, row, col, static_cast<uint32_t>(random.below(16)));
          if (col % 32 == 0) set_scale_code(matrix, row, col, random_e8m0(random, exponents));
          break;
        case FormatId::kFp8Block:
        case FormatId::kFp8Channel:
          set_code(matrix, row, col, random_e4m3(random, {-7, 8, exponents.special_in}));
          if (format == FormatId::kFp8Channel ? col == 0 : row % 128 == 0 && col % 128 == 0) {
            set_float(matrix.scales, fp8_scale_index(matrix, row, col), random_with(random, exponents));
          }
          break;
      }
    }
  }
  return matrix;
}

void set_code(OwnedMatrix& matrix, int64_t row, int64_t col, uint32_t code) {
  const size_t index = index_of(matrix, row, col);
  switch (matrix.format) {
    case FormatId::kBf16:
      std::memcpy(matrix.codes.data() + index * 2, &code, 2);
      break;
    case FormatId::kNvfp4:
    case FormatId::kMxfp4: {
      const std::byte old = matrix.codes[index / 2];
      matrix.codes[index / 2] = index % 2 == 0 ? (old & std::byte{0xf0}) | static_cast<std::byte>(code & 15u)
                                               : (old & std::byte{0x0f}) | static_cast<std::byte>(code << 4);
      break;
    }
    case FormatId::kFp8Block:
    case FormatId::kFp8Channel:
      matrix.codes[index] = static_cast<std::byte>(code);
      break;
  }
}

void set_scale(OwnedMatrix& matrix, int64_t row, int64_t col, float scale) {
  FT_CHECK(is_fp8(matrix.format));
  set_float(matrix.scales, fp8_scale_index(matrix, row, col), scale);
}

void set_scale_code(OwnedMatrix& matrix, int64_t row, int64_t col, uint8_t code) {
  FT_CHECK(is_fp4(matrix.format));
  matrix.scales[index_of(matrix, row, col) / static_cast<size_t>(scale_group(matrix.format))] =
      static_cast<std::byte>(code);
}

float raw_value(const OwnedMatrix& matrix, int64_t row, int64_t col) {
  const size_t index = index_of(matrix, row, col);
  switch (matrix.format) {
    case FormatId::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, matrix.codes.data() + index * 2, 2);
      return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
    case FormatId::kNvfp4:
    case FormatId::kMxfp4: {
      const auto byte = static_cast<uint8_t>(matrix.codes[index / 2]);
      const float code = decode_e2m1(static_cast<uint8_t>(index % 2 == 0 ? byte & 15u : byte >> 4));
      const bool e4m3 = matrix.format == FormatId::kNvfp4;
      const auto scale = static_cast<uint8_t>(matrix.scales[index / (e4m3 ? 16 : 32)]);
      return code * (e4m3 ? decode_e4m3(scale) : decode_e8m0(scale));
    }
    case FormatId::kFp8Block:
    case FormatId::kFp8Channel: {
      float scale;
      std::memcpy(&scale, matrix.scales.data() + fp8_scale_index(matrix, row, col) * 4, 4);
      return decode_e4m3(static_cast<uint8_t>(matrix.codes[index])) * scale;
    }
  }
  FT_CHECK(false);
  return 0;
}

Packed::Packed(const OwnedMatrix& matrix)
    : layout_(format_info(matrix.format).layout(matrix.rows, matrix.cols)),
      global_(matrix.global),
      storage_(static_cast<size_t>(layout_.bytes) + 64) {
  format_info(matrix.format)
      .pack(matrix.raw(), layout_, 0, layout_.row_tiles, const_cast<std::byte*>(std::as_const(*this).data()));
}

const std::byte* Packed::data() const {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  return storage_.data() + ((address + 63) / 64 * 64 - address);
}

std::vector<uint32_t> packed_row(const std::vector<float>& x) {
  const auto cols = static_cast<int64_t>(x.size());
  std::vector<uint32_t> words(static_cast<size_t>(activation_words(cols)));
  const auto fn = std::get<PackActivationsFn>(reference_of(OpId::kPackActivations, kNoFormat).fn);
  fn({.x = x.data(), .x_stride = cols, .tokens = 1, .cols = cols, .words = words.data()});
  return words;
}

}  // namespace ft::test
