// A table of embedding rows that is far larger than what a token reads of it. It stays where the checkpoint is: a
// step's rows are read from the mapped files, which the kernel keeps in memory as there is room, and nothing of it is
// loaded or copied to a device. Thread rule: any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/safetensors.h"

namespace ft {

class Checkpoint;

// What a checkpoint holds: parts of equally many rows, one after another, BF16 or F8_E4M3.
struct FoundRows {
  std::vector<std::span<const std::byte>> parts;
  std::vector<float> scales;  // of the parts, multiplied
  DType dtype{};
};

class RowTable {
 public:
  // `checkpoint` outlives the table and has the parts mapped.
  RowTable(const Checkpoint& checkpoint, FoundRows found, int64_t rows, int64_t width);
  // Rows that are made when they are read: every value has a magnitude in [2^-5, 2^-4), a random sign and mantissa.
  RowTable(uint64_t seed, int64_t rows, int64_t width);

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  int64_t row_bytes() const { return width_ * (found_.dtype == DType::kBf16 ? 2 : 1); }

  // Has a row fetched from the disk if it is not in memory, without waiting: many are then read at once.
  void will_read(int64_t row) const;
  void read(int64_t row, float* to) const;  // (width)

 private:
  std::span<const std::byte> stored(int64_t row) const;
  void make(int64_t row, float* to) const;

  const Checkpoint* checkpoint_ = nullptr;  // null: rows are made
  FoundRows found_;
  uint64_t seed_ = 0;
  int64_t rows_ = 0, width_ = 0, part_rows_ = 1;
};

}  // namespace ft
