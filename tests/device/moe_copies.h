// Blobs in a pinned bank, slots in device memory, and lists of copies between them: for tests and benches.
#pragma once

#include "kernels/cuda/copy_proxy.h"
#include "tests/device/moe_rig.h"

namespace ft::device_test {

class CopyRig {
 public:
  CopyRig(int blobs, int slots, int64_t blob_bytes, cuda::Stream& stream);

  // Blob blob_of_slot[i] to slot i: the first `fetches` of them by fetch(); then `promotions` and `prefetches`, which
  // are queued. Nothing has arrived.
  void set_copies(const std::vector<int>& blob_of_slot, int fetches, int promotions = 0, int prefetches = 0);
  void poison();  // every byte of the slots becomes kPoison, which the bank's bytes are not
  // Slots [first, first + count) hold their blobs and have arrived, all others are poison. Empty, or the first
  // difference.
  std::string compare(const std::vector<int>& blob_of_slot, int first, int count);
  cuda::Fetch fetch(int repeat = 1, const cuda::CopyProxy* proxy = nullptr) const;
  cuda::CopierArgs copier() const;
  uint32_t* word(int link_word) const { return queue.words + link_word; }
  // A word of the device as it is now, read beside `stream`.
  uint32_t read(const uint32_t* device);
  void write(uint32_t* device, uint32_t value);
  cuda::CpuMailbox& box() { return *mailbox.as_host<cuda::CpuMailbox>(); }

  static constexpr uint8_t kPoison = 0xa5;
  static constexpr uint64_t kTimeoutNs = 2'000'000'000;
  int64_t blob_bytes;
  cuda::BlobUnits units;
  int slots;
  cuda::Stream& stream;
  cuda::Stream beside;
  cuda::PinnedBuffer bank, mirror, mailbox, one_word;
  cuda::DeviceBuffer slot_memory;
  Arena arena;
  cuda::Copy* list;
  uint32_t* arrived;
  int32_t* count;
  cuda::LinkQueue queue;
};

// A random order of all blobs.
std::vector<int> shuffled(Random& random, int count);

}  // namespace ft::device_test
