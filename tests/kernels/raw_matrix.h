// Raw matrices as checkpoints hold them, and their values decoded here from the definitions in kernels/base/fp_codes.h,
// independently of the packed layouts.
#pragma once

#include <vector>

#include "kernels/formats/format.h"
#include "tests/kernels/suite.h"

namespace ft::test {

struct OwnedMatrix {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  FormatId format{};
  int64_t rows = 0;
  int64_t cols = 0;
  float global = 1.0f;

  RawMatrix raw() const { return {format, rows, cols, codes, scales, global}; }
};

// All-zero codes; scales are 1.
OwnedMatrix zero_matrix(FormatId format, int64_t rows, int64_t cols);

// bf16: `exponents`. The others: any finite code; scales from `exponents` (nvfp4: any finite e4m3 code within that
// range of exponents, negative ones too; mxfp4: powers of two). One in exponents.special_in codes or scales is any code
// at all.
OwnedMatrix random_matrix(FormatId format, int64_t rows, int64_t cols, const Exponents& exponents, Random& random);

// Code (the low bits of `code`) of one element; scale code of the group that holds it (nvfp4, mxfp4), or its scale
// (fp8).
void set_code(OwnedMatrix& matrix, int64_t row, int64_t col, uint32_t code);
void set_scale(OwnedMatrix& matrix, int64_t row, int64_t col, float scale);
void set_scale_code(OwnedMatrix& matrix, int64_t row, int64_t col, uint8_t code);

// Those of `candidates` that the format takes as a number of columns.
std::vector<int64_t> cols_of(FormatId format, std::vector<int64_t> candidates);

// code times scale of one element, without the global.
float raw_value(const OwnedMatrix& matrix, int64_t row, int64_t col);

// 64-byte aligned packed bytes.
class Packed {
 public:
  explicit Packed(const OwnedMatrix& matrix);
  PackedMatrix view() const { return {layout_, data(), global_}; }
  const std::byte* data() const;
  const PackedLayout& layout() const { return layout_; }

 private:
  PackedLayout layout_;
  float global_;
  std::vector<std::byte> storage_;
};

// cols values rounded and packed by the reference.
std::vector<uint32_t> packed_row(const std::vector<float>& x);

}  // namespace ft::test
