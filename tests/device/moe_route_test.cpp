// route_and_plan against the launches that it replaces (rmsnorm_pack, matvec, router_top_k, plan_layer, each tested
// against the CPU or SlotTable): logits, ids, weights, packed rows and everything the plan writes, bit for bit. And
// what it costs in a chain.
#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/formats/format.h"
#include "kernels/ops/activations.h"
#include "tests/device/moe_report.h"
#include "tests/device/moe_rig.h"

namespace ft::device_test {
namespace {

struct RouteShape {
  int experts = 8, top_k = 2, tokens = 1;
  int64_t hidden = 256;
  int predicted = 0;       // experts named for the next layer; 0: no look-ahead
  bool all_slots = false;  // soon every expert is in a slot, and plans are of hits alone
  bool victims = false;    // the victims of each plan are found before it
  PromotionRate promotions = 1;
  int fetch_of_two = 1;    // of two misses so many are fetched, 0 to 2
  int prefetches = 2;      // at most so many a layer
  int half_life_log2 = 0;  // of the cache policy; 0: LRU
  bool options = false;    // a bias, factors of experts, and a norm of the experts' own
  bool plain = false;      // rows are not normed
};

class RouteRig {
 public:
  RouteRig(const RouteShape& s, int layers, int slots, uint64_t seed)
      : shape(s),
        plan({.layers = layers,
              .experts = s.experts,
              .slots = slots,
              .max_tokens = s.tokens,
              .top_k = s.top_k,
              .hidden = s.hidden,
              .half_life_log2 = s.half_life_log2,
              .max_predicted = s.predicted}) {
    const FormatInfo& format = format_info(FormatId::kBf16);
    const PackedLayout layout = format.layout(s.experts, s.hidden);
    const int64_t row_words = activation_words(s.hidden);
    router_ = cuda::DeviceBuffer(layout.bytes);
    rows_ = cuda::DeviceBuffer((s.tokens + 1) * s.hidden * 4);
    options_ = cuda::DeviceBuffer((s.hidden + 2 * int64_t{s.experts}) * 4);
    out_ = cuda::DeviceBuffer(s.tokens * (2 * row_words + s.experts + 2 * s.top_k) * 4 + 256);
    cuda::PinnedBuffer router(layout.bytes), rows(rows_.bytes());
    format.synthesize(layout, seed, 0, layout.row_tiles, router.host());
    Random random(seed);
    for (int64_t i = 0; i < (s.tokens + 1) * s.hidden; ++i) {
      rows.as_host<float>()[i] = static_cast<float>(random.below(2001)) * 2e-3f - 2.0f;
    }
    rows_host_ = std::move(rows);
    cuda::copy_to_device(router_.data(), router.host(), layout.bytes, plan.stream.handle());
    upload_rows();
    cuda::fill_zero(out_.data(), out_.bytes(), plan.stream.handle());
    plan.stream.synchronize();
    args.x = rows_.as<float>() + s.hidden;
    args.x_stride = s.hidden;
    args.norm_w = s.plain ? nullptr : rows_.as<float>();
    args.norm_eps = 1e-6f;
    args.router = {layout, router_.data(), 1.0f};
    auto* at = out_.as<uint32_t>();
    args.arrived = at;
    args.words = at + 64;
    args.logits = reinterpret_cast<float*>(args.words + s.tokens * row_words);
    args.top.tokens = s.tokens;
    args.top.k = s.top_k;
    args.top.renormalize = true;
    args.top.ids = reinterpret_cast<int32_t*>(args.logits + s.tokens * s.experts);
    args.top.weights = reinterpret_cast<float*>(args.top.ids + s.tokens * s.top_k);
    plan.args.ids = args.top.ids;
    plan.args.x = args.words;
    if (s.options) use_options(random);
    plan.args.tokens = s.tokens;
    std::vector<int> split;
    for (int m = 0; m <= plan.max_distinct(); ++m) split.push_back(m * s.fetch_of_two / 2);
    plan.set_split(split);
  }
  float* row(int64_t token) { return rows_host_.as_host<float>() + (token + 1) * shape.hidden; }
  void upload_rows() {
    cuda::copy_to_device(rows_.data(), rows_host_.host(), rows_.bytes(), plan.stream.handle());
    plan.stream.synchronize();
  }
  std::vector<uint32_t> outputs() {
    std::vector<uint32_t> words(static_cast<size_t>(out_.bytes() / 4));
    cuda::copy_to_host(words.data(), out_.data(), out_.bytes(), plan.stream.handle());
    plan.stream.synchronize();
    return words;
  }

