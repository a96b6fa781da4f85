// Experts on the CPU: the two products of each, split over the pool. The same kernels run on the same packed blob
// wherever it lies, and each expert sees only the rows routed to it, so the result does not depend on who shares the
// work.
//
// Rows are given by pointers in order of experts: an item's rows are a contiguous stretch of them.
// Thread rule: set_row by one thread while no worker computes; compute by all workers of a pool task. No allocation
// after the constructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/worker_marks.h"
#include "kernels/formats/expert_blob.h"
#include "kernels/registry.h"

namespace ft {

// One expert's work. tile_weight: relative cost of one row tile.
struct ExpertItem {
  int expert = -1;
  const std::byte* blob = nullptr;
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t tile_weight = 0;
};
ExpertItem make_expert_item(int expert, const std::byte* blob, int64_t row_begin, int64_t row_count);

class ExpertWork {
 public:
  // Rows: at most max_rows at a time, activated rows of `intermediate`.
  ExpertWork(const KernelTable& kernels, int64_t max_rows, int64_t intermediate, WorkerMarks& marks, WorkerPool* pool);

  // Row i: x packed activations of `hidden`, y `hidden` floats; `scratch` names which activated row it uses.
  void set_row(int64_t row, const uint32_t* x, int64_t scratch, float* y);

  // This worker's part of all items' FFN, with a barrier inside; in a task of `pool`, by each of its workers, with a
  // barrier or the task's end before the next call. Items stand in one line of row tiles, cut into parts of equal
  // weight; a worker that is through with its part helps the others, since memory does not serve all cores alike.
  void compute(const ExpertLayout& layout, std::span<const ExpertItem> items, int worker, WorkerPool& pool);
  // Its two halves: all workers are through gate_up before one begins with down.
  void gate_up(const ExpertLayout& layout, std::span<const ExpertItem> items, int worker, int workers);
  void down(const ExpertLayout& layout, std::span<const ExpertItem> items, int worker, int workers);

 private:
  // What is left of a worker's part: tiles taken, of how many, in which phase. Any worker may take some.
  struct alignas(64) Claims {
    std::atomic<uint64_t> state{0};
    uint8_t phase = 0;  // its worker's own count: equal for all workers between two barriers
  };
  // run(worker whose part it is, tiles of that part): own tiles first, then what others have left.
  template <class F>
  void claim_all(int64_t own_tiles, int worker, F&& run);

  const KernelTable& kernels_;
  WorkerMarks& marks_;
  RowBuffer<uint32_t> activated_;
  std::vector<const uint32_t*> x_;
  std::vector<uint32_t*> a_;
  std::vector<float*> y_;
  std::vector<Claims> claims_;
};

}  // namespace ft
