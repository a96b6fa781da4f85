// Where each expert of a decode step runs, decided on the device: slot table, split, gather, and the hand-over to the
// CPU. The policy is SlotTable's (engine/experts/slot_table.h), decision for decision: a test runs both side by side.
//
// Thread rule: launches from one thread. The mailbox is shared with the device; its rules are at CpuMailbox.
#pragma once

#include <cstdint>

#include "kernels/base/promotion_rate.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/victims.h"

namespace ft::cuda {

// Bounds of one plan() call: its lists live in one block's shared memory, a pair and its expert in one word.
inline constexpr int kMaxPlanTokens = 64;
inline constexpr int kMaxPlanTopK = 64;
inline constexpr int kMaxPlanExperts = 4096;
inline constexpr int kMaxPlanPrefetches = 64;

// Words of SlotTableView::clock, zero at first. A restore, like SlotTable's, sets kPlanNumber and zeroes the others
// except kPosted, which counts over the engine's life.
enum ClockWord : int { kPlanNumber, kStepNumber, kLastLayerPlusOne, kAside, kPosted, kClockWords };

// In device memory; made by the owner, who copies a SlotTable's content in and out. With slots == 0 everything runs
// from the bank and only `clock` is used. Members are SlotTable's; a stamp orders a slot among the victims.
struct SlotTableView {
  int32_t layers = 0, experts = 0, slots = 0;
  int32_t half_life_log2 = 0, max_distinct = 0;  // SlotPolicy
  int32_t slot_bits = 0;                         // slot_bits(slots)
  int32_t* slot_of_key = nullptr;                // [layer * experts + expert] -> slot or -1
  int32_t* key_of_slot = nullptr;                // [slot] -> key or -1
  uint64_t* priority_of_key = nullptr;           // [key]
  uint64_t* stamp = nullptr;      // [slot]: victim_stamp(its key's priority, slot), or kHeldStamp until the step ends
  uint64_t* filled_in = nullptr;  // [slot]: number of the step that filled it
  uint64_t* prefetched_in = nullptr;  // [slot]: of the step whose prefetch filled it, if it was not used since; else 0
  uint32_t* arrived = nullptr;        // [slot][kArrivalParts]: units that have come since the slot got its key
  uint64_t* clock = nullptr;          // [kClockWords]
};

enum class Placement : int32_t {
  kTable,    // by the slot table, which is updated
  kAllHits,  // expert e of layer l from slot (l * experts + e) mod slots, whatever it holds (dense), or, without slots,
             // from the bank; table untouched
  kGiven,    // by GivenPlan; table untouched
};

// One layer's plan from outside (layer_sweep): entry i says where the i-th given expert runs. An expert that no id
// names is copied all the same, and computes nothing. REQUIRES hits + fetches <= max_distinct, every id among the
// experts.
struct GivenPlan {
  const int32_t* expert = nullptr;    // hits, then fetches, then cpu
  const int32_t* slot = nullptr;      // of hits and fetches
  const int32_t* counts = nullptr;    // [4]: hits, fetches, cpu, promotions
  const int32_t* promoted = nullptr;  // slots of the first counts[3] of the cpu experts
  // Ids as engine/runtime/host_backend.cpp take_given_ids deals them are written by the caller.
};

// What plan() decided, in device memory. Items: hits, then fetches, then hits whose prefetch may still be under way.
struct LayerWork {
  ExpertItem* items = nullptr;     // (max_distinct)
  int32_t* item_bounds = nullptr;  // [4]: 0, end of hits, end of fetches, end of arriving hits
  int32_t* pairs = nullptr;        // (tokens * top_k) in order of experts, then of pairs; ids < 0 have none
  uint8_t* from_host = nullptr;    // (tokens * top_k): the CPU answers this pair
  Copy* fetches = nullptr;         // (max_distinct)
  int32_t* fetch_count = nullptr;  // [1]
  uint32_t* ticket = nullptr;      // [1]: mailbox number the layer waits for; 0: no CPU route
};

// Copies that nobody waits for by name: promotions, and prefetches for the next layer. Plans append them, copy_queued
// makes them beside the step, prefetches first, and while no fetch is under way. Device memory, one per engine.
enum LinkKind : int { kPromotion, kPrefetch, kLinkKinds };
enum LinkWord : int {
  kQueued,                // [kLinkKinds] copies of this step so far
  kPending = kLinkKinds,  // units of the layer's fetches that have not arrived
  kClosed,                // not 0: the step appends no more
  kStarted,               // blocks of the copier that run
  kLeft,                  // and that have ended
  kLinkWords
};
constexpr int queued_word(LinkKind kind) { return kQueued + static_cast<int>(kind); }
struct LinkQueue {
  Copy* copies[kLinkKinds] = {};
  uint32_t* words = nullptr;  // [kLinkWords] zero between steps; null: no queue
};

// Counts since they were last cleared; the host copies them out between steps. Device memory. Plans count for kTable
// only, as the host device's do.
struct StepCounters {
  uint64_t hits, fetched, cpu, promoted;
  uint64_t predicted, prefetched, useful;  // as EngineCounters has them
  uint64_t misses_histogram[257];          // layers with so many misses; the last entry: that many or more
  uint64_t wait_nanoseconds;               // in wait_for_cpu
  uint32_t answered;  // no count: the ticket whose wait has ended, from the block of wait_and_merge that polls
};

// Pinned memory, one per engine. Who writes what: the device `posted`, `layer`, `tokens`, the ids and x rows (then
// posted, released to the system) and `failed`, `finished`; the host the answer rows, then `answered` (released), and
// `abandon`. Numbers count up from 1 over the engine's life and skip 0. The host clears `failed` and `abandon` between
// steps; while either is set the waits for the CPU and for bytes end within a millisecond. Waits for the copier and for
// the copy engine have time limits of their own.
struct CpuMailbox {
  alignas(128) uint32_t posted;
  int32_t layer;
  int32_t tokens;
  alignas(128) uint32_t answered;
  alignas(128) uint32_t abandon;   // not 0: waiting kernels give up
  alignas(128) uint32_t failed;    // layer + 1 whose answer or bytes did not come in time, or kCopierLeft
  alignas(128) uint32_t finished;  // number of the last step that ended
};

struct MailboxView {  // device addresses of pinned memory
  CpuMailbox* box = nullptr;
  int32_t* ids = nullptr;  // (max_tokens, top_k): the pair's expert where the CPU computes it, else -1
  uint32_t* x =
      nullptr;  // (max_tokens) packed rows of hidden: those of tokens with an id; others are left as they were
};

struct PlanArgs {
  SlotTableView table;
  Placement placement = Placement::kTable;
  GivenPlan given;
  int layer = 0;
  int64_t tokens = 0;
  int top_k = 0;
  int max_distinct = 0;                      // >= min(tokens * top_k, experts)
  const int32_t* ids = nullptr;              // (tokens, top_k): below experts; -1 only trails
  const int32_t* fetch_of_misses = nullptr;  // (max_distinct + 1)
  PromotionRate promotions = 0;
  // What the next layer is expected to use: (tokens, predicted_ranks), best first; -1 only trails. kTable only.
  const int32_t* predicted = nullptr;
  int predicted_ranks = 0;               // at most kMaxPlanTopK
  int max_prefetches = 0;                // 0: no look-ahead
  const std::byte* next_bank = nullptr;  // as `bank`, of the next layer
  int64_t next_blob_bytes = 0;
  BlobUnits next_units;
  const std::byte* bank = nullptr;  // the layer's first blob, as the device sees it; expert e at + e * blob_bytes
  int64_t blob_bytes = 0;
  BlobUnits units;
  std::byte* slots = nullptr;
  int64_t slot_bytes = 0;
  LayerWork work;
  LinkQueue queue;                       // words REQUIRED with promotions or prefetches
  const NextVictims* victims = nullptr;  // for plans of one token; null, older than the table or too few: unused
  StepCounters* counters = nullptr;
  // Hand-over: when experts run on the CPU the kernel copies their ids and the tokens' packed rows and posts.
  MailboxView mailbox;
  const uint32_t* x = nullptr;  // (tokens) packed rows
  int64_t hidden = 0;
};
// One block. What SlotTable asserts is required here: slots >= distinct experts, fetch_of_misses[m] <= m. The hand-over
// comes before the search for victims, so that the CPU starts first.
void plan_layer(const PlanArgs& args, StreamHandle stream);

// The router of one layer.
struct RouteArgs {
  const float* x = nullptr;  // (tokens, x_stride) residual rows of hidden
  int64_t x_stride = 0;
  const float* norm_w = nullptr;  // (hidden), or null: rows are packed as they are
  float norm_eps = 0;
  PackedMatrix router;          // (experts, hidden)
  const float* bias = nullptr;  // (experts) added to the products, or null
  uint32_t* words = nullptr;    // (tokens) packed rows of hidden: what router and experts multiply
  // Experts that read the rows by another norm than the router's have packed rows of their own; null: one norm.
  uint32_t* experts_words = nullptr;
  const float* experts_norm_w = nullptr;
  float experts_norm_eps = 0;
  float* logits = nullptr;      // (tokens, experts)
  uint32_t* arrived = nullptr;  // [1] zero between launches
  RouterArgs top;               // tokens, k, renormalize, forced and what is written
};
// rmsnorm_pack, matvec and router_top_k with their bits, in three launches, or four with two norms.
void route(const RouteArgs& args, StreamHandle stream);
// route and plan_layer; one launch, or two with two norms, where the router is bf16 and not by_score, tokens <= 2,
// experts <= 1024 and k <= 16 and its rows fit into a block's shared memory: for one normed token and at most 256
// experts by a cluster (route_token.cuh). REQUIRES plan.ids == top.ids, plan.x == the experts' words.
void route_and_plan(const RouteArgs& args, const PlanArgs& plan, StreamHandle stream);

// `fetch` in a launch of its own, for probes and tests; await_copies spins until its copies have arrived, whoever makes
// them, or timeout_ns passed.
inline constexpr int kGatherBlocks = 64;
void gather(const Fetch& fetch, int blocks, StreamHandle stream);
void await_copies(const Fetch& fetch, uint64_t timeout_ns, StreamHandle stream);

// The copier of `queue`: runs beside the step's other launches, from before the first plan that appends until
// close_queue and the last copy; then the words are zero again. It pauses between units while fetches are pending. It
// leaves early when the step was abandoned or has failed, or when it had nothing to do for timeout_ns: then it says so,
// box->failed = kCopierLeft.
struct CopierArgs {
  LinkQueue queue;
  int blocks = 0;      // 0: kCopierBlocks
  int repeat = 1;      // as Fetch
  bool drain = false;  // copies what is there, whatever is pending, and leaves: without close_queue
  CpuMailbox* box = nullptr;
  uint64_t timeout_ns = 0;
};
// 256 KiB under way: the link's latency times its rate and a margin. What is under way delays a fetch that begins.
inline constexpr int kCopierBlocks = 4;
inline constexpr uint32_t kCopierLeft = UINT32_MAX;
void copy_queued(const CopierArgs& args, StreamHandle stream);
// Until all blocks of the copier run, or timeout_ns passed, and nothing behind it starts before: blocks that wait for
// copies could otherwise take the copier's place.
void wait_for_copier(const CopierArgs& args, StreamHandle stream);
void close_queue(const LinkQueue& queue, StreamHandle stream);

// Spins until the layer's answer is there, the step is abandoned, or timeout_ns passed (then it says so
// in `failed` and goes on: the step is an error, the device is not stuck).
struct WaitArgs {
  CpuMailbox* box = nullptr;
  const uint32_t* ticket = nullptr;  // 0 in it: nothing to wait for
  int layer = 0;
  uint64_t timeout_ns = 0;
  StepCounters* counters = nullptr;
};
void wait_for_cpu(const WaitArgs& args, StreamHandle stream);

// The CPU's answer and the end of a layer in one launch: waits as wait_for_cpu, then merges.
void wait_and_merge(const WaitArgs& wait, const MergeArgs& merge, StreamHandle stream);

// Last node of a step: everything before it is visible to the host when `finished` changes to *step_number + 1, which
// it also stores in *step_number (device memory, 0 at first). Skips 0.
void finish_step(CpuMailbox* box, uint32_t* step_number, StreamHandle stream);

}  // namespace ft::cuda
