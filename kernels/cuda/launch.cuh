// What the launchers of ops.h share: sizes of grids, and the switch over formats.
#pragma once

#include <cstdint>

#include "kernels/base/error.h"
#include "kernels/cuda/error.cuh"
#include "kernels/formats/format.h"

namespace ft::cuda {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Blocks in y and z of a grid.
inline constexpr int64_t kMaxGridY = 65535;

// Calls f.template operator()<FormatId>() for `format`.
template <class F>
void with_format(FormatId format, F&& f) {
  switch (format) {
#define FT_FORMAT(id, name)                \
  case FormatId::id:                       \
    f.template operator()<FormatId::id>(); \
    return;
#include "kernels/formats/formats.def"
#undef FT_FORMAT
  }
  FT_CHECK(false);
}

}  // namespace ft::cuda
