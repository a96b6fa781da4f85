#include "engine/model/staged_packer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/formats/fp8_block.h"

namespace ft {
namespace {

static_assert(StagedPacker::kTileStep * kRowsPerTile == formats::fp8_block::kScaleBlock);

constexpr int64_t kBf16Bytes = 2;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows [begin, end) of a span that holds `rows` of them.
std::span<const std::byte> rows_of(std::span<const std::byte> bytes, int64_t rows, int64_t begin, int64_t end) {
  const int64_t row_bytes = static_cast<int64_t>(bytes.size()) / rows;
  return bytes.subspan(static_cast<size_t>(begin * row_bytes), static_cast<size_t>((end - begin) * row_bytes));
}

// Rows [begin, end) of a matrix that is not input-major.
FoundMatrix part_of(const FoundMatrix& found, int64_t begin, int64_t end) {
  FoundMatrix part = found;
  part.rows = end - begin;
  part.codes = rows_of(found.codes, found.rows, begin, end);
  const int64_t unit = found.rows_per_scale();
  if (unit == 0 || found.scales.empty()) return part;
  part.scales = rows_of(found.scales, ceil_div(found.rows, unit), begin / unit, ceil_div(end, unit));
  return part;
}

// A power of two, so that steps of it never straddle two rows of fp8 scales unless they hold whole ones.
int64_t tiles_per_read(const FoundMatrix& found, const PackedLayout& layout) {
  const auto bytes = static_cast<int64_t>(found.codes.size() + found.scales.size());
  const int64_t tile_bytes = ceil_div(bytes, layout.row_tiles);
  const int64_t limit = found.input_major ? kInputMajorStagingBytes : kStagingBytes;
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, limit / tile_bytes))));
}

// Tiles [begin, end) of a matrix as a matrix of their own in the same place.
PackedLayout part_of(PackedLayout layout, int64_t begin, int64_t end) {
  layout.rows = std::min(layout.rows, end * kRowsPerTile) - begin * kRowsPerTile;
  layout.row_tiles = end - begin;
  layout.codes_offset += begin * layout.code_bytes_per_tile;
  layout.scales_offset += begin * layout.scale_bytes_per_tile;
  return layout;
}

// Of rows that take turns with others those of the matrix, moved to the front.
std::span<const std::byte> keep_own(const FoundMatrix& part, std::byte* bytes, size_t size) {
  const size_t row_bytes = size / static_cast<size_t>(part.rows * part.step);
  for (int64_t row = 0; row < part.rows; ++row) {
    const std::byte* from = bytes + static_cast<size_t>(part.first + row * part.step) * row_bytes;
    std::memmove(bytes + static_cast<size_t>(row) * row_bytes, from, row_bytes);
  }
  return {bytes, static_cast<size_t>(part.rows) * row_bytes};
}

}  // namespace

std::byte* StagedPacker::staging(int64_t bytes) {
  if (static_cast<int64_t>(staging_.size()) < bytes) staging_.resize(static_cast<size_t>(bytes));
  return staging_.data();
}

FoundMatrix StagedPacker::read_rows(const FoundMatrix& found, int64_t begin, int64_t end) {
  FoundMatrix part = part_of(found, begin, end);
  std::byte* to = staging(static_cast<int64_t>(part.codes.size() + part.scales.size() + part.global.size()));
  const bool scales_of_rows = part.rows_per_scale() == 1 && !part.scales.empty();
  for (std::span<const std::byte>* bytes : {&part.codes, &part.scales, &part.global}) {
    checkpoint_->read(*bytes, to);
    const size_t size = bytes->size();
    const bool of_rows = bytes == &part.codes || (bytes == &part.scales && scales_of_rows);
    *bytes = of_rows && part.step > 1 ? keep_own(part, to, size) : std::span<const std::byte>{to, size};
    to += size;
  }
  return part;
}

// Rows of a matrix that is stored as [cols, rows]: a strip of every input is read and dealt out.
FoundMatrix StagedPacker::read_input_major(const FoundMatrix& found, int64_t begin, int64_t end) {
  FoundMatrix part = found;
  part.rows = end - begin;
  const int64_t row_bytes = found.cols * kBf16Bytes, step_bytes = found.step * kBf16Bytes;
  const int64_t strip_bytes = part.rows * step_bytes;
  std::byte* rows = staging(part.rows * row_bytes + strip_bytes);
  std::byte* strip = rows + part.rows * row_bytes;
  for (int64_t k = 0; k < found.cols; ++k) {
    const int64_t at = (k * found.rows + begin) * step_bytes;
    checkpoint_->read(found.codes.subspan(static_cast<size_t>(at), static_cast<size_t>(strip_bytes)), strip);
    std::byte* to = rows + k * kBf16Bytes;
    const std::byte* from = strip + found.first * kBf16Bytes;
    for (int64_t row = 0; row < part.rows; ++row, to += row_bytes, from += step_bytes) {
      std::memcpy(to, from, kBf16Bytes);
    }
  }
  part.codes = {rows, static_cast<size_t>(part.rows * row_bytes)};
  return part;
}

float StagedPacker::pack(const FoundMatrix& found, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end,
                         std::byte* dst) {
  const FormatInfo& format = format_info(layout.format);
  FT_CHECK(layout.format != FormatId::kFp8Block || tile_begin % kTileStep == 0);
  const int64_t step = tiles_per_read(found, layout);
  float global = 1.0f;
  for (int64_t tile = tile_begin; tile < tile_end; tile += step) {
    const PackedLayout part_layout = part_of(layout, tile, std::min(tile + step, tile_end));
    const int64_t row = tile * kRowsPerTile, row_end = row + part_layout.rows;
    FoundMatrix part = found.input_major ? read_input_major(found, row, row_end) : read_rows(found, row, row_end);
    part.first = 0;
    part.step = 1;
    part.input_major = false;
    const RawMatrix raw = raw_matrix(part, scales_);
    format.pack(raw, part_layout, 0, part_layout.row_tiles, dst);
    global = raw.global;
  }
  return global;
}

std::span<const float> StagedPacker::read_bias(const FoundVector& found, std::vector<float>& values) {
  TensorView view;
  view.dtype = found.dtype;
  view.bytes = {staging(static_cast<int64_t>(found.bytes.size())), found.bytes.size()};
  checkpoint_->read(found.bytes, staging_.data());
  values.resize(static_cast<size_t>(view.elements()));
  convert_to_f32(view, values);
  for (int64_t i = 0; i < found.size && found.step > 1; ++i) {
    values[static_cast<size_t>(i)] = values[static_cast<size_t>(found.first + i * found.step)];
  }
  return std::span(values).first(static_cast<size_t>(found.size));
}

void StagedPacker::pack(const FoundExpert& found, const ExpertLayout& layout, std::byte* dst) {
  ExpertTrailer trailer;
  trailer.gate_global = pack(found.gate, layout.gate, 0, layout.gate.row_tiles, dst);
  trailer.up_global = pack(found.up, layout.gate, 0, layout.gate.row_tiles, dst + layout.up_offset);
  trailer.down_global = pack(found.down, layout.down, 0, layout.down.row_tiles, dst + layout.down_offset);
  ExpertBiases biases;
  if (layout.bias_offset != 0) {
    biases = {read_bias(found.gate_bias, biases_[0]), read_bias(found.up_bias, biases_[1]),
              read_bias(found.down_bias, biases_[2])};
  }
  finish_expert(layout, trailer, dst, biases);
}

}  // namespace ft