  RouteShape shape;
  PlanRig plan;
  cuda::RouteArgs args;

 private:
  void use_options(Random& random) {
    std::vector<float> values;
    for (int64_t i = 0; i < options_.bytes() / 4; ++i) values.push_back(static_cast<float>(random.normal()));
    cuda::copy_to_device(options_.data(), values.data(), options_.bytes(), plan.stream.handle());
    plan.stream.synchronize();
    args.bias = options_.as<float>();
    args.top.expert_scale = args.bias + shape.experts;
    args.experts_norm_w = args.top.expert_scale + shape.experts;
    args.experts_norm_eps = 1e-5f;
    args.experts_words = reinterpret_cast<uint32_t*>(args.top.weights + shape.tokens * shape.top_k);
    plan.args.x = args.experts_words;
  }
  cuda::DeviceBuffer router_, rows_, options_, out_;
  cuda::PinnedBuffer rows_host_;
};

std::string first_difference(const char* what, const uint32_t* a, const uint32_t* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (a[i] != b[i]) return text("%s: word %lld is %08x, should be %08x", what, static_cast<long long>(i), a[i], b[i]);
  }
  return {};
}

template <class T>
std::string compare_arrays(const char* what, const PlanRig& a, const PlanRig& b, T* in_a, T* in_b, int64_t count) {
  const T *x = a.arena.host(in_a), *y = b.arena.host(in_b);
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] != y[i]) return text("%s[%lld] differs", what, static_cast<long long>(i));
  }
  return {};
}

// What the CPU was handed of one token: its experts and the row that they read.
std::string compare_posts(PlanRig& a, PlanRig& b) {
  const RigShape& s = a.shape;
  if (s.max_tokens != 1 || *a.arena.host(a.args.work.ticket) == 0) return {};
  const std::string ids =
      first_difference("the CPU's ids", a.mailbox_ids.as_host<uint32_t>(), b.mailbox_ids.as_host<uint32_t>(), s.top_k);
  if (!ids.empty()) return ids;
  return first_difference("the CPU's row", a.mailbox_x.as_host<uint32_t>(), b.mailbox_x.as_host<uint32_t>(),
                          activation_words(s.hidden));
}

std::string compare_copies(const char* what, const PlanRig& a, const PlanRig& b, cuda::Copy* in_a, cuda::Copy* in_b,
                           int count) {
  for (int i = 0; i < count; ++i) {
    const cuda::Copy &x = a.arena.host(in_a)[i], &y = b.arena.host(in_b)[i];
    if (x.source != y.source || x.target != y.target || x.units.all != y.units.all ||
        x.units.gate_up != y.units.gate_up || x.arrived - a.args.table.arrived != y.arrived - b.args.table.arrived) {
      return text("%s %d differs", what, i);
    }
  }
  return {};
}

