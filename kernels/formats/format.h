// Weight formats: what each one is, and the packed layout all kernels read.
//
// PACKED MATRIX [rows, cols] (cols = K, the reduction length). One layout for host banks, slots, dense weights and
// packed cache files. Rows go in tiles of kRowsPerTile, K in blocks of 16 lanes; lane l of a block owns the `group`
// consecutive k that start at (block * 16 + l) * group. A lane's k are stored as pairs (2p, 2p + 1), p = 0 .. group/2
// - 1.
//
//   codes : [row tile][block][word h][row in tile][lane]   32-bit words, kWordsPerLane(format) words per lane
//   scales: [row tile][block][...]                          per format, see the format's own header
//
// so that a core reads one forward stream and a vector load is 16 lanes of one row. The last block of a row holds only
// the lanes it needs, ceil(rest / group), each whole: k past cols are zero codes. Rows past `rows` in the last tile are
// zero codes with zero scales. codes and scales of a matrix start on kPackedAlign boundaries. Words are little endian.
//
// The order of arithmetic over this layout (DESIGN section 3, "canonical order") is stated in kernels/ops/matvec.h.
//
// To add a format: one pair formats/NAME.h and NAME.cpp, one line in formats.def and one include in format.cpp, its
// decode lines in reference/decode.h, cpu/decode.inc.h and cuda/decode.cuh, its loader in cuda/weight_tile.cuh. Nothing
// else in kernels/ switches over FormatId.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ft {

enum class FormatId : uint8_t {
#define FT_FORMAT(id, name) id,
#include "kernels/formats/formats.def"
#undef FT_FORMAT
};
#define FT_FORMAT(id, name) +1  // NOLINT(bugprone-macro-parentheses): a term of the sum below
inline constexpr int kFormatCount = 0
#include "kernels/formats/formats.def"
    ;
#undef FT_FORMAT

inline constexpr int kLanes = 16;
inline constexpr int kRowsPerTile = 4;
inline constexpr int64_t kPackedAlign = 64;
inline constexpr int64_t kBlobAlign = 4096;
// Bounds of one matrix, checked by every layout(): four times the largest vocabulary and dense row known, and small
// enough that no product of them overflows.
inline constexpr int64_t kMaxMatrixRows = int64_t{1} << 22;
inline constexpr int64_t kMaxMatrixCols = int64_t{1} << 18;

struct PackedLayout {
  FormatId format{};
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_tiles = 0;
  int64_t blocks = 0;      // per row, the short one included
  int64_t last_lanes = 0;  // lanes of the last block, 1 .. 16
  int64_t code_bytes_per_tile = 0;
  int64_t scale_bytes_per_tile = 0;  // 0 for bf16
  int64_t codes_offset = 0;          // from the start of the matrix, always 0
  int64_t scales_offset = 0;
  int64_t bytes = 0;  // whole matrix, a multiple of kPackedAlign
};

// What a checkpoint holds for one matrix, as raw row-major spans. Unused members are empty.
struct RawMatrix {
  FormatId format{};
  int64_t rows = 0;
  int64_t cols = 0;
  // bf16: u16[rows, cols]; nvfp4, mxfp4: u8[rows, cols/2], low nibble even; fp8: u8[rows, cols]
  std::span<const std::byte> codes;
  // nvfp4: e4m3 u8[rows, cols/16]; mxfp4: e8m0 u8[rows, cols/32]; fp8 block: f32[ceil(rows/128), ceil(cols/128)];
  // fp8 channel: f32[rows]
  std::span<const std::byte> scales;
  float global = 1.0f;  // multiplier of the whole matrix (a divisor on disk is inverted by the loader)
};

struct FormatInfo {
  FormatId id{};
  std::string_view name;        // "bf16", "nvfp4": the registry and profile key
  int group = 0;                // k per lane and block
  int words_per_lane = 0;       // 32-bit code words per lane and block
  int cols_multiple = 1;        // what cols have to be a multiple of
  double bytes_per_weight = 0;  // codes and scales, without those that a row has once
  // Throws Error when rows or cols are out of bounds or cols is not a multiple of cols_multiple.
  PackedLayout (*layout)(int64_t rows, int64_t cols) = nullptr;
  // Packs rows of whole tiles [tile_begin, tile_end) into dst (start of the matrix). Pure; callers parallelise. Throws
  // Error when a span is not the size that rows and cols ask for.
  void (*pack)(const RawMatrix& raw, const PackedLayout& layout, int64_t tile_begin, int64_t tile_end,
               std::byte* dst) = nullptr;
  // Exact fp32 value of every weight of one row without the global: code times scale. out: cols floats. The oracle.
  void (*decode_row)(const PackedLayout& layout, const std::byte* matrix, int64_t row, float* out) = nullptr;
  // Seeded synthetic weights written in place, packed, at memory speed: values that keep activations finite for a
  // matrix with this cols; deterministic in (seed, tile) whatever the number of callers.
  void (*synthesize)(const PackedLayout& layout, uint64_t seed, int64_t tile_begin, int64_t tile_end,
                     std::byte* dst) = nullptr;
  // The global that goes with synthesize(): with it the weights have a root mean square of 1 / sqrt(cols), within a
  // factor of 1.5. 1 where scales or exponents can hold the magnitude themselves.
  float (*synthetic_global)(int64_t cols) = nullptr;
};

const FormatInfo& format_info(FormatId id);
std::optional<FormatId> format_by_name(std::string_view name);
std::span<const FormatInfo> all_formats();

// A packed matrix somewhere in memory the kernels can read. Does not own.
struct PackedMatrix {
  PackedLayout layout;
  const std::byte* data = nullptr;
  float global = 1.0f;
  const float* bias = nullptr;  // (rows) added to a product, or none
};

}  // namespace ft
