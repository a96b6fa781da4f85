// One expert as one contiguous range: [gate matrix][up matrix][down matrix][trailer], 4 KiB aligned and padded, so that
// a fetch is one copy. Shapes: gate and up [intermediate, hidden], down [hidden, intermediate].
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/formats/format.h"

namespace ft {

// Trailer, 16 bytes at trailer_offset.
struct ExpertTrailer {
  float gate_global = 1.0f;
  float up_global = 1.0f;
  float down_global = 1.0f;
  float reserved = 0.0f;
};
static_assert(sizeof(ExpertTrailer) == 16);

struct ExpertLayout {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  PackedLayout gate;  // same layout as up
  PackedLayout down;
  int64_t up_offset = 0;
  int64_t down_offset = 0;
  int64_t trailer_offset = 0;
  int64_t bytes = 0;          // multiple of kBlobAlign: what a slot holds and a fetch moves
  int64_t payload_bytes = 0;  // weights and trailer without the padding
};

ExpertLayout expert_layout(FormatId format, int64_t hidden, int64_t intermediate);

// Packs one expert; the three raw matrices have one format. dst: layout.bytes, kBlobAlign aligned.
void pack_expert(const RawMatrix& gate, const RawMatrix& up, const RawMatrix& down, const ExpertLayout& layout,
                 std::byte* dst);
// The rest of a blob whose three matrices are packed already: trailer and the bytes that no tile covers.
void finish_expert(const ExpertLayout& layout, const ExpertTrailer& trailer, std::byte* dst);
void synthesize_expert(const ExpertLayout& layout, uint64_t seed, std::byte* dst);

PackedMatrix expert_gate(const ExpertLayout& layout, const std::byte* blob);
PackedMatrix expert_up(const ExpertLayout& layout, const std::byte* blob);
PackedMatrix expert_down(const ExpertLayout& layout, const std::byte* blob);

}  // namespace ft
