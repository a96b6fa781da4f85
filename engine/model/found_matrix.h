// What detect.h finds in a checkpoint for one weight: spans into its mapped files, not read yet.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"
#include "kernels/formats/format.h"

namespace ft {

struct FoundMatrix {
  FormatId format{};
  std::string name;  // of the tensor that holds the codes, for messages
  int64_t rows = 0;
  int64_t cols = 0;
  // Row r of the matrix is row first + r * step of codes and scales: rows of a gate and an up part may take turns.
  int64_t first = 0, step = 1;
  bool input_major = false;  // bf16 only: codes are [cols, rows * step]
  std::span<const std::byte> codes;
  // As RawMatrix has them, of scale_dtype. fp8_block also: a single one for the whole matrix.
  std::span<const std::byte> scales;
  DType scale_dtype{};
  std::span<const std::byte> global;  // one F32, or empty
  bool global_divides = false;

  // Matrix rows that share a row of scales; 0: all, and all columns too.
  int64_t rows_per_scale() const;
};

// A vector, or every step-th value of one from `first` on.
struct FoundVector {
  DType dtype{};
  int64_t size = 0;
  int64_t first = 0, step = 1;
  std::span<const std::byte> bytes;  // size * step values; empty: there is none
};

struct FoundExpert {
  FoundMatrix gate, up, down;
  FoundVector gate_bias, up_bias, down_bias;
};

// Spans of the result point where `found`'s do, whatever their alignment there, or, where the scales had to become F32,
// or one scale those of many blocks, into `scales`. Throws Error when the global scale is not usable.
// REQUIRES step 1, not input_major.
RawMatrix raw_matrix(const FoundMatrix& found, std::vector<float>& scales);

// BF16, F16, F32 or F8_E8M0 to fp32, any alignment. REQUIRES out.size() == view.elements().
void convert_to_f32(const TensorView& view, std::span<float> out);

}  // namespace ft
