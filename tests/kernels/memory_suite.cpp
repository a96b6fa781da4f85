// Memory kernels against the scalar reference, bit by bit, at counts that are and are not whole lines.
#include <algorithm>

#include "kernels/host/host_memory.h"
#include "tests/kernels/suite.h"

namespace ft::test {
namespace {

constexpr int64_t kMaxCount = 1030;  // doubles of one array
constexpr double kMark = -7.5;

// Three arrays with marks behind their `count` elements.
struct Arrays {
  Arrays() : memory(3 * kStride * static_cast<int64_t>(sizeof(double))) {}
  void fill(int64_t count, uint64_t seed) {
    Random random(seed);
    for (int64_t i = 0; i < 3 * kStride; ++i) {
      memory.as<double>()[i] = i % kStride < count ? random.normal() : kMark;
    }
  }
  StreamArgs args(int64_t count) {
    double* first = memory.as<double>();
    return {first, first + kStride, first + 2 * kStride, count, 3.25};
  }
  static constexpr int64_t kStride = 1040;
  HostBuffer memory;
};
static_assert(Arrays::kStride % 8 == 0 && Arrays::kStride > kMaxCount);

void check_stream(const KernelDesc& variant, const KernelDesc& reference_kernel) {
  Arrays got, expected;
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{64}, kMaxCount}) {
    CAPTURE(count);
    got.fill(count, 5);
    expected.fill(count, 5);
    std::get<StreamFn>(variant.fn)(got.args(count));
    std::get<StreamFn>(reference_kernel.fn)(expected.args(count));
    CHECK(std::equal(got.memory.data(), got.memory.data() + got.memory.bytes(), expected.memory.data()));
  }
}

FT_OP_CASE(kStreamCopy, stream_copy_equals_reference) { check_stream(variant, reference_kernel); }
FT_OP_CASE(kStreamScale, stream_scale_equals_reference) { check_stream(variant, reference_kernel); }
FT_OP_CASE(kStreamAdd, stream_add_equals_reference) { check_stream(variant, reference_kernel); }
FT_OP_CASE(kStreamTriad, stream_triad_equals_reference) { check_stream(variant, reference_kernel); }

FT_OP_CASE(kMemRead, mem_read_sees_every_word) {
  HostBuffer memory(1 << 16);
  Random random(9);
  for (int64_t i = 0; i < memory.bytes() / 8; ++i) memory.as<uint64_t>()[i] = random.next();
  for (const int64_t bytes : {0, 64, 128, 192, 448, 512, 576, 4096, 65536}) {
    CAPTURE(bytes);
    MemReadArgs got{memory.data(), bytes, 1};
    MemReadArgs expected{memory.data(), bytes, 2};
    std::get<MemReadFn>(variant.fn)(got);
    std::get<MemReadFn>(reference_kernel.fn)(expected);
    CHECK(got.checksum == expected.checksum);
  }
}

}  // namespace
}  // namespace ft::test
