// The list of a layer's items as the experts' kernels read it.
#pragma once

#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"

namespace ft::cuda {

struct ItemList {
  const ExpertItem* items = nullptr;
  const int32_t* begin = nullptr;  // numbers of the first item and of the one after the last, in device memory
  const int32_t* end = nullptr;
  const int32_t* pairs = nullptr;
  int top_k = 0;
  const uint32_t* x = nullptr;  // packed rows that are multiplied: of tokens (gate and up) or of pairs (down)
  int64_t x_words = 0;          // of a row
};
inline ItemList item_list(const ExpertArgs& args, const uint32_t* x, int64_t cols) {
  return {args.items, args.item_begin, args.item_end, args.pairs, args.top_k, x, activation_words(cols)};
}

// Items are read past L1, which could hold what was there before: the kernel that wrote them has ended, but down reads
// them before its wait.
__device__ __forceinline__ ExpertItem load_item(const ExpertItem* item) {
  static_assert(sizeof(ExpertItem) == 24);
  const auto* parts = reinterpret_cast<const unsigned long long*>(item);
  const unsigned long long blob = __ldcg(parts), pairs = __ldcg(parts + 1), arrival = __ldcg(parts + 2);
  return {.blob = reinterpret_cast<const std::byte*>(blob),
          .pair_begin = static_cast<int32_t>(pairs),
          .pair_count = static_cast<int32_t>(pairs >> 32),
          .arrival = static_cast<int32_t>(arrival)};
}

}  // namespace ft::cuda