std::string compare_plans(PlanRig& a, PlanRig& b) {
  a.arena.download();
  b.arena.download();
  const RigShape& s = a.shape;
  const int64_t keys = int64_t{s.layers} * s.experts, pairs = int64_t{s.max_tokens} * s.top_k;
  const std::string found[] = {
      compare_arrays("slot_of_key", a, b, a.args.table.slot_of_key, b.args.table.slot_of_key, keys),
      compare_arrays("stamp", a, b, a.args.table.stamp, b.args.table.stamp, s.slots),
      compare_arrays("priority", a, b, a.args.table.priority_of_key, b.args.table.priority_of_key, keys),
      compare_arrays("filled_in", a, b, a.args.table.filled_in, b.args.table.filled_in, s.slots),
      compare_arrays("key_of_slot", a, b, a.args.table.key_of_slot, b.args.table.key_of_slot, s.slots),
      compare_arrays("arrived", a, b, a.args.table.arrived, b.args.table.arrived,
                     int64_t{cuda::kArrivalParts} * s.slots),
      compare_arrays("prefetched_in", a, b, a.args.table.prefetched_in, b.args.table.prefetched_in, s.slots),
      compare_arrays("queue", a, b, a.args.queue.words, b.args.queue.words, cuda::kLinkWords),
      compare_arrays("counters", a, b, reinterpret_cast<uint64_t*>(a.args.counters),
                     reinterpret_cast<uint64_t*>(b.args.counters), sizeof(cuda::StepCounters) / sizeof(uint64_t)),
      compare_arrays("clock", a, b, a.args.table.clock, b.args.table.clock, cuda::kClockWords),
      compare_arrays("item_bounds", a, b, a.args.work.item_bounds, b.args.work.item_bounds, 4),
      compare_arrays("fetch_count", a, b, a.args.work.fetch_count, b.args.work.fetch_count, 1),
      compare_arrays("ticket", a, b, a.args.work.ticket, b.args.work.ticket, 1),
      compare_arrays("pairs", a, b, a.args.work.pairs, b.args.work.pairs, pairs),
      compare_arrays("from_host", a, b, a.args.work.from_host, b.args.work.from_host, pairs),
      compare_posts(a, b)};
  for (const std::string& difference : found) {
    if (!difference.empty()) return difference;
  }
  const int items = a.arena.host(a.args.work.item_bounds)[3];
  for (int i = 0; i < items; ++i) {
    const cuda::ExpertItem &x = a.arena.host(a.args.work.items)[i], &y = b.arena.host(b.args.work.items)[i];
    if (x.blob != y.blob || x.arrival != y.arrival || x.pair_begin != y.pair_begin || x.pair_count != y.pair_count) {
      return text("item %d differs", i);
    }
  }
  const auto queued = [&](cuda::LinkKind kind) { return a.arena.host(a.args.queue.words)[cuda::queued_word(kind)]; };
  const std::string copies[] = {
      compare_copies("fetch", a, b, a.args.work.fetches, b.args.work.fetches, *a.arena.host(a.args.work.fetch_count)),
      compare_copies("promotion", a, b, a.args.queue.copies[cuda::kPromotion], b.args.queue.copies[cuda::kPromotion],
                     static_cast<int>(queued(cuda::kPromotion))),
      compare_copies("prefetch", a, b, a.args.queue.copies[cuda::kPrefetch], b.args.queue.copies[cuda::kPrefetch],
                     static_cast<int>(queued(cuda::kPrefetch)))};
  for (const std::string& difference : copies) {
    if (!difference.empty()) return difference;
  }
  return {};
}

// Half of a token's predictions are what the last plan used, as far as they go, the others anything else.
std::vector<int32_t> predict(Random& random, const RouteShape& s, const int32_t* last) {
  std::vector<int32_t> ahead;
  for (int token = 0; token < s.tokens; ++token) {
    std::vector<int32_t> own;
    for (int i = 0; i < s.predicted; ++i) {
      const bool known = i < s.top_k && random.below(2) == 0;
      auto id = static_cast<int32_t>(random.below(static_cast<uint64_t>(s.experts)));
      if (known) id = last[token * s.top_k + i];
      // One that is named twice is a plan of its own: seldom.
      const bool twice = std::find(own.begin(), own.end(), id) != own.end();
      own.push_back(twice && random.below(16) != 0 ? -1 : id);
    }
    std::stable_partition(own.begin(), own.end(), [](int32_t id) { return id >= 0; });  // -1 only trails
    ahead.insert(ahead.end(), own.begin(), own.end());
  }
  return ahead;
}

