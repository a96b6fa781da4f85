// The link of the host device: one thread that copies expert blobs from bank to slot, in order.
//
// It stands for PCIe: slots are memory, the copy thread is the transport, and everything but CUDA code is the same
// engine (DESIGN section 10). Copies complete in the order in which they were enqueued, so one counter says for every
// ticket whether its bytes are there.
//
// Thread rule: one thread enqueues; any thread may ask done() and wait(). enqueue(), done() and wait() allocate, lock
// and log nothing. An idle copy thread sleeps on a futex after a short bounded spin, so it never holds a core that
// compute needs; a waiter spins, then yields, then sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace ft {

struct LinkCounters {
  uint64_t copies = 0;
  uint64_t bytes = 0;
  double wait_seconds = 0;  // wait() and a full ring: compute stood still
};

class Link {
 public:
  using Ticket = uint64_t;                // 1, 2, ... in order of enqueue
  static constexpr Ticket kNoTicket = 0;  // of bytes that were always there: done

  // Ring of `capacity` (rounded up to a power of two) copies that may be under way.
  explicit Link(int capacity);
  ~Link();  // finishes what was enqueued
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Both ranges stay untouched by others until the ticket is done. Waits when the ring is full.
  Ticket enqueue(const std::byte* source, std::byte* target, int64_t bytes);

  // True: the copy's bytes are visible to the caller.
  bool done(Ticket ticket) const { return completed_.load(std::memory_order_acquire) >= ticket; }
  Ticket completed() const { return completed_.load(std::memory_order_acquire); }
  void wait(Ticket ticket);
  void drain() { wait(enqueued_.load(std::memory_order_relaxed)); }

  LinkCounters counters() const;
  void reset_counters();

 private:
  struct Copy {
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    int64_t bytes = 0;
  };
  void copy_loop();
  void await_work(Ticket next);

  std::vector<Copy> ring_;
  uint64_t mask_ = 0;
  // Each counter on its own cache line: the two sides write different ones.
  alignas(64) std::atomic<Ticket> enqueued_{0};
  alignas(64) std::atomic<Ticket> completed_{0};
  // Futex words (32 bits, so that the wait is one system call): bumped with the counters above.
  alignas(64) std::atomic<uint32_t> work_signal_{0};
  alignas(64) std::atomic<uint32_t> done_signal_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> wait_nanoseconds_{0};
  uint64_t copies_before_reset_ = 0;
  std::thread thread_;
};

}  // namespace ft
