// Checked against: the CPU's gate_up, matvec, merge and add kernels on the same blobs, bit for bit: experts of every
// form, items with any number of pairs, none too, in a list that starts and ends inside a longer one, merges that are
// added or not. Some items are fetched: their blobs are in pinned memory, gate_up's launch copies them in an order of
// its own, and afterwards their slots must hold every byte of them, their counters every unit, and those of other items
// nothing.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/moe.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

struct Shape {
  int64_t hidden, intermediate;
};

struct NamedForm {
  std::string_view name;
  ExpertForm form;
};
constexpr NamedForm kForms[] = {
    {"silu", {}}, {"oss biased", {{GluKind::kOss, 1.5f}, true}},        {"gelu", {{GluKind::kGeluTanh, 0}, false}},
    {"silu", {}}, {"clamped", {{GluKind::kSiluClamped, 0.75f}, false}}, {"silu biased", {{}, true}}};

constexpr int kTopK = 3;
constexpr int64_t kGap = 5;

// Items [1, 1 + counts.size()) of the list; pairs dealt at random, the last token's last ones to nobody (they trail).
struct Routing {
  int64_t tokens = 0;
  std::vector<int> counts;
  HostArray<int32_t> pairs{0};
};

int most_pairs(const Routing& routing) { return *std::max_element(routing.counts.begin(), routing.counts.end()); }

Routing random_routing(const std::vector<int>& counts, Random& random) {
  Routing routing;
  routing.counts = counts;
  const int used = std::accumulate(counts.begin(), counts.end(), 0);
  const bool one = used <= kTopK && most_pairs(routing) <= 1;  // a step of one token
  routing.tokens = one ? 1 : (used + 2) / kTopK + 1;           // the last one of several has no expert
  std::vector<int32_t> order(static_cast<size_t>(used));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  routing.pairs = HostArray<int32_t>(used);
  std::copy_n(order.begin(), used, routing.pairs.data());
  return routing;
}

struct Expected {
  HostArray<uint32_t> activated{0};
  HostArray<float> out{0};
  HostArray<float> residual{0};
};

struct Blobs {
  ExpertLayout layout;
  HostArray<std::byte> bytes{0};
  const std::byte* of(int64_t item) const { return bytes.data() + item * layout.bytes; }
};

// activated starts as zeros: the padding is the caller's.
Expected on_the_cpu(Context& context, const Blobs& blobs, const Routing& routing, const HostArray<uint32_t>& x) {
  const ExpertLayout& layout = blobs.layout;
  const int64_t pairs = routing.tokens * kTopK;
  const int64_t words = activation_words(layout.intermediate);
  const int64_t stride = layout.hidden + kGap;
  Expected expected;
  expected.activated = HostArray<uint32_t>(pairs * words);
  expected.out = poisoned<float>(pairs * stride);
  const auto format = static_cast<int>(layout.gate.format);
  int64_t next = 0;
  for (size_t item = 0; item < routing.counts.size(); ++item) {
    const std::byte* blob = blobs.of(static_cast<int64_t>(item));
    const PackedMatrix down = expert_down(layout, blob);
    for (int i = 0; i < routing.counts[item]; ++i, ++next) {
      const int64_t pair = routing.pairs[next];
      const uint32_t* from = x.data() + pair / kTopK * activation_words(layout.hidden);
      uint32_t* activated = expected.activated.data() + pair * words;
      context.cpu.gate_up[format]({&layout, blob, &from, 1, 0, layout.gate.row_tiles, &activated});
      const uint32_t* to_down = activated;
      float* out = expected.out.data() + pair * stride;
      context.cpu.matvec[format]({&down, &to_down, 1, 0, down.layout.row_tiles, &out});
    }
  }
  return expected;
}

// Weights in slot order, ids: those of pairs that go through an item, the others trail (routing deals them so).
struct Choice {
  HostArray<int32_t> ids{0};
  HostArray<float> weights{0};
  bool add = true;
};

// residual: what was there plus the merge of the pairs that have an expert, or the merge alone.
void merge_on_the_cpu(Context& context, const Choice& choice, int64_t tokens, int64_t hidden,
                      const HostArray<float>& before, Expected& expected) {
  const int64_t stride = hidden + kGap;
  expected.residual = HostArray<float>(before.size());
  std::copy_n(before.data(), before.size(), expected.residual.data());
  HostArray<float> merged(hidden);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<const float*> rows;
    for (int slot = 0; slot < kTopK && choice.ids[t * kTopK + slot] >= 0; ++slot) {
      rows.push_back(expected.out.data() + (t * kTopK + slot) * stride);
    }
    context.cpu.merge(
        {rows.data(), choice.weights.data() + t * kTopK, static_cast<int64_t>(rows.size()), hidden, merged.data()});
    float* to = expected.residual.data() + t * stride;
    if (choice.add) {
      context.cpu.add({to, merged.data(), hidden});
    } else {
      std::copy_n(merged.data(), hidden, to);
    }
  }
}

