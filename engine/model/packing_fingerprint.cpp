#include "engine/model/packing_fingerprint.h"

#include <vector>

#include "kernels/base/hash.h"
#include "kernels/base/random.h"
#include "kernels/formats/expert_blob.h"
#include "kernels/formats/fp8_block.h"

namespace ft {
namespace {

// Ragged in every way: a short last block of lanes and a last fp8 block of few rows and columns.
constexpr int64_t kHidden = 544, kIntermediate = 160;

std::vector<std::byte> random_bytes(int64_t bytes, uint64_t seed) {
  std::vector<std::byte> result(static_cast<size_t>(bytes));
  Random random(seed);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random.next());
  return result;
}

// A matrix as a checkpoint holds it.
struct Raw {
  std::vector<std::byte> codes, scales;
  RawMatrix matrix;
};

Raw make_raw(const FormatInfo& format, int64_t rows, int64_t cols, uint64_t seed) {
  const PackedLayout layout = format.layout(rows, cols);
  Raw raw;
  raw.codes = random_bytes(rows * cols * format.words_per_lane * 4 / format.group, seed);
  const bool fp8 = format.id == FormatId::kFp8Block;
  const int64_t rows_per_scale_row = fp8 ? formats::fp8_block::kScaleBlock : 1;
  const int64_t scale_row_bytes = fp8 ? layout.scale_bytes_per_tile : layout.scale_bytes_per_tile / kRowsPerTile;
  const int64_t scale_rows = (rows + rows_per_scale_row - 1) / rows_per_scale_row;
  raw.scales = random_bytes(scale_rows * scale_row_bytes, seed + 1);
  raw.matrix = {format.id, rows, cols, raw.codes, raw.scales, static_cast<float>(seed)};
  return raw;
}

}  // namespace

std::string packing_fingerprint() {
  Hasher hasher;
  const std::vector<float> gate_bias(kIntermediate, 2.0f), down_bias(kHidden, 3.0f);
  for (const FormatInfo& format : all_formats()) {
    const ExpertLayout layout = expert_layout(format.id, kHidden, kIntermediate, {{}, /*biased=*/true});
    const Raw gate = make_raw(format, kIntermediate, kHidden, 1), up = make_raw(format, kIntermediate, kHidden, 3);
    const Raw down = make_raw(format, kHidden, kIntermediate, 5);
    std::vector<std::byte> blob(static_cast<size_t>(layout.bytes));
    pack_expert(gate.matrix, up.matrix, down.matrix, layout, blob.data(), {gate_bias, gate_bias, down_bias});
    hasher.add(std::as_bytes(std::span(format.name.data(), format.name.size())));
    hasher.add(blob);
    const int64_t rows = kIntermediate - 2;  // a last tile with absent rows
    const Raw dense = make_raw(format, rows, kHidden, 7);
    const PackedLayout dense_layout = format.layout(rows, kHidden);
    std::vector<std::byte> packed(static_cast<size_t>(dense_layout.bytes));
    format.pack(dense.matrix, dense_layout, 0, dense_layout.row_tiles, packed.data());
    hasher.add(packed);
  }
  return hasher.hex();
}

}  // namespace ft
