// Blobs in a pinned bank, slots in device memory, and a LayerWork that copies some of them: for tests and benches.
#pragma once

#include "tests/device/moe_rig.h"

namespace ft::device_test {

class CopyRig {
 public:
  CopyRig(int blobs, int slots, int64_t blob_bytes, cuda::Stream& stream);

  // Copies blob order[i] to slot i: the first `fetches`, then `promotions` of them.
  void set_copies(const std::vector<int>& blob_of_slot, int fetches, int promotions);
  void poison();  // every byte of the slots becomes kPoison, which the bank's bytes are not
  // Slots [first, first + count) hold their blobs, all others poison. Empty, or the first difference.
  std::string compare(const std::vector<int>& blob_of_slot, int first, int count);

  static constexpr uint8_t kPoison = 0xa5;
  int64_t blob_bytes;
  int slots;
  cuda::Stream& stream;
  cuda::PinnedBuffer bank, mirror;
  cuda::DeviceBuffer slot_memory;
  Arena arena;
  cuda::LayerWork work;
};

// A random order of all blobs.
std::vector<int> shuffled(Random& random, int count);

}  // namespace ft::device_test
