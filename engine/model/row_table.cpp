#include "engine/model/row_table.h"

#include <array>
#include <bit>
#include <cstring>

#include "engine/model/checkpoint.h"
#include "kernels/base/bf16.h"
#include "kernels/base/error.h"
#include "kernels/base/fp_codes.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

constexpr auto kE4m3Values = [] {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) values[code] = decode_e4m3(static_cast<uint8_t>(code));
  return values;
}();

}  // namespace

RowTable::RowTable(const Checkpoint& checkpoint, FoundRows found, int64_t rows, int64_t width)
    : checkpoint_(&checkpoint), found_(std::move(found)), rows_(rows), width_(width) {
  const auto parts = static_cast<int64_t>(found_.parts.size());
  FT_CHECK(parts > 0 && rows % parts == 0 && found_.scales.size() == found_.parts.size());
  part_rows_ = rows / parts;
}

RowTable::RowTable(uint64_t seed, int64_t rows, int64_t width) : seed_(seed), rows_(rows), width_(width) {
  found_.dtype = DType::kBf16;
}

std::span<const std::byte> RowTable::stored(int64_t row) const {
  FT_CHECK(row >= 0 && row < rows_);
  const auto bytes = static_cast<size_t>(row_bytes());
  return found_.parts[static_cast<size_t>(row / part_rows_)].subspan(static_cast<size_t>(row % part_rows_) * bytes,
                                                                     bytes);
}

void RowTable::will_read(int64_t row) const {
  if (checkpoint_ != nullptr) checkpoint_->will_read(stored(row));
}

void RowTable::read(int64_t row, float* to) const {
  if (checkpoint_ == nullptr) {
    make(row, to);
    return;
  }
  const std::byte* from = stored(row).data();
  const float scale = found_.scales[static_cast<size_t>(row / part_rows_)];
  for (int64_t i = 0; i < width_; ++i) {
    if (found_.dtype == DType::kBf16) {
      bf16 value;
      std::memcpy(&value, from + i * int64_t{sizeof value}, sizeof value);
      to[i] = to_float(value) * scale;
    } else {
      to[i] = kE4m3Values[static_cast<uint8_t>(from[i])] * scale;
    }
  }
}

void RowTable::make(int64_t row, float* to) const {
  constexpr uint32_t kRandomBits = 0x807f0000u, kExponent = 0x3d000000u;
  for (int64_t i = 0; i < width_; ++i) {
    const uint64_t word = mix64(seed_ + static_cast<uint64_t>(row * width_ + i));
    to[i] = std::bit_cast<float>((static_cast<uint32_t>(word) & kRandomBits) | kExponent);
  }
}

}  // namespace ft
