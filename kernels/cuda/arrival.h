// Bytes on their way into slots: who brings them counts them, who reads them waits for the count.
//
// A blob arrives in units, in a fixed order: its last ones first, which have the biases and the trailer, then from the
// front. The units that gate_up needs come before the others and are counted apart, so that neither count says more
// than it knows when several warps or a copy engine bring units out of order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/formats/expert_blob.h"

namespace ft::cuda {

struct CpuMailbox;

inline constexpr int64_t kUnitBytes = 4096;
inline constexpr int kArrivalParts = 2;  // gate, up, biases and trailer; the rest
inline constexpr uint32_t kAllArrived = ~uint32_t{0};
// A counter that nobody waits for any more; units that come late are added to it. Slots never count so many.
inline constexpr uint32_t kGivenUp = uint32_t{1} << 31;

struct BlobUnits {
  uint32_t all = 0;
  uint32_t gate_up : 20 = 0;  // of these: what gate_up needs, in order of copying the first
  uint32_t tail : 12 = 1;     // of these: the blob's last ones
};
// REQUIRES 0 < layout.bytes < 4 GiB, a multiple of kUnitBytes, and biases of less than 16 MiB.
BlobUnits blob_units(const ExpertLayout& layout);

// One blob's way from the bank to a slot.
struct Copy {
  const std::byte* source = nullptr;  // mapped host memory: does not change while a step runs
  std::byte* target = nullptr;
  uint32_t* arrived = nullptr;  // [kArrivalParts] units that are there: 0 when the copy is decided on
  BlobUnits units;
};

// How an item's blocks wait for its slot. Counters of slot s: counters[kArrivalParts * s].
struct Arrivals {
  uint32_t* counters = nullptr;
  BlobUnits units;
  // A wait that takes longer than timeout_ns says so in box->failed (layer + 1) and goes on with what is there; while
  // `failed` or `abandon` is set none waits longer than a millisecond. The counters of items that were given up say
  // kGivenUp.
  CpuMailbox* box = nullptr;
  int layer = 0;
  uint64_t timeout_ns = 0;
};

// Where a Fetch is handed to the copy engine's thread (copy_proxy.h), when box is not null.
struct CopyMailbox;
struct CopyPost {
  CopyMailbox* box = nullptr;
  Copy* lists = nullptr;       // [kCopyLists][max_copies]
  uint32_t* number = nullptr;  // device memory: of the last post
  int max_copies = 0;
  uint64_t timeout_ns = 0;
};

// The fetches of one layer, made by the first blocks of its gate_up launch: expert by expert, its units dealt to all
// warps of these blocks. All copies have the same units.
struct Fetch {
  const Copy* copies = nullptr;
  const int32_t* count = nullptr;  // in device memory
  bool here = false;               // false: no such blocks
  int repeat = 1;                  // each unit crosses the link so many times (tests, --link-slowdown); not with a post
  uint32_t* pending = nullptr;     // 0 when all have arrived: LinkQueue's kPending, or null
  CopyPost post;
};

}  // namespace ft::cuda
