#include "engine/runtime/link.h"

#include <immintrin.h>

#include <bit>
#include <cstring>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// A pause is 20 to 60 ns on current cores. Idle: about 10 us, less than the gap between two MoE layers of a small
// model, then sleep, because on a machine with as many pool threads as cores every spin here is taken from compute.
constexpr int kIdleSpins = 200;
// Waiting for a blob: about 20 us of pauses, then yields (the copy thread may need this very core), then sleep.
constexpr int kWaitSpins = 400;
constexpr int kWaitYields = 50;

}  // namespace

Link::Link(int capacity) {
  FT_CHECK(capacity > 0);
  ring_.resize(std::bit_ceil(static_cast<size_t>(capacity)));
  mask_ = ring_.size() - 1;
  thread_ = std::thread([this] { copy_loop(); });
}

Link::~Link() {
  stop_.store(true, std::memory_order_release);
  work_signal_.fetch_add(1, std::memory_order_release);
  work_signal_.notify_one();
  thread_.join();
}

Link::Ticket Link::enqueue(const std::byte* source, std::byte* target, int64_t bytes) {
  const Ticket ticket = enqueued_.load(std::memory_order_relaxed) + 1;
  if (ticket > ring_.size()) wait(ticket - ring_.size());
  ring_[ticket & mask_] = Copy{source, target, bytes};
  enqueued_.store(ticket, std::memory_order_release);
  work_signal_.fetch_add(1, std::memory_order_release);
  work_signal_.notify_one();  // a system call only when the copy thread sleeps
  return ticket;
}

void Link::wait(Ticket ticket) {
  if (done(ticket)) return;
  const double start = now_seconds();
  for (int turn = 0; !done(ticket); ++turn) {
    if (turn < kWaitSpins) {
      _mm_pause();
    } else if (turn < kWaitSpins + kWaitYields) {
      std::this_thread::yield();
    } else {
      const uint32_t seen = done_signal_.load(std::memory_order_acquire);
      if (done(ticket)) break;
      done_signal_.wait(seen, std::memory_order_acquire);
    }
  }
  const auto waited = static_cast<uint64_t>((now_seconds() - start) * 1e9);
  wait_nanoseconds_.fetch_add(waited, std::memory_order_relaxed);
}

void Link::await_work(Ticket next) {
  for (int spin = 0; spin < kIdleSpins; ++spin) {
    if (enqueued_.load(std::memory_order_acquire) >= next || stop_.load(std::memory_order_acquire)) return;
    _mm_pause();
  }
  while (true) {
    const uint32_t seen = work_signal_.load(std::memory_order_acquire);
    if (enqueued_.load(std::memory_order_acquire) >= next || stop_.load(std::memory_order_acquire)) return;
    work_signal_.wait(seen, std::memory_order_acquire);
  }
}

void Link::copy_loop() {
  for (Ticket next = 1;; ++next) {
    await_work(next);
    if (enqueued_.load(std::memory_order_acquire) < next) return;  // stopped, and nothing is left
    const Copy copy = ring_[next & mask_];
    std::memcpy(copy.target, copy.source, static_cast<size_t>(copy.bytes));
    bytes_.fetch_add(static_cast<uint64_t>(copy.bytes), std::memory_order_relaxed);
    completed_.store(next, std::memory_order_release);
    done_signal_.fetch_add(1, std::memory_order_release);
    done_signal_.notify_all();
  }
}

LinkCounters Link::counters() const {
  LinkCounters counters;
  counters.copies = completed() - copies_before_reset_;
  counters.bytes = bytes_.load(std::memory_order_relaxed);
  counters.wait_seconds = static_cast<double>(wait_nanoseconds_.load(std::memory_order_relaxed)) * 1e-9;
  return counters;
}

void Link::reset_counters() {
  drain();
  copies_before_reset_ = completed();
  bytes_.store(0, std::memory_order_relaxed);
  wait_nanoseconds_.store(0, std::memory_order_relaxed);
}

}  // namespace ft
