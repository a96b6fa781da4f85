// plan_layer against SlotTable (engine/experts/slot_table.h) and a stable sort, after every call: items, pairs,
// fetches, the queue of copies, arrivals, who answers a pair, hand-over, counts, and the table's content and order of
// use.
#include <algorithm>
#include <map>
#include <set>

#include "engine/experts/predicted_experts.h"
#include "kernels/base/clock.h"
#include "kernels/base/use_priority.h"
#include "kernels/ops/activations.h"
#include "tests/device/moe_report.h"
#include "tests/device/moe_rig.h"

namespace ft::device_test {
namespace {

struct Expected {
  LayerPlan plan;
  bool table = false;                     // contents too
  std::map<int, std::vector<int>> pairs;  // by expert, ascending
  uint64_t posted = 0;                    // numbers given out so far, this call's included
  std::vector<ExpertSlot> prefetches;
};

std::map<int, std::vector<int>> pairs_by_expert(const std::vector<int32_t>& ids) {
  std::map<int, std::vector<int>> pairs;
  for (size_t p = 0; p < ids.size(); ++p) {
    if (ids[p] >= 0) pairs[ids[p]].push_back(static_cast<int>(p));
  }
  return pairs;
}

// Empty: as expected. Otherwise the first difference. Reads the downloaded arena.
class Comparison {
 public:
  Comparison(PlanRig& rig, const Expected& want, const std::vector<int32_t>& ids) : rig_(rig), want_(want), ids_(ids) {}

  std::string run() {
    compare_items();
    compare_pairs();
    compare_copies();
    compare_hand_over();
    return difference_;
  }

 private:
  void equal(const char* what, size_t index, int64_t got, int64_t want) {
    if (got == want || !difference_.empty()) return;
    difference_ =
        text("%s[%zu] is %lld, should be %lld", what, index, static_cast<long long>(got), static_cast<long long>(want));
  }
  template <class T>
  const T* host(T* device) const {
    return rig_.arena.host(device);
  }
  static int64_t address(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)); }
  int64_t slot_address(int64_t slot) const { return address(rig_.args.slots) + slot * rig_.args.slot_bytes; }

  void compare_items() {
    const cuda::LayerWork& work = rig_.args.work;
    const LayerPlan& plan = want_.plan;
    const auto hits = static_cast<int64_t>(plan.hits.size());
    const auto fetches = static_cast<int64_t>(plan.fetches.size());
    equal("item_bounds", 0, host(work.item_bounds)[0], 0);
    equal("item_bounds", 1, host(work.item_bounds)[1], hits);
    equal("item_bounds", 2, host(work.item_bounds)[2], hits + fetches);
    equal("item_bounds", 3, host(work.item_bounds)[3], hits + fetches + static_cast<int64_t>(plan.arriving.size()));
    std::map<int, int64_t> begin;
    int64_t place = 0;
    for (const auto& [expert, pairs] : want_.pairs) {
      begin[expert] = place;
      place += static_cast<int64_t>(pairs.size());
    }
    size_t i = 0;
    for (const auto* list : {&plan.hits, &plan.fetches, &plan.arriving}) {
      for (const ExpertSlot& entry : *list) {
        const cuda::ExpertItem& item = host(work.items)[i];
        const auto pairs = want_.pairs.find(entry.expert);
        equal("item blob", i, address(item.blob), slot_address(entry.slot));
        equal("item arrival", i, item.arrival, list == &plan.hits ? -1 : entry.slot);
        equal("item pair_count", i, item.pair_count,
              pairs == want_.pairs.end() ? 0 : static_cast<int64_t>(pairs->second.size()));
        if (pairs != want_.pairs.end()) equal("item pair_begin", i, item.pair_begin, begin[entry.expert]);
        ++i;
      }
    }
  }

  void compare_pairs() {
    size_t place = 0;
    for (const auto& [expert, pairs] : want_.pairs) {
      const auto& cpu = want_.plan.cpu;
      const bool on_cpu = std::find(cpu.begin(), cpu.end(), expert) != cpu.end();
      for (const int pair : pairs) {
        equal("pairs", place, host(rig_.args.work.pairs)[place], pair);
        ++place;
        equal("from_host", static_cast<size_t>(pair), host(rig_.args.work.from_host)[pair], on_cpu);
      }
    }
    for (size_t p = 0; p < ids_.size(); ++p) {
      if (ids_[p] < 0) equal("from_host", p, host(rig_.args.work.from_host)[p], 0);
    }
  }

