// Bodies of the memory kernels (kernels/ops/memory.h). Include after a vocabulary for one cache line of doubles:
//   Line           8 doubles or 8 words
//   load_line, stream_line (a store that goes round the caches), mul_lines, add_lines, xor_lines, zero_line, fill_line
//
// The four STREAM writers go round the caches: a plain store first reads the line that it overwrites. 1 GiB arrays,
// huge pages, best of 6, GB/s by STREAM's count, AVX-512 on a 2-core Xeon (copy / scale / add / triad):
//   one thread   round 21.3 / 21.4 / 21.7 / 21.3   plain 13.6 / 13.6 / 14.5 / 14.5
//   two threads  round 40.6 / 40.0 / 40.7 / 39.8   plain 25.6 / 25.7 / 27.5 / 26.9
// AVX2 is within 4 % of AVX-512 both ways.
#pragma once

#include "kernels/ops/memory.h"

namespace ft::FT_ISA_NAMESPACE {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kLineDoubles = 8;

// out[i] = line(i) for whole lines, element(i) for the rest; then the streamed lines become visible to other threads.
template <typename LineAt, typename ElementAt>
static inline void stream_lines(double* out, int64_t count, LineAt line, ElementAt element) {
  int64_t i = 0;
  for (; i + kLineDoubles <= count; i += kLineDoubles) stream_line(out + i, line(i));
  for (; i < count; ++i) out[i] = element(i);
  _mm_sfence();
}

void stream_copy(const StreamArgs& args) {
  stream_lines(
      args.c, args.count, [&](int64_t i) { return load_line(args.a + i); }, [&](int64_t i) { return args.a[i]; });
}

void stream_scale(const StreamArgs& args) {
  const Line scalar = fill_line(args.scalar);
  stream_lines(
      args.b, args.count, [&](int64_t i) { return mul_lines(scalar, load_line(args.c + i)); },
      [&](int64_t i) { return args.scalar * args.c[i]; });
}

void stream_add(const StreamArgs& args) {
  stream_lines(
      args.c, args.count, [&](int64_t i) { return add_lines(load_line(args.a + i), load_line(args.b + i)); },
      [&](int64_t i) { return args.a[i] + args.b[i]; });
}

void stream_triad(const StreamArgs& args) {
  const Line scalar = fill_line(args.scalar);
  stream_lines(
      args.a, args.count,
      [&](int64_t i) { return add_lines(load_line(args.b + i), mul_lines(scalar, load_line(args.c + i))); },
      [&](int64_t i) { return args.b[i] + args.scalar * args.c[i]; });
}

// The ceiling that expert kernels are held against, so the fastest of 20 ways tried: four streams side by side, two
// accumulators each, prefetched 1 KiB ahead. 1 GiB, medians of 9, GB/s on one / two cores of a 2-core Xeon: this 16.7
// / 30.4; one stream with eight accumulators 16.1 / 28.6, prefetched 1 to 8 KiB ahead 14.8-15.9 / 26.0-29.3; four
// streams without prefetch 16.2 / 28.1; 4 KiB pages side by side 15.7-16.1 / 27.7-29.7; non-temporal prefetch halves
// it, 8.4 / 12.5. The prefetch past the end of the data is harmless: it never faults.
void mem_read(MemReadArgs& args) {
  constexpr int kStreams = 4;
  constexpr int64_t kPrefetchBytes = 1024;
  constexpr int64_t kStepBytes = 2 * kLineBytes;
  const std::byte* data = args.data;
  const int64_t piece = args.bytes / (kStreams * kStepBytes) * kStepBytes;  // of each stream, whole steps
  Line sums[2 * kStreams];
  for (Line& sum : sums) sum = zero_line();
  for (int64_t i = 0; i < piece; i += kStepBytes) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* p = data + s * piece + i;
      _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchBytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchBytes + kLineBytes), _MM_HINT_T0);
      sums[2 * s] = xor_lines(sums[2 * s], load_line(p));
      sums[2 * s + 1] = xor_lines(sums[2 * s + 1], load_line(p + kLineBytes));
    }
  }
  for (int64_t i = kStreams * piece; i < args.bytes; i += kLineBytes) sums[0] = xor_lines(sums[0], load_line(data + i));
  for (int s = 1; s < 2 * kStreams; ++s) sums[0] = xor_lines(sums[0], sums[s]);
  args.checksum = xor_words(sums[0]);
}

}  // namespace ft::FT_ISA_NAMESPACE