// Which items are fetched: the last `fetched` of the list, last expert first. All slots start poisoned, and the other
// items' blobs are elsewhere.
struct Fetches {
  Fetches(Context& context, const Blobs& blobs, int64_t item_count, int64_t fetched)
      : items(item_count),
        first(item_count - fetched),
        units(cuda::blob_units(blobs.layout)),
        pinned(std::max<int64_t>(1, fetched) * blobs.layout.bytes),
        slots(context, item_count * blobs.layout.bytes / 4),
        counters(context, HostArray<uint32_t>(cuda::kArrivalParts * item_count)),
        copies(context, std::max<int64_t>(1, fetched)),
        count(context, std::vector<int32_t>{static_cast<int32_t>(fetched)}) {
    std::memcpy(pinned.host(), blobs.of(first), static_cast<size_t>(fetched * blobs.layout.bytes));
    HostArray<cuda::Copy> list(std::max<int64_t>(1, fetched));
    for (int64_t i = 0; i < fetched; ++i) {
      const int64_t item = item_count - 1 - i;
      list[i] = {pinned.device() + (item - first) * blobs.layout.bytes,
                 reinterpret_cast<std::byte*>(slots.data()) + item * blobs.layout.bytes,
                 counters.data() + cuda::kArrivalParts * item, units};
    }
    copies.write(list);
  }
  void point(const Blobs& blobs, int64_t i, cuda::ExpertItem& item) const {
    if (i < first) return;
    item.blob = reinterpret_cast<const std::byte*>(slots.data()) + i * blobs.layout.bytes;
    item.arrival = static_cast<int32_t>(i);
  }
  void give(cuda::ExpertArgs& args, int repeat) {
    args.arrivals = {counters.data(), units, box.as_device<cuda::CpuMailbox>(), 0, 2'000'000'000};
    args.fetch.copies = copies.data();
    args.fetch.count = count.data();
    args.fetch.here = true;
    args.fetch.repeat = repeat;
  }
  void check(Context& context, const Blobs& blobs, const std::string& group, const std::string& what) const {
    HostArray<int32_t> expected = poisoned<int32_t>(slots.size());
    std::memcpy(reinterpret_cast<std::byte*>(expected.data()) + first * blobs.layout.bytes, blobs.of(first),
                static_cast<size_t>((items - first) * blobs.layout.bytes));
    check_same(context, group, what, slots, expected);
    HostArray<uint32_t> arrived(counters.size());
    for (int64_t i = first; i < items; ++i) {
      arrived[cuda::kArrivalParts * i] = units.gate_up;
      arrived[cuda::kArrivalParts * i + 1] = units.all - units.gate_up;
    }
    check_same(context, group, what + " counters", counters, arrived);
    const bool waited = box.as_host<cuda::CpuMailbox>()->failed == 0;
    context.report.check(group, waited ? "" : what + ": a wait ended without its bytes");
  }
  int64_t items, first;
  cuda::BlobUnits units;
  cuda::PinnedBuffer pinned;
  DeviceArray<int32_t> slots;
  DeviceArray<uint32_t> counters;
  DeviceArray<cuda::Copy> copies;
  DeviceArray<int32_t> count;
  cuda::PinnedBuffer box{sizeof(cuda::CpuMailbox)};
};

// One layer's work on the device: what its launches need, and what they write.
struct DeviceWork {
  DeviceWork(Context& context, const Blobs& blobs, const Routing& routing, const HostArray<uint32_t>& rows,
             const Expected& expected, const HostArray<float>& before, const Choice& choice)
      : device_blobs(context, blobs.bytes),
        bounds(context, std::vector<int32_t>{1, static_cast<int32_t>(routing.counts.size()) + 1}),
        pairs(context, routing.pairs),
        x(context, rows),
        ids(context, choice.ids),
        weights(context, choice.weights),
        activated(context, HostArray<uint32_t>(expected.activated.size())),
        out(context, expected.out.size()),
        residual(context, before) {
    args.layout = blobs.layout;
    args.item_begin = bounds.data();
    args.item_end = bounds.data() + 1;
    args.max_items = static_cast<int>(routing.counts.size()) + 3;
    args.max_item_pairs = most_pairs(routing) <= 1 ? 1 : 0;
    args.pairs = pairs.data();
    args.top_k = kTopK;
    args.x = x.data();
    args.activated = activated.data();
    args.out = out.data();
    args.out_stride = blobs.layout.hidden + kGap;
    merge = {ids.data(), weights.data(), routing.tokens, residual.data(), args.out_stride, choice.add};
  }
  // Items of which the last `fetches` says are copied; the first and the last one are outside the range.
  DeviceArray<cuda::ExpertItem> items(Context& context, const Blobs& blobs, const Routing& routing,
                                      const Fetches& fetches) const {
    const auto count = static_cast<int64_t>(routing.counts.size());
    HostArray<cuda::ExpertItem> result(count + 2);
    int32_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t pairs_of_item = routing.counts[static_cast<size_t>(i)];
      result[i + 1] = {device_blobs.data() + i * blobs.layout.bytes, begin, pairs_of_item};
      fetches.point(blobs, i, result[i + 1]);
      begin += pairs_of_item;
    }
    return DeviceArray<cuda::ExpertItem>(context, result);
  }
  DeviceArray<std::byte> device_blobs;
  DeviceArray<int32_t> bounds, pairs;
  DeviceArray<uint32_t> x;
  DeviceArray<int32_t> ids;
  DeviceArray<float> weights;
  DeviceArray<uint32_t> activated;
  DeviceArray<float> out, residual;
  cuda::ExpertArgs args;
  cuda::ExpertMerge merge;
};