  // `list`: copies of `want` from a bank.
  void compare_list(const char* what, const cuda::Copy* list, const std::vector<ExpertSlot>& want,
                    const std::byte* bank, int64_t blob_bytes, const cuda::BlobUnits& units) {
    for (size_t i = 0; i < want.size(); ++i) {
      const cuda::Copy& copy = host(const_cast<cuda::Copy*>(list))[i];
      uint32_t* arrived = rig_.args.table.arrived + cuda::kArrivalParts * want[i].slot;
      equal(what, i, address(copy.source), address(bank) + want[i].expert * blob_bytes);
      equal(what, i, address(copy.target), slot_address(want[i].slot));
      equal(what, i, address(copy.arrived), address(arrived));
      equal(what, i, copy.units.all, units.all);
      equal(what, i, copy.units.gate_up, units.gate_up);
      filled_.insert(want[i].slot);
    }
  }
  void compare_copies() {
    const cuda::PlanArgs& args = rig_.args;
    const LayerPlan& plan = want_.plan;
    equal("fetch_count", 0, *host(args.work.fetch_count), static_cast<int64_t>(plan.fetches.size()));
    const uint32_t* words = host(args.queue.words);
    equal("queued", 0, words[cuda::queued_word(cuda::kPromotion)], static_cast<int64_t>(plan.promotions.size()));
    equal("queued", 1, words[cuda::queued_word(cuda::kPrefetch)], static_cast<int64_t>(want_.prefetches.size()));
    equal("pending", 0, words[cuda::kPending], static_cast<int64_t>(plan.fetches.size() * args.units.all));
    compare_list("fetch", args.work.fetches, plan.fetches, args.bank, args.blob_bytes, args.units);
    compare_list("promotion", args.queue.copies[cuda::kPromotion], plan.promotions, args.bank, args.blob_bytes,
                 args.units);
    compare_list("prefetch", args.queue.copies[cuda::kPrefetch], want_.prefetches, args.next_bank, args.next_blob_bytes,
                 args.next_units);
    for (int slot = 0; slot < rig_.shape.slots; ++slot) {
      for (int part = 0; part < cuda::kArrivalParts; ++part) {
        const int at = cuda::kArrivalParts * slot + part;
        equal("arrived", static_cast<size_t>(at), host(args.table.arrived)[at],
              filled_.count(slot) != 0 ? 0 : PlanRig::kArrivedBefore);
      }
    }
  }

  void compare_hand_over() {
    const bool posts = !want_.plan.cpu.empty();
    equal("ticket", 0, *host(rig_.args.work.ticket), posts ? static_cast<int64_t>(want_.posted) : 0);
    equal("posted", 0, rig_.box().posted, static_cast<int64_t>(want_.posted));
    if (!posts) return;
    equal("mailbox layer", 0, rig_.box().layer, rig_.args.layer);
    equal("mailbox tokens", 0, rig_.box().tokens, rig_.args.tokens);
    const int64_t words = activation_words(rig_.shape.hidden);
    for (size_t p = 0; p < ids_.size(); ++p) {
      const auto& cpu = want_.plan.cpu;
      const bool on_cpu = ids_[p] >= 0 && std::find(cpu.begin(), cpu.end(), ids_[p]) != cpu.end();
      equal("mailbox ids", p, rig_.mailbox_ids.as_host<int32_t>()[p], on_cpu ? ids_[p] : -1);
      if (!on_cpu) continue;
      const int64_t row = static_cast<int64_t>(p) / rig_.shape.top_k * words;
      for (int64_t i = row; i < row + words; ++i) {
        equal("mailbox x", static_cast<size_t>(i), rig_.mailbox_x.as_host<uint32_t>()[i], host(rig_.args.x)[i]);
      }
    }
  }

  PlanRig& rig_;
  const Expected& want_;
  const std::vector<int32_t>& ids_;
  std::set<int64_t> filled_;  // slots that got a key
  std::string difference_;
};

