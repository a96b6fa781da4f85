// Checked against: the CPU's gate_up and matvec kernels on the same blobs, bit for bit: items with any number of pairs,
// none too, in a list that starts and ends inside a longer one.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

struct Shape {
  int64_t hidden, intermediate;
};

constexpr int kTopK = 3;
constexpr int64_t kGap = 5;

// Items [1, 1 + counts.size()) of the list; pairs dealt at random, the last few to nobody.
struct Routing {
  int64_t tokens = 0;
  std::vector<int> counts;
  HostArray<int32_t> pairs{0};
};

Routing random_routing(const std::vector<int>& counts, Random& random) {
  Routing routing;
  routing.counts = counts;
  const int used = std::accumulate(counts.begin(), counts.end(), 0);
  routing.tokens = (used + 2) / kTopK + 1;
  std::vector<int32_t> order(static_cast<size_t>(routing.tokens * kTopK));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  routing.pairs = HostArray<int32_t>(used);
  std::copy_n(order.begin(), used, routing.pairs.data());
  return routing;
}

struct Expected {
  HostArray<uint32_t> activated{0};
  HostArray<float> out{0};
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

void check_experts(Context& context, const FormatInfo& format, const Mix& mix, const Shape& shape,
                   const std::vector<int>& counts, uint64_t seed) {
  Random random(seed);
  const auto item_count = static_cast<int64_t>(counts.size());
  Blobs blobs;
  blobs.layout = expert_layout(format.id, shape.hidden, shape.intermediate);
  const ExpertLayout& layout = blobs.layout;
  blobs.bytes = HostArray<std::byte>(item_count * layout.bytes);
  for (int64_t i = 0; i < item_count; ++i) {
    fill_expert(layout, mix.weights, random, blobs.bytes.data() + i * layout.bytes);
  }
  const Routing routing = random_routing(counts, random);
  const HostArray<uint32_t> x = random_rows(context, routing.tokens, shape.hidden, mix.activations, random);
  const Expected expected = on_the_cpu(context, blobs, routing, x);

  const DeviceArray<std::byte> device_blobs(context, blobs.bytes);
  HostArray<cuda::ExpertItem> items(item_count + 2);  // the first and the last one are outside the range
  int32_t begin = 0;
  for (int64_t i = 0; i < item_count; ++i) {
    const int32_t count = counts[static_cast<size_t>(i)];
    items[i + 1] = {device_blobs.data() + i * layout.bytes, nullptr, begin, count};
    begin += count;
  }
  const DeviceArray<cuda::ExpertItem> device_items(context, items);
  const DeviceArray<int32_t> bounds(context, std::vector<int32_t>{1, static_cast<int32_t>(item_count) + 1});
  const DeviceArray<int32_t> pairs(context, routing.pairs);
  const DeviceArray<uint32_t> device_x(context, x);
  DeviceArray<uint32_t> activated(context, HostArray<uint32_t>(expected.activated.size()));
  DeviceArray<float> out(context, expected.out.size());

  cuda::ExpertArgs args;
  args.layout = layout;
  args.items = device_items.data();
  args.item_begin = bounds.data();
  args.item_end = bounds.data() + 1;
  args.max_items = static_cast<int>(item_count) + 3;
  args.max_item_pairs = *std::max_element(counts.begin(), counts.end()) <= 1 ? 1 : 0;
  args.pairs = pairs.data();
  args.top_k = kTopK;
  args.x = device_x.data();
  args.activated = activated.data();
  args.out = out.data();
  args.out_stride = shape.hidden + kGap;
  cuda::expert_gate_up(args, context.stream.handle());
  cuda::expert_down(args, context.stream.handle());
  const std::string what = "hidden " + std::to_string(shape.hidden) + " intermediate " +
                           std::to_string(shape.intermediate) + " items " + std::to_string(item_count) + " seed " +
                           std::to_string(seed);
  const std::string group = std::string(format.name) + " " + std::string(mix.name);
  check_same(context, "gate_up " + group, what, activated, expected.activated);
  check_same(context, "down " + group, what, out, expected.out);
}

}  // namespace

void test_experts(Context& context) {
  const std::vector<int> kCounts[] = {{1}, {0}, {1, 0, 1, 1}, {0, 2, 3, 0}, {5, 1, 8}, {4, 6, 7}, {17, 0, 9}, {64}};
  const Shape kShapes[] = {{32, 32},  {64, 96},   {288, 64}, {544, 288}, {1056, 160}, {2048, 768},
                           {100, 37}, {257, 129}, {40, 255}, {16, 1},    {240, 1000}, {400, 240}};
  for (const FormatInfo& format : all_formats()) {
    uint64_t seed = 10000;
    for (const Mix& mix : kMixes) {
      for (const Shape& shape : kShapes) {
        if (!takes_cols(format, shape.hidden) || !takes_cols(format, shape.intermediate)) continue;
        for (const std::vector<int>& counts : kCounts) check_experts(context, format, mix, shape, counts, seed++);
      }
    }
  }
}

}  // namespace ft::device_test
