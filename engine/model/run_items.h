// Many items of work shared out among the threads of a pool: what loading is made of.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "kernels/host/worker_pool.h"

namespace ft {

// f(worker, item) for items 0 .. count - 1, taken in turn by all threads; between its items the calling thread calls
// between(). The first exception of either ends the rest and is rethrown.
template <class F, class Between>
void run_items(WorkerPool& pool, int64_t count, F&& f, Between&& between) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  pool.run([&](int worker, int) {
    for (int64_t item = next++; item < count; item = next++) {
      try {
        f(worker, item);
        if (worker == 0) between();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ft