std::string compare_table(const PlanRig& rig, const SlotTable& table) {
  const SlotTable::Content content = table.content();
  const int32_t* keys = rig.arena.host(rig.args.table.key_of_slot);
  for (int slot = 0; slot < rig.shape.slots; ++slot) {
    const int64_t want = content.key_of_slot[static_cast<size_t>(slot)];
    if (keys[slot] != want) {
      return text("key_of_slot[%d] is %d, should be %lld", slot, keys[slot], static_cast<long long>(want));
    }
  }
  for (int key = 0; key < rig.shape.layers * rig.shape.experts; ++key) {
    const int32_t got = rig.arena.host(rig.args.table.slot_of_key)[key];
    const int64_t want = table.slot_of(key / rig.shape.experts, key % rig.shape.experts);
    if (got != want) return text("slot_of_key[%d] is %d, should be %lld", key, got, static_cast<long long>(want));
  }
  const SlotTable::Content got = rig.content();
  if (got.priority_of_key != content.priority_of_key) return "priorities differ";
  if (got.plans != content.plans) return "the number of plans differs";
  return {};
}

struct Totals {
  uint64_t hits = 0, fetched = 0, cpu = 0, promoted = 0, arriving = 0, predicted = 0, prefetched = 0, useful = 0;
  std::vector<uint64_t> misses = std::vector<uint64_t>(257);
  void add(const LayerPlan& plan) {
    hits += plan.hits.size() + plan.arriving.size();
    arriving += plan.arriving.size();
    useful += static_cast<uint64_t>(plan.first_uses);
    fetched += plan.fetches.size();
    cpu += plan.cpu.size();
    promoted += plan.promotions.size();
    ++misses[std::min<size_t>(plan.fetches.size() + plan.cpu.size(), 256)];
  }
  std::string compare(const cuda::StepCounters& got) const {
    if (got.hits != hits || got.fetched != fetched || got.cpu != cpu || got.promoted != promoted) {
      return "counters of hits, fetches, cpu or promotions differ";
    }
    if (got.predicted != predicted || got.prefetched != prefetched || got.useful != useful) {
      return "counters of look-ahead differ";
    }
    return std::equal(misses.begin(), misses.end(), got.misses_histogram) ? "" : "the histogram of misses differs";
  }
};

std::vector<int> random_split(Random& random, int max_distinct) {
  std::vector<int> split;
  const uint64_t kind = random.below(3);  // nothing, everything, anything
  for (int m = 0; m <= max_distinct; ++m) {
    split.push_back(kind == 0 ? 0 : kind == 1 ? m : static_cast<int>(random.below(static_cast<uint64_t>(m) + 1)));
  }
  return split;
}

SlotTable::Content random_content(Random& random, const RigShape& shape, uint64_t plans) {
  SlotTable::Content content;
  std::vector<int64_t> keys(static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.experts));
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random.below(i)]);
  for (int slot = 0; slot < shape.slots; ++slot) {
    content.key_of_slot.push_back(random.below(4) == 0 ? -1 : keys[static_cast<size_t>(slot)]);
  }
  content.plans = plans;
  for (size_t i = 0; i < keys.size(); ++i) {
    content.priority_of_key.push_back(random.below(max_priority(plans, shape.half_life_log2) + 1));
  }
  return content;
}