std::string compare_routes(const RouteShape& s, bool with_nan) {
  constexpr int kPlanLayers = 3;
  const int steps = s.all_slots || s.victims ? 24 : 4;
  const int all = s.experts * kPlanLayers, some = s.victims ? all / 3 + s.top_k : 2 * s.tokens * s.top_k;
  const int slots = s.all_slots ? all : std::min(all, some);
  Random random(static_cast<uint64_t>(s.experts + s.predicted));
  RouteRig one(s, kPlanLayers, slots, 5), many(s, kPlanLayers, slots, 5);
  for (RouteRig* rig : {&one, &many}) {
    rig->plan.args.promotions = s.promotions;
  }
  const auto ids_at = static_cast<size_t>(reinterpret_cast<uint32_t*>(one.args.top.ids) - one.args.arrived);
  std::vector<int32_t> last(static_cast<size_t>(s.tokens * s.top_k), 0);
  for (int step = 0; step < steps * kPlanLayers; ++step) {
    const std::vector<int32_t> ahead = predict(random, s, last.data());
    for (RouteRig* rig : {&one, &many}) {
      for (int64_t i = 0; i < s.hidden; ++i) rig->row(0)[i] += 0.01f * static_cast<float>((step * 7 + i) % 13);
      if (with_nan && step == 1) rig->row(s.tokens - 1)[s.hidden / 2] = std::numeric_limits<float>::quiet_NaN();
      rig->upload_rows();
      rig->plan.begin_step();
      rig->plan.args.layer = step % kPlanLayers;
      if (s.predicted > 0) rig->plan.set_predicted(ahead, s.prefetches);
    }
    if (s.victims) one.plan.find_victims();
    cuda::route_and_plan(one.args, one.plan.args, one.plan.stream.handle());
    cuda::route(many.args, many.plan.stream.handle());
    cuda::plan_layer(many.plan.args, many.plan.stream.handle());
    const std::vector<uint32_t> a = one.outputs(), b = many.outputs();
    std::string difference =
        with_nan && step > 0 ? "" : first_difference("outputs", a.data(), b.data(), static_cast<int64_t>(a.size()));
    if (with_nan && step > 0) {  // NaN payloads are not promised: ids are compared
      difference = first_difference("ids", a.data() + ids_at, b.data() + ids_at, s.tokens * s.top_k);
    }
    for (size_t i = 0; i < last.size(); ++i) last[i] = static_cast<int32_t>(a[ids_at + i]);
    if (difference.empty()) difference = compare_plans(one.plan, many.plan);
    if (!difference.empty()) return text("step %d: ", step) + difference;
  }
  return {};
}

constexpr RouteShape kRouteShapes[] = {{4, 2, 1, 64},
                                       {8, 3, 2, 64},
                                       {32, 4, 1, 256},
                                       {33, 5, 3, 1056},
                                       {128, 8, 1, 2048},
                                       {128, 8, 8, 2048},
                                       {512, 10, 1, 2560},
                                       {512, 10, 8, 2560},
                                       {256, 6, 4, 4096},
                                       {1024, 16, 8, 272},
                                       {7, 7, 1, 5000},
                                       {512, 10, 1, 2560, 0, true},
                                       {513, 10, 1, 256, 0, true},
                                       {32, 4, 1, 256, 6, true},
                                       {128, 8, 1, 2048, 8},
                                       {128, 8, 1, 2048, 8, true},
                                       {128, 8, 1, 256, 40, true},
                                       {512, 10, 1, 2560, 10},
                                       {512, 10, 1, 2560, 10, true},
                                       {512, 10, 2, 256, 10, true},
                                       {4, 1, 1, 64, 0, false, true},
                                       {128, 8, 1, 2048, 0, false, true},
                                       {128, 8, 1, 2048, 0, false, true, 0, 2},
                                       {128, 8, 1, 2048, 0, false, true, 3, 0},
                                       {128, 16, 1, 256, 0, false, true, 16, 0},
                                       {128, 8, 1, 2048, 8, false, true},
                                       {512, 10, 1, 2560, 0, false, true},
                                       {512, 10, 1, 2560, 0, false, true, 0, 2},
                                       {256, 6, 1, 4096, 0, false, true, 2, 1},
                                       {512, 16, 1, 256, 0, false, true, 16, 0},
                                       {128, 8, 8, 2048, 0, false, true},
                                       {16, 4, 1, 64, 6, false, true, 0, 2, 4},
                                       {16, 4, 1, 64, 6, false, true, 2, 1, 2, 8},
                                       {128, 8, 1, 2048, 8, false, true, 1, 1, 4, 10},
                                       {128, 8, 1, 2048, 12, false, true, 0, 2, 8, 12},
                                       {512, 10, 1, 2560, 10, false, true, 0, 2, 4, 12},
                                       {512, 10, 1, 2560, 16, false, true, 2, 0, 16, 10},
                                       {256, 6, 1, 4096, 6, false, true, 1, 1, 2, 12},
                                       {256, 8, 1, 2048, 0, true},
                                       {256, 6, 1, 4096, 8},
                                       {129, 4, 1, 2880, 0, true},
                                       {200, 8, 1, 512, 8, true, false, 1, 1, 2, 0, true},
                                       {32, 4, 1, 256, 0, false, false, 1, 1, 2, 0, true},
                                       {128, 4, 1, 2880, 0, true, false, 1, 1, 2, 0, true},
                                       {128, 8, 1, 2816, 8, true, false, 1, 1, 2, 0, true},
                                       {300, 6, 1, 512, 0, false, false, 1, 1, 2, 0, true},
                                       {128, 4, 2, 2880, 0, false, false, 1, 1, 2, 0, true},
                                       {64, 4, 8, 256, 0, true, false, 1, 1, 2, 0, true},
                                       {128, 8, 1, 2048, 0, false, true, 1, 1, 2, 0, false, true},
                                       {512, 10, 1, 2560, 8, false, true, 1, 1, 2, 0, false, true},
                                       {512, 10, 1, 2560, 0, false, true, PromotionRate::one_in(4), 0},
                                       {512, 10, 2, 2560, 0, false, false, 1, 1, 2, 0, false, true},
                                       {64, 4, 8, 256, 0, true, false, 1, 1, 2, 0, false, true}};

}  // namespace

