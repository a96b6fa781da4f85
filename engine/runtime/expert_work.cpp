#include "engine/runtime/expert_work.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"
#include "kernels/host/worker_pool.h"
#include "kernels/ops/activations.h"

namespace ft {
namespace {

// A tile's cost is the decoding of its weights plus the products of every row; decoding costs about two rows' products.
constexpr int64_t kDecodeCostInRows = 2;

// Row tiles of all items in one line, cut into contiguous parts of equal weight: a tile belongs to the worker whose
// part holds its first unit.
struct Part {
  const ExpertItem* item = nullptr;
  Range tiles;
};
template <class F>
void for_tiles(std::span<const ExpertItem> items, int64_t tiles, int worker, int workers, F&& f) {
  int64_t total = 0;
  for (const ExpertItem& item : items) total += tiles * item.tile_weight;
  const Range part = split_range(total, worker, workers);
  int64_t base = 0;
  for (const ExpertItem& item : items) {
    if (base >= part.end) break;
    const int64_t weight = item.tile_weight;
    const int64_t span = tiles * weight;
    const int64_t low = std::clamp<int64_t>(part.begin - base, 0, span);
    const int64_t high = std::clamp<int64_t>(part.end - base, 0, span);
    const Range range{(low + weight - 1) / weight, (high + weight - 1) / weight};
    if (range.begin < range.end) f(Part{&item, range});
    base += span;
  }
}

int64_t tiles_of(std::span<const ExpertItem> items, int64_t tiles, int worker, int workers) {
  int64_t sum = 0;
  for_tiles(items, tiles, worker, workers, [&](const Part& part) { sum += part.tiles.end - part.tiles.begin; });
  return sum;
}

// The same for tiles `wanted` of the worker's part, counted from its begin. f(part, what follows it in the worker's
// part or null).
template <class F>
void for_tiles_in(Range wanted, std::span<const ExpertItem> items, int64_t tiles, int worker, int workers, F&& f) {
  Part pending;
  int64_t base = 0;
  for_tiles(items, tiles, worker, workers, [&](const Part& part) {
    const int64_t count = part.tiles.end - part.tiles.begin;
    const int64_t low = std::clamp<int64_t>(wanted.begin - base, 0, count);
    const int64_t high = std::clamp<int64_t>(wanted.end - base, 0, count);
    base += count;
    if (pending.item != nullptr) f(pending, &part);
    pending = {};
    if (low >= high) return;
    const Part chosen{part.item, {part.tiles.begin + low, part.tiles.begin + high}};
    if (high == count) {
      pending = chosen;
    } else {
      const Part rest{part.item, {chosen.tiles.end, part.tiles.end}};
      f(chosen, &rest);
    }
  });
  if (pending.item != nullptr) f(pending, nullptr);
}

// A claim's state: phase, tiles of the part, tiles taken.
constexpr int kCountBits = 28;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr uint64_t claim_state(uint8_t phase, uint64_t tiles) {
  return uint64_t{phase} << (2 * kCountBits) | tiles << kCountBits;
}
// Tiles that others may take: fewer are done by their owner before a helper has read their first bytes.
constexpr uint64_t kLeastToHelp = 2;

// Half of what is left, so that much of it can still go to a helper; empty when that is less than `least`.
Range claim(std::atomic<uint64_t>& state, uint8_t phase, uint64_t least) {
  uint64_t seen = state.load(std::memory_order_relaxed);
  while (true) {
    if (seen >> (2 * kCountBits) != phase) return {};  // its worker has not come to this phase yet
    const uint64_t taken = seen & kCountMask, left = (seen >> kCountBits & kCountMask) - taken;
    if (left < least) return {};
    const uint64_t count = (left + 1) / 2;
    if (state.compare_exchange_weak(seen, seen + count, std::memory_order_relaxed)) {
      return {static_cast<int64_t>(taken), static_cast<int64_t>(taken + count)};
    }
  }
}

int64_t codes_begin(const PackedLayout& layout, Range tiles) {
  return layout.codes_offset + tiles.begin * layout.code_bytes_per_tile;
}
const std::byte* down_codes(const ExpertLayout& layout, const Part& part) {
  return part.item->blob + layout.down_offset + codes_begin(layout.down, part.tiles);
}
const std::byte* first_down_codes(const ExpertLayout& layout, std::span<const ExpertItem> items, int worker,
                                  int workers) {
  const std::byte* first = nullptr;
  for_tiles(items, layout.down.row_tiles, worker, workers, [&](const Part& part) {
    if (first == nullptr) first = down_codes(layout, part);
  });
  return first;
}

// What a worker reads next, brought into its L2 while it waits for the others: memory would idle otherwise, for two
// barriers a layer.
class Prefetch {
 public:
  void add(const std::byte* data, int64_t bytes) {
    if (count_ == ranges_.size()) return;
    bytes = std::min(bytes, kMostBytes - bytes_);
    ranges_[count_++] = {data, data + bytes};
    bytes_ += bytes;
  }
  // One step; false when there is no more.
  bool step() {
    while (at_ < count_ && ranges_[at_].begin >= ranges_[at_].end) ++at_;
    if (at_ == count_) return false;
    DataRange& range = ranges_[at_];
    for (int64_t line = 0; line < kStepBytes; line += kCacheLine) __builtin_prefetch(range.begin + line, 0, kToL2);
    range.begin += kStepBytes;
    return true;
  }

