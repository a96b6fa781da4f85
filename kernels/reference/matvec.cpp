#include "kernels/ops/matvec.h"

#include <algorithm>

#include "kernels/reference/matvec.h"

namespace ft::reference {
namespace {

template <FormatId kFormat>
void matvec(const MatvecArgs& args) {
  const PackedLayout& layout = args.w->layout;
  const int64_t row_end = std::min(args.tile_end * kRowsPerTile, layout.rows);
  for (int64_t row = args.tile_begin * kRowsPerTile; row < row_end; ++row) {
    for (int64_t t = 0; t < args.tokens; ++t) {
      const float y = mul(dot_row<kFormat>(layout, args.w->data, row, args.x[t]), args.w->global);
      args.y[t][row] = with_bias(*args.w, row, y);
    }
  }
}

}  // namespace

#define FT_FORMAT(id, name) \
  void matvec_##name(const MatvecArgs& args) { matvec<FormatId::id>(args); }
#include "kernels/formats/formats.def"
#undef FT_FORMAT

}  // namespace ft::reference
