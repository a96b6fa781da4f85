// The memory of the expert slots, the table that says what is in them, and the link that fills them.
//
// Owns the three together because their states must agree: a slot's ticket says whether the copy of the key that the
// table names has arrived. Also owns the two staging buffers through which prefill streams experts past the cache.
// Thread rule: the stepping thread calls; wait() of the link may be called by pool workers.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/experts/memory_plan.h"
#include "engine/experts/slot_table.h"
#include "engine/model/weights.h"
#include "engine/runtime/link.h"
#include "kernels/host/host_memory.h"
#include "kernels/host/worker_pool.h"

namespace ft {

class ExpertSlots {
 public:
  // policy.max_distinct (experts of one layer at the largest decode batch) and max_prefetches (of one layer) size the
  // link's ring.
  ExpertSlots(const ExpertBank& bank, int64_t slots, const SlotPolicy& policy, int max_prefetches, bool staging,
              WorkerPool& pool);

  SlotTable& table() { return table_; }
  const SlotTable& table() const { return table_; }
  Link& link() { return link_; }
  const Link& link() const { return link_; }
  const ExpertBank& bank() const { return bank_; }
  int64_t slots() const { return table_.slots(); }

  const std::byte* slot(int64_t index) const { return memory_.data() + index * bank_.slot_bytes(); }
  const std::byte* staging(int index) const { return staging_.data() + index * bank_.slot_bytes(); }

  // Enqueue a bank -> slot or bank -> staging copy. Nothing reads the target until the ticket is done.
  Link::Ticket fill(int layer, int expert, int64_t slot);
  Link::Ticket stage(int layer, int expert, int index);
  // Ticket of the slot's latest copy; kNoTicket when it was filled at start.
  Link::Ticket ticket(int64_t slot) const { return tickets_[static_cast<size_t>(slot)]; }

  // Puts into every slot what the table says, in parallel, and forgets pending copies. Not for the token path's
  // promise (start, restore, after a probe that filled slots behind the table's back).
  void refill();

 private:
  const ExpertBank& bank_;
  WorkerPool& pool_;
  SlotTable table_;
  HostBuffer memory_;
  HostBuffer staging_;
  std::vector<Link::Ticket> tickets_;  // per slot
  Link link_;                          // last member: its thread stops before the memory goes
};

}  // namespace ft