// `steps` steps of random batches; the first difference, or how many decisions were compared.
std::string compare_sequence(const RigShape& shape, int steps, uint64_t plans, Totals& totals) {
  Random random(static_cast<uint64_t>(shape.experts * 31 + shape.slots));
  PlanRig rig(shape);
  SlotTable table(shape.layers, shape.experts, shape.slots, rig.policy());
  PredictedExperts predicted(shape.experts);
  Expected want;
  want.plan.reserve(rig.max_distinct());
  want.prefetches.reserve(static_cast<size_t>(shape.max_predicted));
  if (plans > 0) {
    const SlotTable::Content content = random_content(random, shape, plans);
    table.restore(content);
    rig.restore(content);
  }
  for (int step = 0; step < steps; ++step) {
    int tokens = 1 + static_cast<int>(random.below(static_cast<uint64_t>(shape.max_tokens)));
    if (step == 0) tokens = shape.max_tokens;
    for (int layer = 0; layer < shape.layers; ++layer) {
      const std::vector<int32_t> ids = random_ids(random, tokens, shape.top_k, shape.experts);
      const std::vector<int> split = random_split(random, rig.max_distinct());
      rig.set_ids(ids, tokens);
      rig.set_split(split);
      rig.args.layer = layer;
      rig.args.promotions =
          PromotionRate::of_experts(static_cast<double>(random.below(random.below(2) == 0 ? 64 : 640)) / 16);
      want.pairs = pairs_by_expert(ids);
      std::vector<int> distinct;
      for (const auto& entry : want.pairs) distinct.push_back(entry.first);
      table.plan(layer, distinct, split, rig.args.promotions, want.plan);
      if (!want.plan.cpu.empty()) ++want.posted;
      want.prefetches.clear();
      rig.args.max_prefetches = 0;
      if (shape.max_predicted > 0) {
        const std::vector<int32_t> ahead = random_ids(random, tokens, shape.max_predicted, shape.experts);
        rig.set_predicted(ahead, static_cast<int>(random.below(static_cast<uint64_t>(shape.max_predicted) + 1)));
        const auto at = [&](int64_t token, int rank) {
          return ahead[static_cast<size_t>(token * shape.max_predicted + rank)];
        };
        const auto named = predicted.merge(tokens, shape.max_predicted, at);
        if (layer + 1 < shape.layers && rig.args.max_prefetches > 0 && shape.slots > 0) {
          table.prefetch(layer + 1, named, rig.args.max_prefetches, want.prefetches);
          totals.predicted += named.size();
          totals.prefetched += want.prefetches.size();
        }
      }
      totals.add(want.plan);
      rig.begin_step();
      cuda::plan_layer(rig.args, rig.stream.handle());
      rig.arena.download();
      std::string difference = Comparison(rig, want, ids).run();
      if (difference.empty()) difference = compare_table(rig, table);
      if (!difference.empty()) return text("step %d, layer %d, %d tokens: ", step, layer, tokens) + difference;
    }
  }
  return totals.compare(*rig.arena.host(rig.args.counters));
}

}  // namespace

void test_plan(Report& report) {
  struct Case {
    RigShape shape;  // layers, experts, slots, largest batch, top_k
    int steps;
    uint64_t plans;  // 0: an empty table; else a random content after so many plans
  };
  const std::vector<Case> cases = {
      {{3, 4, 0, 1, 2}, 20, 0},
      {{3, 4, 2, 1, 2}, 100, 0},  // the minimum
      {{3, 4, 3, 1, 2}, 100, 1},
      {{3, 4, 12, 1, 2}, 30, 0},     // all
      {{4, 32, 32, 8, 8}, 40, 0},    // the minimum at batch 8
      {{4, 32, 128, 8, 8}, 30, 3},   // all
      {{6, 128, 192, 1, 8}, 60, 0},  // 25 % of the experts
      {{6, 128, 192, 8, 8}, 40, (uint64_t{1} << 33) + 7},
      {{12, 128, 1500, 4, 8, 2048}, 15, 1000},
      {{6, 1024, 6144, 2, 8}, 20, 5},  // more slots than the block keeps in registers; all
      {{3, 2048, 4500, 8, 16}, 12, 1},
      {{2, 4096, 64, 8, 8}, 30, 0},
      {{2, 4096, 0, 8, 8}, 10, 0},
      {{1, 4096, 4096, 64, 64}, 3, 1},  // every bound
      {{2, 1, 1, 1, 1}, 10, 0},
      // LRFU, and look-ahead: half-life, experts predicted per token
      {{6, 128, 192, 1, 8, 256, 4096, 13}, 80, 0},
      {{6, 128, 192, 8, 8, 256, 4096, 10}, 40, 1000},
      {{6, 128, 192, 1, 8, 256, 4096, 13, 10}, 80, 0},
      {{6, 128, 75, 1, 8, 256, 4096, 11, 3}, 80, 50},  // 10 %
      {{6, 128, 192, 1, 8, 256, 4096, 0, 10}, 60, 7},
      {{4, 64, 80, 8, 8, 256, 4096, 12, 6}, 40, 20},
      {{4, 64, 65, 8, 8, 256, 4096, 12, 6}, 40, 20},  // room for one prefetch
      {{4, 64, 64, 8, 8, 256, 4096, 12, 6}, 20, 20},  // for none
      {{3, 4, 6, 1, 2, 256, 4096, 6, 2}, 200, 0},
      {{48, 512, 2458, 1, 10, 256, 4096, 14, 12}, 6, 100000},
      {{2, 4096, 5000, 64, 16, 256, 4096, 32, 64}, 4, kMaxPlans - 100},  // bounds of policy and predictions
  };
  for (const Case& c : cases) {
    const RigShape& s = c.shape;
    const std::string name =
        text("plan %d x %d experts, %d slots, batch 1-%d, top %d", s.layers, s.experts, s.slots, s.max_tokens, s.top_k);
    Totals totals;
    const double begin = now_seconds();
    const std::string difference = compare_sequence(s, c.steps, c.plans, totals);
    report.result(
        name, difference.empty(),
        difference.empty()
            ? text("%llu hits, %llu fetched, %llu cpu, %llu promoted, %llu ahead, %llu arriving, %.1f s",
                   static_cast<unsigned long long>(totals.hits), static_cast<unsigned long long>(totals.fetched),
                   static_cast<unsigned long long>(totals.cpu), static_cast<unsigned long long>(totals.promoted),
                   static_cast<unsigned long long>(totals.prefetched), static_cast<unsigned long long>(totals.arriving),
                   now_seconds() - begin)
            : difference);
  }
}