 private:
  static constexpr int64_t kMostBytes = int64_t{256} << 10;  // half of a small L2 (Zen: 512 KiB)
  static constexpr int64_t kStepBytes = 512;
  static constexpr int64_t kCacheLine = 64;
  static constexpr int kToL2 = 2;
  struct DataRange {
    const std::byte *begin, *end;
  };
  std::array<DataRange, 8> ranges_{};  // codes and scales of a worker's first items
  size_t count_ = 0, at_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace

ExpertItem make_expert_item(int expert, const std::byte* blob, int64_t row_begin, int64_t row_count) {
  return {expert, blob, row_begin, row_count, kDecodeCostInRows + row_count};
}

ExpertWork::ExpertWork(const KernelTable& kernels, int64_t max_rows, int64_t intermediate, WorkerMarks& marks,
                       WorkerPool* pool)
    : kernels_(kernels),
      marks_(marks),
      activated_(max_rows, activation_words(intermediate), pool),
      x_(static_cast<size_t>(max_rows)),
      a_(static_cast<size_t>(max_rows)),
      y_(static_cast<size_t>(max_rows)),
      claims_(static_cast<size_t>(marks.workers())) {}

void ExpertWork::set_row(int64_t row, const uint32_t* x, int64_t scratch, float* y) {
  const auto index = static_cast<size_t>(row);
  x_[index] = x;
  a_[index] = activated_.row(scratch);
  y_[index] = y;
}

void ExpertWork::compute(const ExpertLayout& layout, std::span<const ExpertItem> items, int worker, WorkerPool& pool) {
  gate_up(layout, items, worker, pool.threads());
  Prefetch prefetch;
  for_tiles(items, layout.down.row_tiles, worker, pool.threads(), [&](const Part& part) {
    const PackedLayout& down = layout.down;
    const int64_t count = part.tiles.end - part.tiles.begin;
    prefetch.add(down_codes(layout, part), count * down.code_bytes_per_tile);
    prefetch.add(
        part.item->blob + layout.down_offset + down.scales_offset + part.tiles.begin * down.scale_bytes_per_tile,
        count * down.scale_bytes_per_tile);
  });
  pool.barrier([&] { return prefetch.step(); });
  down(layout, items, worker, pool.threads());
}

template <class F>
void ExpertWork::claim_all(int64_t own_tiles, int worker, F&& run) {
  Claims& own = claims_[static_cast<size_t>(worker)];
  const uint8_t phase = ++own.phase;
  FT_CHECK(own_tiles <= static_cast<int64_t>(kCountMask));
  own.state.store(claim_state(phase, static_cast<uint64_t>(own_tiles)), std::memory_order_relaxed);
  const auto workers = static_cast<int>(claims_.size());
  for (int i = 0; i < workers; ++i) {
    const int owner = (worker + i) % workers;
    std::atomic<uint64_t>& state = claims_[static_cast<size_t>(owner)].state;
    const uint64_t least = i == 0 ? 1 : kLeastToHelp;
    for (Range tiles = claim(state, phase, least); tiles.begin < tiles.end; tiles = claim(state, phase, least)) {
      run(owner, tiles);
    }
  }
}

void ExpertWork::gate_up(const ExpertLayout& layout, std::span<const ExpertItem> items, int worker, int workers) {
  const GateUpFn kernel = kernels_.gate_up[static_cast<int>(layout.gate.format)];
  const int64_t row_tiles = layout.gate.row_tiles;
  const std::byte* first_down = first_down_codes(layout, items, worker, workers);
  claim_all(tiles_of(items, row_tiles, worker, workers), worker, [&](int owner, Range tiles) {
    marks_.mark(worker);
    for_tiles_in(tiles, items, row_tiles, owner, workers, [&](const Part& part, const Part* next) {
      const ExpertItem& item = *part.item;
      GateUpArgs args;
      args.layout = &layout;
      args.blob = item.blob;
      args.x = x_.data() + item.row_begin;
      args.tokens = item.row_count;
      args.tile_begin = part.tiles.begin;
      args.tile_end = part.tiles.end;
      args.a = a_.data() + item.row_begin;
      if (next != nullptr) {
        args.next = next->item->blob + codes_begin(layout.gate, next->tiles);
        args.next_up = args.next + layout.up_offset;
      } else {
        args.next = first_down;
      }
      kernel(args);
    });
  });
}

void ExpertWork::down(const ExpertLayout& layout, std::span<const ExpertItem> items, int worker, int workers) {
  const MatvecFn kernel = kernels_.matvec[static_cast<int>(layout.down.format)];
  const int64_t row_tiles = layout.down.row_tiles;
  claim_all(tiles_of(items, row_tiles, worker, workers), worker, [&](int owner, Range tiles) {
    for_tiles_in(tiles, items, row_tiles, owner, workers, [&](const Part& part, const Part* next) {
      const ExpertItem& item = *part.item;
      const PackedMatrix matrix = expert_down(layout, item.blob);
      MatvecArgs args;
      args.w = &matrix;
      args.x = const_cast<const uint32_t* const*>(a_.data() + item.row_begin);
      args.tokens = item.row_count;
      args.tile_begin = part.tiles.begin;
      args.tile_end = part.tiles.end;
      args.y = y_.data() + item.row_begin;
      if (next != nullptr) args.next = down_codes(layout, *next);
      kernel(args);
    });
  });
}

}  // namespace ft
