// Body of pack_activations (kernels/ops/activations.h). Rounding is integer steps, so no flush mode is needed. Include
// after a vector vocabulary.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "kernels/ops/activations.h"

namespace ft::FT_ISA_NAMESPACE {

// rows[lane] holds the 8 words of a lane; afterwards rows[p] holds word p of 8 lanes.
static inline void transpose_words(__m256i (&rows)[8]) {
  __m256i pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m256i fours[8];
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
  }
}

// The 16 values from k on as bf16; what is past cols is zero.
static inline __m256i round_lane(const float* x, int64_t k, int64_t cols) {
  if (k + 16 <= cols) return round_bf16(load(x + k));
  return k < cols ? round_bf16(load_n(x + k, static_cast<int>(cols - k))) : _mm256_setzero_si256();
}

void pack_activations(const PackActivationsArgs& args);
void pack_activations(const PackActivationsArgs& args) {
  uint32_t* words = args.words;
  for (int64_t token = 0; token < args.tokens; ++token) {
    const float* x = args.x + token * args.x_stride;
    for (int64_t k = 0; k < args.cols; k += 256) {
      for (int half = 0; half < 2; ++half) {
        __m256i rows[8];
        for (int lane = 0; lane < 8; ++lane) rows[lane] = round_lane(x, k + (half * 8 + lane) * 16, args.cols);
        transpose_words(rows);
        for (int p = 0; p < 8; ++p) {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + p * 16 + half * 8), rows[p]);
        }
      }
      words += 128;
    }
  }
}

}  // namespace ft::FT_ISA_NAMESPACE
