// From a tensor in a checkpoint's file to packed tiles in a bank, through a small buffer: read a few row tiles, pack
// them, read the next. One packer per thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/found_matrix.h"
#include "kernels/formats/expert_blob.h"

namespace ft {

// What one packer reads at a time: half of a core's second-level cache of 1 MiB, so that packing finds it there. A
// single tile of rows that are longer is read as a whole: at most kRowsPerTile * kMaxMatrixCols bf16, 2 MiB.
inline constexpr int64_t kStagingBytes = 512 << 10;
// Of a matrix that is stored input-major: its rows come in strips, two bytes of each row and input, and strips below a
// KiB cost more to ask for than to read.
inline constexpr int64_t kInputMajorStagingBytes = 4 << 20;

class StagedPacker {
 public:
  explicit StagedPacker(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}

  // Row tiles [tile_begin, tile_end) of the matrix at `dst`. Returns its global multiplier. fp8_block: tile_begin is a
  // multiple of kTileStep. Throws Error naming file or tensor.
  float pack(const FoundMatrix& found, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end,
             std::byte* dst);
  void pack(const FoundExpert& found, const ExpertLayout& layout, std::byte* dst);

  static constexpr int64_t kTileStep = 32;  // the tiles of one row of fp8 scales

 private:
  std::byte* staging(int64_t bytes);
  // Rows [begin, end), staged as a matrix of their own.
  FoundMatrix read_rows(const FoundMatrix& found, int64_t begin, int64_t end);
  FoundMatrix read_input_major(const FoundMatrix& found, int64_t begin, int64_t end);
  std::span<const float> read_bias(const FoundVector& found, std::vector<float>& values);

  const Checkpoint* checkpoint_;
  std::vector<std::byte> staging_;
  std::vector<float> scales_, biases_[3];
};

}  // namespace ft
