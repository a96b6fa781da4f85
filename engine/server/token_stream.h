// Token ids of one answer, from the scheduler's thread to the thread that answers the client. No lock and no allocation
// after construction: the writer fills a fixed array and publishes a count, the reader sleeps on that count.
// Thread rule: one writer, one reader.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/scheduler/scheduler.h"
#include "kernels/base/error.h"

namespace ft {

class TokenStream {
 public:
  explicit TokenStream(int64_t capacity) : ids_(static_cast<size_t>(capacity)) {}

  // Writer. REQUIRES: at most `capacity` pushes, none after finish().
  void push(int32_t id) {
    const uint32_t count = state_.load(std::memory_order_relaxed);
    FT_CHECK(count < ids_.size());
    ids_[count] = id;
    state_.store(count + 1, std::memory_order_release);
    state_.notify_one();
  }
  void finish(FinishReason reason, std::string message) {
    reason_ = reason;
    message_ = std::move(message);
    state_.fetch_or(kFinished, std::memory_order_release);
    state_.notify_one();
  }

  // Reader: sleeps until more than `seen` ids are there or the answer is finished; gives the number of ids.
  uint32_t wait(uint32_t seen) const {
    uint32_t state = state_.load(std::memory_order_acquire);
    while ((state & ~kFinished) == seen && (state & kFinished) == 0) {
      state_.wait(state, std::memory_order_acquire);
      state = state_.load(std::memory_order_acquire);
    }
    return state & ~kFinished;
  }
  bool finished() const { return (state_.load(std::memory_order_acquire) & kFinished) != 0; }
  int32_t id(uint32_t index) const { return ids_[index]; }
  FinishReason reason() const { return reason_; }  // after finished()
  const std::string& message() const { return message_; }

 private:
  static constexpr uint32_t kFinished = 1u << 31;
  std::vector<int32_t> ids_;
  std::atomic<uint32_t> state_{0};
  FinishReason reason_ = FinishReason::kFailed;
  std::string message_;
};

}  // namespace ft
