// The slots that the next layer's plan would take, found beside this layer's experts.
//
// A plan with misses, or one that looks ahead, needs the slots with the lowest stamps. To search thousands of them
// takes a block several microseconds in which nothing else of the step can run. But between two plans the table does
// not change, and a plan of k experts has at most k hits and victims together: so blocks of the layer's gate_up launch
// find the k lowest stamps (more where prefetches may take some), and the next plan of one token passes over those that
// are hits of its own. Beside the step's last layer they release what is held until the step ends, of which there is no
// plan left, so that the next step's first plan finds nothing held: it took a whole block where one warp plans the
// others.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"

namespace ft::cuda {

inline constexpr int kMaxNextVictims = 32;  // a lane each
inline constexpr int kSpareVictims = 4;     // for prefetches, which pass over victims that are predicted themselves
inline constexpr int kSearchBlocks = 16;    // of a launch, two warps each
inline constexpr int kSearchWarps = 2 * kSearchBlocks;

// How many the next plan of one token is likely to need, each of which lengthens the search.
constexpr int next_victims(int top_k, int max_prefetches) {
  const int count = max_prefetches > 0 ? top_k + max_prefetches + kSpareVictims : top_k;
  return count < kMaxNextVictims ? count : kMaxNextVictims;
}

struct Victim {
  uint64_t stamp;  // with the slot in its low bits; kHeldStamp: there are no more
  uint64_t filled_in;
  int32_t key;  // that the slot holds, or -1
  int32_t reserved;
};

// In device memory, one per engine; zero at first, and whenever the table was changed by anything but plans.
struct NextVictims {
  Victim victim[kMaxNextVictims];  // lowest stamp first; behind as many as were asked for, none
  uint64_t plan_number;            // of the plan after which they were found; 0: none
  uint32_t arrived;                // blocks whose lists are written; 0 between launches
  uint32_t reserved;
  uint64_t released_after;  // of the plan after which nothing was held any more; 0: none
  uint64_t found[kSearchWarps * kMaxNextVictims];
};

// Members of a SlotTableView (moe.h).
struct VictimSearch {
  NextVictims* to = nullptr;  // null: no search
  int count = 0;              // 1 to kMaxNextVictims
  int32_t slots = 0, slot_bits = 0;
  uint64_t* stamp = nullptr;
  const int32_t* key_of_slot = nullptr;
  const uint64_t* filled_in = nullptr;
  const uint64_t* plan_number = nullptr;
  const uint64_t* priority_of_key = nullptr;  // not null: beside the last layer's experts
};
// In a launch of its own: for tests. A step searches beside its experts (ExpertArgs::search).
void search_victims(const VictimSearch& search, StreamHandle stream);

}  // namespace ft::cuda
