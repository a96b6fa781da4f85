// All slots in a binary heap, the one with the smallest stamp on top. No allocation after reset().
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace ft {

class VictimHeap {
 public:
  void reset(std::vector<uint64_t> stamps) {
    stamp_ = std::move(stamps);
    const size_t count = stamp_.size();
    heap_.resize(count);
    place_.resize(count);
    for (size_t i = 0; i < count; ++i) put(i, static_cast<int64_t>(i));
    for (size_t i = count / 2; i-- > 0;) sink(i);
  }

  void set(int64_t slot, uint64_t stamp) {
    const auto s = static_cast<size_t>(slot);
    const bool lower = stamp < stamp_[s];
    stamp_[s] = stamp;
    lower ? rise(place_[s]) : sink(place_[s]);
  }

  int64_t top() const { return heap_[0]; }  // REQUIRES a slot
  uint64_t stamp(int64_t slot) const { return stamp_[static_cast<size_t>(slot)]; }
  bool ordered() const {  // what set() keeps
    for (size_t i = 1; i < heap_.size(); ++i) {
      if (before(i, (i - 1) / 2)) return false;
    }
    return true;
  }

 private:
  bool before(size_t a, size_t b) const { return stamp(heap_[a]) < stamp(heap_[b]); }
  void put(size_t place, int64_t slot) {
    heap_[place] = slot;
    place_[static_cast<size_t>(slot)] = place;
  }
  void exchange(size_t a, size_t b) {
    const int64_t slot = heap_[a];
    put(a, heap_[b]);
    put(b, slot);
  }
  void rise(size_t place) {
    for (; place > 0 && before(place, (place - 1) / 2); place = (place - 1) / 2) exchange(place, (place - 1) / 2);
  }
  void sink(size_t place) {
    while (true) {
      size_t least = place;
      for (size_t child = 2 * place + 1; child <= 2 * place + 2 && child < heap_.size(); ++child) {
        if (before(child, least)) least = child;
      }
      if (least == place) return;
      exchange(place, least);
      place = least;
    }
  }

  std::vector<uint64_t> stamp_;  // [slot]
  std::vector<int64_t> heap_;    // [place] -> slot
  std::vector<size_t> place_;    // [slot] -> place
};

}  // namespace ft
