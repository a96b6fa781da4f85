// Walks over a row, 16 elements at a time. Include after a vector vocabulary.
#pragma once

#include <cstdint>

namespace ft::FT_ISA_NAMESPACE {

// Calls whole(i) for each 16 elements from i on, then part(i, n) for the n < 16 that are left.
template <typename Whole, typename Part>
static inline void for_lanes(int64_t count, Whole whole, Part part) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) whole(i);
  if (i < count) part(i, static_cast<int>(count - i));
}

}  // namespace ft::FT_ISA_NAMESPACE
