#include "engine/model/staged_packer.h"

#include <algorithm>
#include <bit>

#include "kernels/base/error.h"
#include "kernels/formats/fp8_block.h"

namespace ft {
namespace {

static_assert(StagedPacker::kTileStep * kRowsPerTile == formats::fp8_block::kScaleBlock);

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows [begin, end) of a span that holds `rows` of them.
std::span<const std::byte> rows_of(std::span<const std::byte> bytes, int64_t rows, int64_t begin, int64_t end) {
  const int64_t row_bytes = static_cast<int64_t>(bytes.size()) / rows;
  return bytes.subspan(static_cast<size_t>(begin * row_bytes), static_cast<size_t>((end - begin) * row_bytes));
}

// A power of two, so that steps of it never straddle two rows of fp8 scales unless they hold whole ones.
int64_t tiles_per_read(const FoundMatrix& found, const PackedLayout& layout) {
  const auto bytes = static_cast<int64_t>(found.codes.size() + found.scales.size());
  const int64_t tile_bytes = ceil_div(bytes, layout.row_tiles);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, kStagingBytes / tile_bytes))));
}

// Tiles [begin, end) of a matrix as a matrix of their own in the same place.
PackedLayout part_of(PackedLayout layout, int64_t begin, int64_t end) {
  layout.rows = std::min(layout.rows, end * kRowsPerTile) - begin * kRowsPerTile;
  layout.row_tiles = end - begin;
  layout.codes_offset += begin * layout.code_bytes_per_tile;
  layout.scales_offset += begin * layout.scale_bytes_per_tile;
  return layout;
}

}  // namespace

float StagedPacker::pack(const FoundMatrix& found, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end,
                         std::byte* dst) {
  const FormatInfo& format = format_info(layout.format);
  const bool fp8 = layout.format == FormatId::kFp8Block;
  FT_CHECK(!fp8 || tile_begin % kTileStep == 0);
  const int64_t unit = fp8 ? formats::fp8_block::kScaleBlock : 1;  // matrix rows per row of scales
  const int64_t step = tiles_per_read(found, layout);
  float global = 1.0f;
  for (int64_t tile = tile_begin; tile < tile_end; tile += step) {
    const PackedLayout part_layout = part_of(layout, tile, std::min(tile + step, tile_end));
    const int64_t row = tile * kRowsPerTile, row_end = row + part_layout.rows;
    FoundMatrix part = found;
    part.rows = part_layout.rows;
    part.codes = rows_of(found.codes, found.rows, row, row_end);
    if (!found.scales.empty()) {
      part.scales = rows_of(found.scales, ceil_div(found.rows, unit), row / unit, ceil_div(row_end, unit));
    }
    staging_.resize(std::max(staging_.size(), part.codes.size() + part.scales.size() + part.global.size()));
    std::byte* to = staging_.data();
    for (std::span<const std::byte>* bytes : {&part.codes, &part.scales, &part.global}) {
      checkpoint_->read(*bytes, to);
      *bytes = {to, bytes->size()};
      to += bytes->size();
    }
    const RawMatrix raw = raw_matrix(part, scales_);
    format.pack(raw, part_layout, 0, part_layout.row_tiles, dst);
    global = raw.global;
  }
  return global;
}

void StagedPacker::pack(const FoundExpert& found, const ExpertLayout& layout, std::byte* dst) {
  finish_expert(layout,
                {.gate_global = pack(found.gate, layout.gate, 0, layout.gate.row_tiles, dst),
                 .up_global = pack(found.up, layout.gate, 0, layout.gate.row_tiles, dst + layout.up_offset),
                 .down_global = pack(found.down, layout.down, 0, layout.down.row_tiles, dst + layout.down_offset)},
                dst);
}

}  // namespace ft
