// One expert as one contiguous range: [gate matrix][up matrix][down matrix][biases][trailer], 4 KiB aligned and padded,
// so that a fetch is one copy. Shapes: gate and up [intermediate, hidden], down [hidden, intermediate]; biases are
// fp32, gate's, up's, down's, and absent for experts without.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/formats/format.h"
#include "kernels/ops/glu.h"

namespace ft {

// Trailer, 16 bytes at trailer_offset.
struct ExpertTrailer {
  float gate_global = 1.0f;
  float up_global = 1.0f;
  float down_global = 1.0f;
  float reserved = 0.0f;
};
static_assert(sizeof(ExpertTrailer) == 16);

// What experts of a model have in common beside their size.
struct ExpertForm {
  Glu glu;
  bool biased = false;

  bool operator==(const ExpertForm&) const = default;
};

struct ExpertLayout {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Glu glu;
  PackedLayout gate;  // same layout as up
  PackedLayout down;
  int64_t up_offset = 0;
  int64_t down_offset = 0;
  int64_t bias_offset = 0;  // 0: no biases
  int64_t trailer_offset = 0;
  int64_t bytes = 0;          // multiple of kBlobAlign: what a slot holds and a fetch moves
  int64_t payload_bytes = 0;  // weights, biases and trailer without the padding
};

ExpertLayout expert_layout(FormatId format, int64_t hidden, int64_t intermediate, const ExpertForm& form = {});

// Of the gate, up and down products; empty for experts without.
struct ExpertBiases {
  std::span<const float> gate, up, down;
};

// Packs one expert; the three raw matrices have one format. dst: layout.bytes, kBlobAlign aligned.
void pack_expert(const RawMatrix& gate, const RawMatrix& up, const RawMatrix& down, const ExpertLayout& layout,
                 std::byte* dst, const ExpertBiases& biases = {});
// The rest of a blob whose three matrices are packed already: biases, trailer and the bytes that no tile covers.
void finish_expert(const ExpertLayout& layout, const ExpertTrailer& trailer, std::byte* dst,
                   const ExpertBiases& biases = {});
void synthesize_expert(const ExpertLayout& layout, uint64_t seed, std::byte* dst);

PackedMatrix expert_gate(const ExpertLayout& layout, const std::byte* blob);
PackedMatrix expert_up(const ExpertLayout& layout, const std::byte* blob);
PackedMatrix expert_down(const ExpertLayout& layout, const std::byte* blob);

}  // namespace ft