void test_given_plans(Report& report) {
  const RigShape shape{3, 64, 40, 4, 8};
  PlanRig rig(shape);
  Random random(11);
  const std::vector<int32_t> ids = random_ids(random, 4, shape.top_k, shape.experts);
  Expected want;
  want.pairs = pairs_by_expert(ids);
  rig.set_ids(ids, 4);
  rig.args.layer = 2;
  rig.args.placement = cuda::Placement::kGiven;
  for (int layout = 0; layout < 4; ++layout) {  // experts dealt to hits, fetches, cpu; one that no id names is fetched
    want.plan.clear();
    int i = 0;
    for (const auto& entry : want.pairs) {
      const int place = layout == 3 ? 0 : (i + layout) % 3;
      if (place == 0) want.plan.hits.push_back({entry.first, i});
      if (place == 1) want.plan.fetches.push_back({entry.first, i});
      if (place == 2) want.plan.cpu.push_back(entry.first);
      ++i;
    }
    int absent = 0;
    while (want.pairs.count(absent) != 0) ++absent;
    if (layout == 1 && static_cast<int>(want.pairs.size()) < rig.max_distinct()) {
      want.plan.fetches.push_back({absent, 39});
    }
    int32_t* expert = rig.arena.host(const_cast<int32_t*>(rig.args.given.expert));
    int32_t* slot = rig.arena.host(const_cast<int32_t*>(rig.args.given.slot));
    int32_t* counts = rig.arena.host(const_cast<int32_t*>(rig.args.given.counts));
    for (const auto* list : {&want.plan.hits, &want.plan.fetches}) {
      for (const ExpertSlot& entry : *list) {
        *expert++ = entry.expert;
        *slot++ = static_cast<int32_t>(entry.slot);
      }
    }
    for (const int cpu : want.plan.cpu) *expert++ = cpu;
    int32_t* promoted = rig.arena.host(const_cast<int32_t*>(rig.args.given.promoted));
    for (size_t p = 0; p < want.plan.cpu.size() && p < 2; ++p) {
      want.plan.promotions.push_back({want.plan.cpu[p], static_cast<int64_t>(36 + p)});
      *promoted++ = static_cast<int32_t>(36 + p);
    }
    counts[0] = static_cast<int32_t>(want.plan.hits.size());
    counts[1] = static_cast<int32_t>(want.plan.fetches.size());
    counts[2] = static_cast<int32_t>(want.plan.cpu.size());
    counts[3] = static_cast<int32_t>(want.plan.promotions.size());
    rig.arena.upload();
    rig.begin_step();
    if (!want.plan.cpu.empty()) ++want.posted;
    cuda::plan_layer(rig.args, rig.stream.handle());
    rig.arena.download();
    std::string difference = Comparison(rig, want, ids).run();
    if (difference.empty())
      difference = compare_table(rig, SlotTable(shape.layers, shape.experts, shape.slots, rig.policy()));
    report.result(text("a given plan, layout %d", layout), difference.empty(), difference);
  }
  rig.args.placement = cuda::Placement::kAllHits;
  want.plan.clear();
  for (const auto& entry : want.pairs) {
    want.plan.hits.push_back({entry.first, (2 * shape.experts + entry.first) % shape.slots});
  }
  rig.begin_step();
  cuda::plan_layer(rig.args, rig.stream.handle());
  rig.arena.download();
  const std::string difference = Comparison(rig, want, ids).run();
  report.result("all hits", difference.empty(), difference);
}

}  // namespace ft::device_test