void test_route(Report& report) {
  for (const RouteShape& s : kRouteShapes) {
    std::string name =
        text("route and plan, %d experts, top %d, hidden %lld, %d tokens%s%s%s", s.experts, s.top_k,
             static_cast<long long>(s.hidden), s.tokens,
             s.options ? ", options"
             : s.plain ? ", not normed"
                       : "",
             s.all_slots ? ", all in slots" : "", s.predicted > 0 ? text(", %d predicted", s.predicted).c_str() : "");
    if (s.victims) {
      name += text(", victims known, %d of 2 fetched, %g promoted, half-life 2^%d", s.fetch_of_two,
                   s.promotions.per_plan(), s.half_life_log2);
    }
    const std::string difference = compare_routes(s, false);
    report.result(name, difference.empty(), difference);
  }
  const std::string difference = compare_routes({128, 8, 2, 2048}, true);
  report.result("route and plan with NaN", difference.empty(), difference);
}

namespace {

double chain_us(cuda::Stream& stream, int count, const std::function<void(int)>& launch) {
  stream.synchronize();
  cuda::GraphCapture capture(stream.handle());
  for (int i = 0; i < count; ++i) launch(i);
  const cuda::Graph graph = capture.end();
  std::vector<double> us;
  cuda::Event begin(true), end(true);
  for (int round = 0; round < 12; ++round) {
    begin.record(stream.handle());
    graph.launch(stream.handle());
    end.record(stream.handle());
    stream.synchronize();
    us.push_back(end.seconds_since(begin) * 1e6 / count);
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

}  // namespace

void bench_route() {
  constexpr int kLayers = 48;
  for (const RouteShape& s : {RouteShape{128, 8, 1, 2048}, {128, 8, 8, 2048}, {512, 10, 1, 2560}, {256, 6, 1, 4096}}) {
    RouteRig rig(s, kLayers, kLayers * s.experts / 2, 3);
    SlotTable::Content content;  // the first half of each layer's experts, which is about half hits
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int e = 0; e < s.experts / 2; ++e) content.key_of_slot.push_back(layer * s.experts + e);
    }
    rig.plan.restore(content);
    const auto of = [&](cuda::Placement placement, int part) {
      return chain_us(rig.plan.stream, kLayers, [&](int layer) {
        rig.plan.args.layer = layer;
        rig.plan.args.placement = placement;
        if (part == 0) cuda::route_and_plan(rig.args, rig.plan.args, rig.plan.stream.handle());
        if (part == 1) cuda::route(rig.args, rig.plan.stream.handle());
        if (part == 2) cuda::plan_layer(rig.plan.args, rig.plan.stream.handle());
      });
    };
    std::printf(
        "%4d experts, hidden %lld, %d tokens: route and plan %.2f us (all hits %.2f); apart: route %.2f, plan %.2f\n",
        s.experts, static_cast<long long>(s.hidden), s.tokens, of(cuda::Placement::kTable, 0),
        of(cuda::Placement::kAllHits, 0), of(cuda::Placement::kTable, 1), of(cuda::Placement::kTable, 2));
  }
}

}  // namespace ft::device_test
