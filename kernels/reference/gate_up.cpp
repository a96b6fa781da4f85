#include <algorithm>

#include "kernels/ops/matvec.h"
#include "kernels/reference/matvec.h"

namespace ft::reference {
namespace {

template <FormatId kFormat>
uint16_t activation(const GateUpArgs& args, int64_t row, const uint32_t* x) {
  const PackedMatrix gate = expert_gate(*args.layout, args.blob);
  const PackedMatrix up = expert_up(*args.layout, args.blob);
  const float g = with_bias(gate, row, mul(dot_row<kFormat>(gate.layout, gate.data, row, x), gate.global));
  const float u = with_bias(up, row, mul(dot_row<kFormat>(up.layout, up.data, row, x), up.global));
  return activation_bits(glu(args.layout->glu, g, u));
}

template <FormatId kFormat>
void gate_up(const GateUpArgs& args) {
  const int64_t rows = args.layout->intermediate;
  const int64_t row_end = std::min(args.tile_end * kRowsPerTile, rows);
  for (int64_t row = args.tile_begin * kRowsPerTile; row < row_end; row += 2) {
    for (int64_t t = 0; t < args.tokens; ++t) {
      const uint32_t even = activation<kFormat>(args, row, args.x[t]);
      const uint32_t odd = row + 1 < rows ? activation<kFormat>(args, row + 1, args.x[t]) : 0u;
      args.a[t][activation_index(row)] = even | odd << 16;
    }
  }
}

}  // namespace

#define FT_FORMAT(id, name) \
  void gate_up_##name(const GateUpArgs& args) { gate_up<FormatId::id>(args); }
#include "kernels/formats/formats.def"
#undef FT_FORMAT

}  // namespace ft::reference
