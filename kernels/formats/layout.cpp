#include "kernels/formats/layout.h"

#include <string>

#include "kernels/base/error.h"

namespace ft::formats {
namespace {

std::string shape_text(int64_t rows, int64_t cols) {
  std::string text = std::to_string(rows);
  text += " x ";
  text += std::to_string(cols);
  return text;
}

[[noreturn]] void refuse(FormatId format, const std::string& what, std::string value, std::string allowed) {
  throw Error(ErrorKind::kFailed, {.what = std::string(format_info(format).name) + " matrix: " + what,
                                   .value = std::move(value),
                                   .allowed = std::move(allowed),
                                   .action = "this build cannot hold that tensor in this format"});
}

}  // namespace

PackedLayout make_layout(FormatId format, int64_t rows, int64_t cols, int64_t scale_bytes) {
  if (rows < 1 || rows > kMaxMatrixRows) {
    refuse(format, "rows", std::to_string(rows), "1 to " + std::to_string(kMaxMatrixRows));
  }
  if (cols < 1 || cols > kMaxMatrixCols) {
    refuse(format, "cols", std::to_string(cols), "1 to " + std::to_string(kMaxMatrixCols));
  }
  const FormatInfo& info = format_info(format);
  if (cols % info.cols_multiple != 0) {
    refuse(format, "cols", std::to_string(cols), "multiples of " + std::to_string(info.cols_multiple));
  }
  PackedLayout layout;
  layout.format = format;
  layout.rows = rows;
  layout.cols = cols;
  layout.row_tiles = ceil_div(rows, kRowsPerTile);
  const int64_t lanes = ceil_div(cols, info.group);
  layout.blocks = ceil_div(lanes, kLanes);
  layout.last_lanes = lanes - (layout.blocks - 1) * kLanes;
  layout.code_bytes_per_tile = lanes * info.words_per_lane * 4 * kRowsPerTile;
  layout.scale_bytes_per_tile = scale_bytes;
  layout.scales_offset = round_up(layout.row_tiles * layout.code_bytes_per_tile, kPackedAlign);
  layout.bytes = layout.scales_offset + round_up(layout.row_tiles * scale_bytes, kPackedAlign);
  return layout;
}

void check_raw(const RawMatrix& raw, const PackedLayout& layout, int64_t code_bytes, int64_t scale_bytes,
               int64_t tile_begin, int64_t tile_end) {
  if (raw.format != layout.format || raw.rows != layout.rows || raw.cols != layout.cols) {
    refuse(layout.format, "shape of the raw matrix", shape_text(raw.rows, raw.cols),
           shape_text(layout.rows, layout.cols));
  }
  if (static_cast<int64_t>(raw.codes.size()) != code_bytes) {
    refuse(layout.format, "bytes of codes for shape " + shape_text(raw.rows, raw.cols),
           std::to_string(raw.codes.size()), std::to_string(code_bytes));
  }
  if (static_cast<int64_t>(raw.scales.size()) != scale_bytes) {
    refuse(layout.format, "bytes of scales for shape " + shape_text(raw.rows, raw.cols),
           std::to_string(raw.scales.size()), std::to_string(scale_bytes));
  }
  FT_CHECK(0 <= tile_begin && tile_begin <= tile_end && tile_end <= layout.row_tiles);
}

void fill_random(std::byte* dst, int64_t bytes, uint64_t seed, int64_t tile, int stream, uint64_t keep, uint64_t set) {
  const uint64_t base = mix64(mix64(seed * 4 + static_cast<uint64_t>(stream)) ^ static_cast<uint64_t>(tile));
  int64_t offset = 0;
  for (uint64_t i = 0; offset + 8 <= bytes; offset += 8, ++i) {
    const uint64_t word = (mix64(base + i) & keep) | set;
    std::memcpy(dst + offset, &word, 8);
  }
  if (offset < bytes) {
    const uint64_t word = (mix64(base + static_cast<uint64_t>(offset / 8)) & keep) | set;
    std::memcpy(dst + offset, &word, static_cast<size_t>(bytes - offset));
  }
}

}  // namespace ft::formats
