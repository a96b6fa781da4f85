// The largest of a row of logits, where a device has looked for it.
#pragma once

#include <cstdint>

namespace ft {

// As a greedy choice wants it: NaN left out, the two zeros equal, the lowest id of those that tie. id -1: nothing is
// above -inf.
struct LargestLogit {
  float value = 0;
  int32_t id = -1;
};

}  // namespace ft
