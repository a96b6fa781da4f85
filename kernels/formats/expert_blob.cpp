#include "kernels/formats/expert_blob.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

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

void write_biases(const ExpertLayout& layout, const ExpertBiases& biases, std::byte* dst) {
  std::memset(dst + layout.bias_offset, 0, static_cast<size_t>(layout.trailer_offset - layout.bias_offset));
  std::byte* to = dst + layout.bias_offset;
  for (const auto& [part, rows] :
       {std::pair{biases.gate, layout.intermediate}, {biases.up, layout.intermediate}, {biases.down, layout.hidden}}) {
    FT_CHECK(static_cast<int64_t>(part.size()) == rows);
    std::memcpy(to, part.data(), part.size_bytes());
    to += part.size_bytes();
  }
}

// Of the part that begins `rows` floats after the first.
const float* bias_at(const ExpertLayout& layout, const std::byte* blob, int64_t rows) {
  if (layout.bias_offset == 0) return nullptr;
  return reinterpret_cast<const float*>(blob + layout.bias_offset) + rows;
}

// Bytes between the parts that no tile covers (codes and scales are padded to kPackedAlign).
void clear_padding(const PackedLayout& layout, std::byte* matrix) {
  const int64_t codes_end = layout.row_tiles * layout.code_bytes_per_tile;
  const int64_t scales_end = layout.scales_offset + layout.row_tiles * layout.scale_bytes_per_tile;
  std::memset(matrix + codes_end, 0, static_cast<size_t>(layout.scales_offset - codes_end));
  std::memset(matrix + scales_end, 0, static_cast<size_t>(layout.bytes - scales_end));
}

}  // namespace

ExpertLayout expert_layout(FormatId format, int64_t hidden, int64_t intermediate, const ExpertForm& form) {
  const FormatInfo& info = format_info(format);
  ExpertLayout layout;
  layout.hidden = hidden;
  layout.intermediate = intermediate;
  layout.glu = form.glu;
  layout.gate = info.layout(intermediate, hidden);
  layout.down = info.layout(hidden, intermediate);
  layout.up_offset = layout.gate.bytes;
  layout.down_offset = layout.up_offset + layout.gate.bytes;
  layout.trailer_offset = layout.down_offset + layout.down.bytes;
  if (form.biased) {
    layout.bias_offset = layout.trailer_offset;
    const int64_t bias_bytes = (2 * intermediate + hidden) * static_cast<int64_t>(sizeof(float));
    layout.trailer_offset = formats::round_up(layout.bias_offset + bias_bytes, kPackedAlign);
  }
  layout.payload_bytes = layout.trailer_offset + static_cast<int64_t>(sizeof(ExpertTrailer));
  layout.bytes = formats::round_up(layout.payload_bytes, kBlobAlign);
  return layout;
}

void pack_expert(const RawMatrix& gate, const RawMatrix& up, const RawMatrix& down, const ExpertLayout& layout,
                 std::byte* dst, const ExpertBiases& biases) {
  const FormatInfo& info = format_info(layout.gate.format);
  const auto pack = [&](const RawMatrix& raw, const PackedLayout& part, int64_t offset) {
    info.pack(raw, part, 0, part.row_tiles, dst + offset);
  };
  pack(gate, layout.gate, 0);
  pack(up, layout.gate, layout.up_offset);
  pack(down, layout.down, layout.down_offset);
  finish_expert(layout, {.gate_global = gate.global, .up_global = up.global, .down_global = down.global}, dst, biases);
}

void finish_expert(const ExpertLayout& layout, const ExpertTrailer& trailer, std::byte* dst,
                   const ExpertBiases& biases) {
  FT_CHECK((layout.bias_offset != 0) == !biases.down.empty());
  clear_padding(layout.gate, dst);
  clear_padding(layout.gate, dst + layout.up_offset);
  clear_padding(layout.down, dst + layout.down_offset);
  if (layout.bias_offset != 0) write_biases(layout, biases, dst);
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
  // Biases of 0 leave the magnitudes that the weights make.
  std::vector<float> zeros(layout.bias_offset != 0 ? static_cast<size_t>(std::max(layout.hidden, layout.intermediate))
                                                   : 0);
  const std::span<const float> none(zeros);
  ExpertBiases biases;
  if (!none.empty()) {
    biases = {none.first(static_cast<size_t>(layout.intermediate)),
              none.first(static_cast<size_t>(layout.intermediate)), none.first(static_cast<size_t>(layout.hidden))};
  }
  finish_expert(layout,
                {.gate_global = hidden_global,
                 .up_global = hidden_global,
                 .down_global = info.synthetic_global(layout.intermediate)},
                dst, biases);
}

PackedMatrix expert_gate(const ExpertLayout& layout, const std::byte* blob) {
  return {layout.gate, blob, read_trailer(layout, blob).gate_global, bias_at(layout, blob, 0)};
}

PackedMatrix expert_up(const ExpertLayout& layout, const std::byte* blob) {
  return {layout.gate, blob + layout.up_offset, read_trailer(layout, blob).up_global,
          bias_at(layout, blob, layout.intermediate)};
}

PackedMatrix expert_down(const ExpertLayout& layout, const std::byte* blob) {
  return {layout.down, blob + layout.down_offset, read_trailer(layout, blob).down_global,
          bias_at(layout, blob, 2 * layout.intermediate)};
}

}  // namespace ft
