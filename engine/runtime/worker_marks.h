// Which pool threads really took part in a task: one flag per thread on its own cache line, so marking costs no
// sharing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ft {

class WorkerMarks {
 public:
  explicit WorkerMarks(int workers) : marks_(static_cast<size_t>(workers)) {}
  // Called by worker `worker` when its part of a task is not empty.
  void mark(int worker) { marks_[static_cast<size_t>(worker)].worked = 1; }
  int workers() const { return static_cast<int>(marks_.size()); }
  int count() const {
    int worked = 0;
    for (const Mark& mark : marks_) worked += mark.worked;
    return worked;
  }
  void clear() {
    for (Mark& mark : marks_) mark.worked = 0;
  }

 private:
  struct alignas(64) Mark {
    uint8_t worked = 0;
  };
  std::vector<Mark> marks_;
};

}  // namespace ft
