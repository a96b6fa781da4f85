#include "tests/device/moe_rig.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/use_priority.h"
#include "kernels/ops/activations.h"

namespace ft::device_test {
namespace {

int distinct_bound(const RigShape& shape) { return std::min(shape.max_tokens * shape.top_k, shape.experts); }

int64_t arena_bytes(const RigShape& shape) {
  const int64_t keys = int64_t{shape.layers} * shape.experts, pairs = int64_t{shape.max_tokens} * shape.top_k;
  const int64_t distinct = distinct_bound(shape);
  const int64_t predicted = int64_t{shape.max_tokens} * shape.max_predicted;
  const int64_t queued = shape.layers * (distinct + shape.max_predicted);
  return keys * 12 + shape.slots * 36 + pairs * 9 + distinct * 96 + predicted * 4 + queued * 32 +
         int64_t{shape.max_tokens} * shape.hidden * 2 + 65536 + static_cast<int64_t>(sizeof(cuda::NextVictims));
}

}  // namespace

void Arena::check_room() const { FT_CHECK(used_ <= device_.bytes()); }

PlanRig::PlanRig(const RigShape& s)
    : shape(s),
      mailbox(sizeof(cuda::CpuMailbox)),
      mailbox_ids(int64_t{s.max_tokens} * s.top_k * 4),
      mailbox_x(s.max_tokens * activation_words(s.hidden) * 4),
      arena(arena_bytes(s), stream),
      max_distinct_(distinct_bound(s)) {
  const int64_t keys = int64_t{s.layers} * s.experts, pairs = int64_t{s.max_tokens} * s.top_k;
  args.table = {.layers = s.layers,
                .experts = s.experts,
                .slots = s.slots,
                .half_life_log2 = s.half_life_log2,
                .max_distinct = max_distinct_,
                .slot_bits = slot_bits(s.slots),
                .slot_of_key = arena.take<int32_t>(keys),
                .key_of_slot = arena.take<int32_t>(s.slots),
                .priority_of_key = arena.take<uint64_t>(keys),
                .stamp = arena.take<uint64_t>(s.slots),
                .filled_in = arena.take<uint64_t>(s.slots),
                .prefetched_in = arena.take<uint64_t>(s.slots),
                .arrived = arena.take<uint32_t>(cuda::kArrivalParts * s.slots),
                .clock = arena.take<uint64_t>(cuda::kClockWords)};
  args.given = {arena.take<int32_t>(max_distinct_), arena.take<int32_t>(max_distinct_), arena.take<int32_t>(4),
                arena.take<int32_t>(max_distinct_)};
  args.top_k = s.top_k;
  args.max_distinct = max_distinct_;
  args.ids = arena.take<int32_t>(pairs);
  args.fetch_of_misses = arena.take<int32_t>(max_distinct_ + 1);
  args.bank = reinterpret_cast<const std::byte*>(uintptr_t{1} << 40);
  args.blob_bytes = s.blob_bytes;
  args.slots = reinterpret_cast<std::byte*>(uintptr_t{1} << 41);
  args.slot_bytes = s.blob_bytes;
  args.work = {arena.take<cuda::ExpertItem>(max_distinct_),
               arena.take<int32_t>(4),
               arena.take<int32_t>(pairs),
               arena.take<uint8_t>(pairs),
               arena.take<cuda::Copy>(max_distinct_),
               arena.take<int32_t>(1),
               arena.take<uint32_t>(1)};
  args.units = {kUnits, kUnits - 3};
  args.next_units = {kUnits + 2, kUnits - 1};
  args.queue.copies[cuda::kPromotion] = arena.take<cuda::Copy>(int64_t{s.layers} * max_distinct_);
  args.queue.copies[cuda::kPrefetch] = arena.take<cuda::Copy>(int64_t{s.layers} * s.max_predicted);
  args.queue.words = arena.take<uint32_t>(cuda::kLinkWords);
  args.predicted = arena.take<int32_t>(int64_t{s.max_tokens} * s.max_predicted);
  args.predicted_ranks = s.max_predicted;
  args.next_bank = reinterpret_cast<const std::byte*>(uintptr_t{3} << 40);
  args.next_blob_bytes = s.blob_bytes;
  args.victims = arena.take<cuda::NextVictims>(1);
  args.counters = arena.take<cuda::StepCounters>(1);
  args.mailbox = {mailbox.as_device<cuda::CpuMailbox>(), mailbox_ids.as_device<int32_t>(),
                  mailbox_x.as_device<uint32_t>()};
  const int64_t words = s.max_tokens * activation_words(s.hidden);
  auto* x = arena.take<uint32_t>(words);
  for (int64_t i = 0; i < words; ++i) arena.host(x)[i] = static_cast<uint32_t>(mix64(static_cast<uint64_t>(i)));
  args.x = x;
  args.hidden = s.hidden;
  SlotTable::Content empty;
  empty.key_of_slot.assign(static_cast<size_t>(s.slots), -1);
  restore(empty);
}

void PlanRig::restore(const SlotTable::Content& content) {
  const cuda::SlotTableView& table = args.table;
  const uint64_t posted = arena.host(table.clock)[cuda::kPosted];
  std::fill_n(arena.host(table.slot_of_key), int64_t{shape.layers} * shape.experts, -1);
  std::fill_n(arena.host(table.filled_in), shape.slots, 0);
  std::fill_n(arena.host(table.prefetched_in), shape.slots, 0);
  std::fill_n(arena.host(table.priority_of_key), int64_t{shape.layers} * shape.experts, 0);
  std::copy(content.priority_of_key.begin(), content.priority_of_key.end(), arena.host(table.priority_of_key));
  std::fill_n(arena.host(table.clock), static_cast<int>(cuda::kClockWords), 0);
  for (int slot = 0; slot < shape.slots; ++slot) {
    const auto key = static_cast<int32_t>(content.key_of_slot[static_cast<size_t>(slot)]);
    arena.host(table.key_of_slot)[slot] = key;
    if (key >= 0) arena.host(table.slot_of_key)[key] = slot;
    const uint64_t priority = key < 0 ? 0 : arena.host(table.priority_of_key)[key];
    arena.host(table.stamp)[slot] = victim_stamp(priority, slot, table.slot_bits);
  }
  arena.host(table.clock)[cuda::kPlanNumber] = content.plans;
  arena.host(table.clock)[cuda::kPosted] = posted;
  *arena.host(const_cast<cuda::NextVictims*>(args.victims)) = {};
  arena.upload();
}

// Beside the experts of the layer before args.layer: before the first one, beside the last one's.
void PlanRig::find_victims() {
  const cuda::SlotTableView& table = args.table;
  cuda::search_victims({.to = const_cast<cuda::NextVictims*>(args.victims),
                        .count = cuda::next_victims(args.top_k, args.max_prefetches),
                        .slots = table.slots,
                        .slot_bits = table.slot_bits,
                        .stamp = table.stamp,
                        .key_of_slot = table.key_of_slot,
                        .filled_in = table.filled_in,
                        .plan_number = table.clock + cuda::kPlanNumber,
                        .priority_of_key = args.layer == 0 ? table.priority_of_key : nullptr},
                       stream.handle());
}

void PlanRig::begin_step() {
  std::fill_n(arena.host(args.table.arrived), int64_t{cuda::kArrivalParts} * shape.slots, kArrivedBefore);
  std::fill_n(arena.host(args.queue.words), static_cast<int>(cuda::kLinkWords), 0);
  arena.upload(args.table.arrived, int64_t{cuda::kArrivalParts} * shape.slots);
  arena.upload(args.queue.words, static_cast<int64_t>(cuda::kLinkWords));
}

void PlanRig::set_split(const std::vector<int>& fetch_of_misses) {
  auto* split = const_cast<int32_t*>(args.fetch_of_misses);
  std::copy(fetch_of_misses.begin(), fetch_of_misses.end(), arena.host(split));
  arena.upload(split, static_cast<int64_t>(fetch_of_misses.size()));
}

void PlanRig::set_ids(const std::vector<int32_t>& ids, int tokens) {
  auto* device = const_cast<int32_t*>(args.ids);
  std::copy(ids.begin(), ids.end(), arena.host(device));
  arena.upload(device, static_cast<int64_t>(ids.size()));
  args.tokens = tokens;
}

void PlanRig::set_predicted(const std::vector<int32_t>& ids, int max_prefetches) {
  auto* device = const_cast<int32_t*>(args.predicted);
  std::copy(ids.begin(), ids.end(), arena.host(device));
  arena.upload(device, static_cast<int64_t>(ids.size()));
  args.max_prefetches = max_prefetches;
}

SlotTable::Content PlanRig::content() const {
  const cuda::SlotTableView& table = args.table;
  const int64_t keys = int64_t{shape.layers} * shape.experts;
  SlotTable::Content content;
  content.key_of_slot.assign(arena.host(table.key_of_slot), arena.host(table.key_of_slot) + shape.slots);
  content.priority_of_key.assign(arena.host(table.priority_of_key), arena.host(table.priority_of_key) + keys);
  content.plans = arena.host(table.clock)[cuda::kPlanNumber];
  return content;
}

std::vector<int32_t> random_ids(Random& random, int tokens, int top_k, int experts) {
  std::vector<int32_t> ids;
  std::vector<uint8_t> taken(static_cast<size_t>(experts));
  for (int token = 0; token < tokens; ++token) {
    std::fill(taken.begin(), taken.end(), uint8_t{0});
    const int present = random.below(8) == 0 ? static_cast<int>(random.below(static_cast<uint64_t>(top_k) + 1)) : top_k;
    for (int slot = 0; slot < top_k; ++slot) {
      if (slot >= present) {
        ids.push_back(-1);
        continue;
      }
      const double u = random.uniform();
      auto expert = static_cast<int>(u * u * experts);
      while (taken[static_cast<size_t>(expert)] != 0) expert = (expert + 1) % experts;
      taken[static_cast<size_t>(expert)] = 1;
      ids.push_back(expert);
    }
  }
  return ids;
}

}  // namespace ft::device_test
