// Device memory with a host mirror, and everything plan_layer needs, made from a few numbers.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "engine/experts/slot_table.h"
#include "kernels/base/random.h"
#include "kernels/cuda/moe.h"

namespace ft::device_test {

// take() gives device addresses; host() is the same place in a pinned mirror. Zeroed.
class Arena {
 public:
  Arena(int64_t bytes, cuda::Stream& stream) : device_(bytes), mirror_(bytes), stream_(stream) { upload(); }
  template <class T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    check_room();
    return reinterpret_cast<T*>(device_.data() + at);
  }
  template <class T>
  T* host(T* device) const {
    return reinterpret_cast<T*>(mirror_.host() + (reinterpret_cast<const std::byte*>(device) - device_.data()));
  }
  void upload() { cuda::copy_to_device(device_.data(), mirror_.host(), device_.bytes(), stream_.handle()); }
  template <class T>
  void upload(T* device, int64_t count) {
    cuda::copy_to_device(device, host(device), count * static_cast<int64_t>(sizeof(T)), stream_.handle());
  }
  void download() {  // waits
    cuda::copy_to_host(mirror_.host(), device_.data(), used_, stream_.handle());
    stream_.synchronize();
  }

 private:
  void check_room() const;
  cuda::DeviceBuffer device_;
  cuda::PinnedBuffer mirror_;
  cuda::Stream& stream_;
  int64_t used_ = 0;
};

struct RigShape {
  int layers = 1, experts = 1, slots = 0, max_tokens = 1, top_k = 1;
  int64_t hidden = 256;
  int64_t blob_bytes = 4096;
  int half_life_log2 = 0;  // of the cache policy; 0: LRU
  int max_predicted = 0;   // experts predicted per token, and the most that are prefetched; 0: no look-ahead
};

// Addresses of blobs and slots are made up (nothing is copied) unless the test sets args.bank and args.slots.
class PlanRig {
 public:
  explicit PlanRig(const RigShape& shape);

  SlotPolicy policy() const { return {shape.half_life_log2, max_distinct_}; }
  void restore(const SlotTable::Content& content);  // the table as SlotTable::restore leaves it
  void set_split(const std::vector<int>& fetch_of_misses);
  void set_ids(const std::vector<int32_t>& ids, int tokens);  // (tokens, top_k)
  // (tokens, shape.max_predicted) for the layer above, at most max_prefetches to be copied.
  void set_predicted(const std::vector<int32_t>& ids, int max_prefetches);
  SlotTable::Content content() const;  // from the downloaded arena
  // Counters of arrival say kArrivedBefore, and the queue is empty: it has room for one plan of every layer.
  void begin_step();
  // As beside the experts of the layer before args.layer: what its plan of one token would take.
  void find_victims();

  static constexpr uint32_t kUnits = 11;  // of a made-up blob
  static constexpr uint32_t kArrivedBefore = 7;

  cuda::CpuMailbox& box() { return *mailbox.as_host<cuda::CpuMailbox>(); }
  int max_distinct() const { return max_distinct_; }

  RigShape shape;
  cuda::Stream stream;
  cuda::PinnedBuffer mailbox, mailbox_ids, mailbox_x;
  Arena arena;
  cuda::PlanArgs args;

 private:
  int max_distinct_ = 0;
};

// Distinct experts per token, skewed so that some come back often; about one token in eight has trailing -1.
std::vector<int32_t> random_ids(Random& random, int tokens, int top_k, int experts);

}  // namespace ft::device_test