Choice choice_of(const Routing& routing, bool add, Random& random) {
  Choice choice{HostArray<int32_t>(routing.tokens * kTopK, -1), HostArray<float>(routing.tokens * kTopK), add};
  for (int64_t i = 0; i < routing.pairs.size(); ++i) choice.ids[routing.pairs[i]] = 1;
  for (int64_t i = 0; i < choice.weights.size(); ++i) choice.weights[i] = static_cast<float>(random.normal());
  return choice;
}

void check_experts(Context& context, const FormatInfo& format, const Mix& mix, const Shape& shape,
                   const std::vector<int>& counts, uint64_t seed) {
  Random random(seed);
  const auto item_count = static_cast<int64_t>(counts.size());
  Blobs blobs;
  const NamedForm& form = kForms[seed % std::size(kForms)];
  blobs.layout = expert_layout(format.id, shape.hidden, shape.intermediate, form.form);
  blobs.bytes = HostArray<std::byte>(item_count * blobs.layout.bytes);
  for (int64_t i = 0; i < item_count; ++i) {
    fill_expert(blobs.layout, mix.weights, random, blobs.bytes.data() + i * blobs.layout.bytes);
  }
  const Routing routing = random_routing(counts, random);
  const HostArray<uint32_t> x = random_rows(context, routing.tokens, shape.hidden, mix.activations, random);
  Expected expected = on_the_cpu(context, blobs, routing, x);
  const Choice choice = choice_of(routing, seed % 5 != 0, random);
  HostArray<float> before(routing.tokens * (shape.hidden + kGap));
  for (int64_t i = 0; i < before.size(); ++i) before[i] = random_activation(mix.activations, random);
  merge_on_the_cpu(context, choice, routing.tokens, shape.hidden, before, expected);

  const std::string what = "hidden " + std::to_string(shape.hidden) + " intermediate " +
                           std::to_string(shape.intermediate) + " items " + std::to_string(item_count) + " seed " +
                           std::to_string(seed);
  // Of each form the first mix is a group of its own.
  const std::string group = std::string(format.name) + " " + std::string(&mix == kMixes ? form.name : mix.name);
  for (const bool merges : {false, true}) {
    const int64_t fetched = static_cast<int64_t>(seed + (merges ? 1 : 0)) % (item_count + 1);
    DeviceWork work(context, blobs, routing, x, expected, before, choice);
    Fetches fetches(context, blobs, item_count, fetched);
    const DeviceArray<cuda::ExpertItem> items = work.items(context, blobs, routing, fetches);
    work.args.items = items.data();
    fetches.give(work.args, merges ? 1 : 3);
    cuda::expert_gate_up(work.args, context.stream.handle());
    if (merges) {
      cuda::expert_down_merge(work.args, work.merge, context.stream.handle());
      check_same(context, "down_merge " + group, what, work.residual, expected.residual);
    } else {
      cuda::expert_down(work.args, context.stream.handle());
      check_same(context, "down " + group, what, work.out, expected.out);
    }
    check_same(context, "gate_up " + group, what, work.activated, expected.activated);
    fetches.check(context, blobs, "copies " + std::string(format.name), what);
  }
}

}  // namespace

void test_experts(Context& context) {
  const std::vector<int> kCounts[] = {{1},
                                      {0},
                                      {1, 0, 1, 1},
                                      {0, 2, 3, 0},
                                      {5, 1, 8},
                                      {4, 6, 7},
                                      {17, 0, 9},
                                      {64},
                                      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                      std::vector<int>(16, 1),
                                      std::vector<int>(17, 1)};  // the most that one launch of down takes, and one more
  const Shape kShapes[] = {{32, 32},
                           {64, 96},
                           {288, 64},
                           {544, 288},
                           {1056, 160},
                           {2048, 768},
                           {100, 37},
                           {257, 129},
                           {40, 255},
                           {16, 1},
                           {240, 1000},
                           {400, 240},
                           // 16 items of bf16, and of four bits, on both sides of its shared memory
                           {64, 384},
                           {64, 416},
                           {64, 1408},
                           {64, 1440}};
  for (const FormatInfo& format : all_formats()) {
    uint64_t seed = 10000;
    for (const Mix& mix : kMixes) {
      for (const Shape& shape : kShapes) {
        if (!takes_cols(format, shape.hidden) || !takes_cols(format, shape.intermediate)) continue;
        for (const std::vector<int>& counts : kCounts) {
          ++seed;
          if (&mix != kMixes && seed % 4 != 0) continue;  // every shape with every count in the first mix alone
          check_experts(context, format, mix, shape, counts, seed);
        }
      }
    }
  }
}

}  // namespace ft::device_test
