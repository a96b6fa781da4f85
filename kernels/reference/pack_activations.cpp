#include "kernels/ops/activations.h"
#include "kernels/reference/decode.h"

namespace ft::reference {

void pack_activations(const PackActivationsArgs& args) {
  const int64_t words = activation_words(args.cols);
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float* x = args.x + t * args.x_stride;
    for (int64_t i = 0; i < words; ++i) {
      const int64_t k = (i / 128 * 16 + i % 16) * 16 + i % 128 / 16 * 2;
      const uint32_t even = k < args.cols ? activation_bits(x[k]) : 0u;
      const uint32_t odd = k + 1 < args.cols ? activation_bits(x[k + 1]) : 0u;
      args.words[t * words + i] = even | odd << 16;
    }
  }
}

}  // namespace ft::reference
