// The fp32 activation rows that a family names by Slot, allocated once for the largest step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/model/family.h"
#include "engine/runtime/backend.h"
#include "kernels/host/host_memory.h"

namespace ft {

// Rows of one width with an array of row pointers for the kernels that take one.
template <class Element>
class RowBuffer {
 public:
  RowBuffer() = default;
  // Rows start on 64 bytes, or follow each other without a gap when `dense`. Contents start as zero.
  RowBuffer(int64_t rows, int64_t width, WorkerPool* pool = nullptr, bool dense = false)
      : width_(width),
        stride_(dense ? width : (width * kBytes + 63) / 64 * 64 / kBytes),
        memory_(rows * stride_ * kBytes, pool) {
    rows_.reserve(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) rows_.push_back(memory_.as<Element>() + row * stride_);
  }
  int64_t width() const { return width_; }
  int64_t stride() const { return stride_; }
  int64_t count() const { return static_cast<int64_t>(rows_.size()); }
  Element* row(int64_t index) const { return rows_[static_cast<size_t>(index)]; }
  Element* const* rows() const { return rows_.data(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  static constexpr int64_t kBytes = static_cast<int64_t>(sizeof(Element));
  int64_t width_ = 0, stride_ = 0;
  HostBuffer memory_;
  std::vector<Element*> rows_;
};

class ActivationBuffers {
 public:
  ActivationBuffers(const Family& family, int64_t max_tokens) {
    for (int slot = 0; slot < kSlotCount; ++slot) {
      const int64_t width = family.width(static_cast<Slot>(slot));
      if (width > 0) slots_[static_cast<size_t>(slot)] = RowBuffer<float>(max_tokens, width);
    }
  }
  const RowBuffer<float>& operator[](Slot slot) const { return slots_[static_cast<size_t>(slot)]; }

 private:
  std::array<RowBuffer<float>, kSlotCount> slots_;
};

}  // namespace ft
