// Where a block of a layer stands: what it reads, and what becomes of its output.
#pragma once

#include "engine/runtime/backend.h"

namespace ft {

struct BlockSite {
  Slot from = Slot::kResidual;
  Norm norm = {};  // of what it reads; weight -1: none
  Slot to = Slot::kResidual;
  bool add = true;  // to = to + output; otherwise to = output
};

inline void end_block(Backend& backend, const BlockSite& site, MatrixId out, VectorId bias = {}) {
  if (site.add) {
    backend.linear_add(Slot::kAttention, {out, bias, site.to});
  } else {
    backend.linear(Slot::kAttention, {}, {{out, bias, site.to}});
  }
}

}  // namespace ft
