#include "kernels/formats/expert_blob.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/formats/layout.h"

namespace ft {
namespace {

ExpertTrailer read_trailer(const ExpertLayout& layout, const std::byte* blob) {
  ExpertTrailer trailer;
  std::memcpy(&trailer, blob + layout.trailer_offset, sizeof trailer);
  return trailer;
}

// The trailer and the zeros behind it, so that equal experts are equal bytes.
void write_trailer(const ExpertLayout& layout, const ExpertTrailer& trailer, std::byte* dst) {
  std::memset(dst + layout.trailer_offset, 0, static_cast<size_t>(layout.bytes - layout.trailer_offset));
  std::memcpy(dst + layout.trailer_offset, &trailer, sizeof trailer);
}

// Bytes between the parts that no tile covers (codes and scales are padded to kPackedAlign).
void clear_padding(const PackedLayout& layout, std::byte* matrix) {
  const int64_t codes_end = layout.row_tiles * layout.code_bytes_per_tile;
  const int64_t scales_end = layout.scales_offset + layout.row_tiles * layout.scale_bytes_per_tile;
  std::memset(matrix + codes_end, 0, static_cast<size_t>(layout.scales_offset - codes_end));
  std::memset(matrix + scales_end, 0, static_cast<size_t>(layout.bytes - scales_end));
}

}  // namespace

ExpertLayout expert_layout(FormatId format, int64_t hidden, int64_t intermediate) {
  const FormatInfo& info = format_info(format);
  ExpertLayout layout;
  layout.hidden = hidden;
  layout.intermediate = intermediate;
  layout.gate = info.layout(intermediate, hidden);
  layout.down = info.layout(hidden, intermediate);
  layout.up_offset = layout.gate.bytes;
  layout.down_offset = layout.up_offset + layout.gate.bytes;
  layout.trailer_offset = layout.down_offset + layout.down.bytes;
  layout.payload_bytes = layout.trailer_offset + static_cast<int64_t>(sizeof(ExpertTrailer));
  layout.bytes = formats::round_up(layout.payload_bytes, kBlobAlign);
  return layout;
}

void pack_expert(const RawMatrix& gate, const RawMatrix& up, const RawMatrix& down, const ExpertLayout& layout,
                 std::byte* dst) {
  const FormatInfo& info = format_info(layout.gate.format);
  const auto pack = [&](const RawMatrix& raw, const PackedLayout& part, int64_t offset) {
    info.pack(raw, part, 0, part.row_tiles, dst + offset);
  };
  pack(gate, layout.gate, 0);
  pack(up, layout.gate, layout.up_offset);
  pack(down, layout.down, layout.down_offset);
  finish_expert(layout, {.gate_global = gate.global, .up_global = up.global, .down_global = down.global}, dst);
}

void finish_expert(const ExpertLayout& layout, const ExpertTrailer& trailer, std::byte* dst) {
  clear_padding(layout.gate, dst);
  clear_padding(layout.gate, dst + layout.up_offset);
  clear_padding(layout.down, dst + layout.down_offset);
  write_trailer(layout, trailer, dst);
}

void synthesize_expert(const ExpertLayout& layout, uint64_t seed, std::byte* dst) {
  const FormatInfo& info = format_info(layout.gate.format);
  const auto synthesize = [&](const PackedLayout& part, int64_t offset, uint64_t part_index) {
    info.synthesize(part, mix64(seed) + part_index, 0, part.row_tiles, dst + offset);
  };
  synthesize(layout.gate, 0, 0);
  synthesize(layout.gate, layout.up_offset, 1);
  synthesize(layout.down, layout.down_offset, 2);
  const float hidden_global = info.synthetic_global(layout.hidden);
  finish_expert(layout,
                {.gate_global = hidden_global,
                 .up_global = hidden_global,
                 .down_global = info.synthetic_global(layout.intermediate)},
                dst);
}

PackedMatrix expert_gate(const ExpertLayout& layout, const std::byte* blob) {
  return {layout.gate, blob, read_trailer(layout, blob).gate_global};
}

PackedMatrix expert_up(const ExpertLayout& layout, const std::byte* blob) {
  return {layout.gate, blob + layout.up_offset, read_trailer(layout, blob).up_global};
}

PackedMatrix expert_down(const ExpertLayout& layout, const std::byte* blob) {
  return {layout.down, blob + layout.down_offset, read_trailer(layout, blob).down_global};
}

}  // namespace ft
