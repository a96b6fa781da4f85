#include "engine/runtime/expert_slots.h"

#include <algorithm>
#include <cstring>

namespace ft {
namespace {

// Promotions and prefetches of a few layers may still be queued when a layer enqueues all its misses: room for four layers' worth.
constexpr int kLayersInRing = 4;

}  // namespace

ExpertSlots::ExpertSlots(const ExpertBank& bank, int64_t slots, const SlotPolicy& policy, int max_prefetches,
                         bool staging, WorkerPool& pool)
    : bank_(bank),
      pool_(pool),
      table_(bank.layers(), bank.experts(), slots, policy),
      memory_(slots * bank.slot_bytes(), &pool),
      staging_(staging ? kStagingBuffers * bank.slot_bytes() : 0, &pool),
      tickets_(static_cast<size_t>(slots), Link::kNoTicket),
      link_(std::max(kStagingBuffers, kLayersInRing * (static_cast<int>(policy.max_distinct) + max_prefetches))) {}

Link::Ticket ExpertSlots::fill(int layer, int expert, int64_t slot) {
  std::byte* target = memory_.data() + slot * bank_.slot_bytes();
  const Link::Ticket ticket = link_.enqueue(bank_.blob(layer, expert), target, bank_.layout(layer).bytes);
  tickets_[static_cast<size_t>(slot)] = ticket;
  return ticket;
}

Link::Ticket ExpertSlots::stage(int layer, int expert, int index) {
  std::byte* target = staging_.data() + index * bank_.slot_bytes();
  return link_.enqueue(bank_.blob(layer, expert), target, bank_.layout(layer).bytes);
}

void ExpertSlots::refill() {
  link_.drain();
  std::fill(tickets_.begin(), tickets_.end(), Link::kNoTicket);
  const SlotTable::Content content = table_.content();
  pool_.run([&](int worker, int workers) {
    const Range part = split_range(static_cast<int64_t>(content.key_of_slot.size()), worker, workers);
    for (int64_t slot = part.begin; slot < part.end; ++slot) {
      const int64_t key = content.key_of_slot[static_cast<size_t>(slot)];
      if (key < 0) continue;
      const int layer = static_cast<int>(key / bank_.experts());
      const int expert = static_cast<int>(key % bank_.experts());
      std::memcpy(memory_.data() + slot * bank_.slot_bytes(), bank_.blob(layer, expert),
                  static_cast<size_t>(bank_.layout(layer).bytes));
    }
  });
}

}  // namespace ft
