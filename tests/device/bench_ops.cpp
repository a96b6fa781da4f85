// Times of the product kernels with cold weights: each launch reads other weights than the ones before it, taken in
// turn from more than twice the L2 cache, in one captured graph (so launches cost what they cost in a step). Next to
// them, a copy on the device in the same run: its bytes are read and written, so it counts twice.
#include <algorithm>
#include <cstdio>
#include <functional>

#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

constexpr int64_t kColdBytes = int64_t{384} << 20;  // > 2 x 60 MB of L2, and enough launches to be a steady rate
constexpr int kRuns = 7;

// Median seconds of one replay of what `record` puts on the stream.
double replay_seconds(Context& context, const std::function<void()>& record) {
  cuda::GraphCapture capture(context.stream.handle());
  record();
  const cuda::Graph graph = capture.end();
  std::vector<double> seconds;
  for (int run = 0; run < kRuns; ++run) {
    cuda::Event begin(true), end(true);
    begin.record(context.stream.handle());
    graph.launch(context.stream.handle());
    end.record(context.stream.handle());
    end.synchronize();
    if (run > 0) seconds.push_back(end.seconds_since(begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

double bench_copy(Context& context) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const cuda::DeviceBuffer from(kBytes), to(kBytes);
  const double seconds =
      replay_seconds(context, [&] { cuda::copy_on_device(to.data(), from.data(), kBytes, context.stream.handle()); });
  const double rate = 2.0 * static_cast<double>(kBytes) / seconds * 1e-9;
  std::printf("%-34s %31s %9.0f GB/s read and written\n", "copy on the device, 1 GiB", "", rate);
  return rate;
}

void print(const std::string& name, double seconds, int64_t bytes, double copy_rate) {
  const double rate = static_cast<double>(bytes) / seconds * 1e-9;
  std::printf("%-44s %9.2f us %9.2f MB %9.0f GB/s  %.2f of copy\n", name.c_str(), seconds * 1e6,
              static_cast<double>(bytes) * 1e-6, rate, rate / copy_rate);
  std::fflush(stdout);
}

// `to` holds `block` a whole number of times.
void repeat_on_device(Context& context, const HostArray<std::byte>& block, const cuda::DeviceBuffer& to) {
  cuda::copy_to_device(to.data(), block.data(), block.size(), context.stream.handle());
  for (int64_t at = block.size(); at < to.bytes(); at += block.size()) {
    cuda::copy_on_device(to.data() + at, to.data(), block.size(), context.stream.handle());
  }
}

constexpr int kItems = 8;

// Eight experts, `tokens` pairs each, of `sets` sets one after the other.
struct ExpertBench {
  ExpertBench(Context& context, const FormatInfo& format, int64_t hidden, int64_t intermediate, int tokens)
      : layout(expert_layout(format.id, hidden, intermediate)),
        sets(std::max<int64_t>(2, kColdBytes / (kItems * layout.bytes))),
        blobs(sets * kItems * layout.bytes),
        x(context, int64_t{tokens} * activation_words(hidden)),
        activated(int64_t{tokens} * kItems * activation_words(intermediate) * 4),
        out(int64_t{tokens} * kItems * hidden * 4),
        items(context, items_of(tokens)),
        bounds(context, std::vector<int32_t>{0, kItems}),
        pairs(context, pairs_of(tokens)) {
    Random random(1);
    HostArray<std::byte> blob(layout.bytes);
    fill_expert(layout, Weights::kOrdinary, random, blob.data());
    repeat_on_device(context, blob, blobs);
    x.write(random_rows(context, tokens, hidden, Activations::kNormal, random));
    cuda::fill_zero(activated.data(), activated.bytes(), context.stream.handle());
    args.layout = layout;
    args.item_begin = bounds.data(), args.item_end = bounds.data() + 1;
    args.max_items = kItems;
    args.max_item_pairs = tokens;
    args.pairs = pairs.data();
    args.top_k = kItems;
    args.x = x.data();
    args.activated = activated.as<uint32_t>();
    args.out = out.as<float>();
    args.out_stride = hidden;
  }
  std::vector<cuda::ExpertItem> items_of(int tokens) const {
    std::vector<cuda::ExpertItem> result;
    for (int64_t i = 0; i < sets * kItems; ++i) {
      result.push_back({blobs.data() + i * layout.bytes, nullptr, static_cast<int32_t>(i % kItems * tokens), tokens});
    }
    return result;
  }
  static std::vector<int32_t> pairs_of(int tokens) {
    std::vector<int32_t> result;
    for (int item = 0; item < kItems; ++item) {
      for (int t = 0; t < tokens; ++t) result.push_back(t * kItems + item);
    }
    return result;
  }
  double seconds(Context& context, bool gate_up, bool down) {
    const double all = replay_seconds(context, [&] {
      for (int64_t set = 0; set < sets; ++set) {
        args.items = items.data() + set * kItems;
        if (gate_up) cuda::expert_gate_up(args, context.stream.handle());
        if (down) cuda::expert_down(args, context.stream.handle());
      }
    });
    return all / static_cast<double>(sets);
  }

  ExpertLayout layout;
  int64_t sets;
  cuda::DeviceBuffer blobs;
  DeviceArray<uint32_t> x;
  cuda::DeviceBuffer activated, out;
  DeviceArray<cuda::ExpertItem> items;
  DeviceArray<int32_t> bounds, pairs;
  cuda::ExpertArgs args;
};

void bench_experts(Context& context, double copy_rate) {
  constexpr int64_t kShapes[][2] = {{2048, 768}, {2560, 640}, {4096, 2048}};
  for (const auto& shape : kShapes) {
    for (const FormatInfo& format : all_formats()) {
      for (const int tokens : {1, 2, 4, 8}) {
        ExpertBench bench(context, format, shape[0], shape[1], tokens);
        const std::string name = "8 experts " + std::string(format.name) + " " + std::to_string(shape[0]) + "x" +
                                 std::to_string(shape[1]) + " batch " + std::to_string(tokens);
        print(name, bench.seconds(context, true, true), kItems * bench.layout.payload_bytes, copy_rate);
        if (tokens > 1) continue;
        print("  gate and up", bench.seconds(context, true, false), kItems * 2 * bench.layout.gate.bytes, copy_rate);
        print("  down", bench.seconds(context, false, true), kItems * bench.layout.down.bytes, copy_rate);
      }
    }
  }
}

void bench_matvec(Context& context, double copy_rate, const FormatInfo& format, int64_t rows, int64_t cols,
                  int64_t tokens) {
  const PackedLayout layout = format.layout(rows, cols);
  const int64_t copies = std::max<int64_t>(2, kColdBytes / layout.bytes);
  Random random(1);
  HostArray<std::byte> w(layout.bytes);
  fill_matrix(layout, Weights::kOrdinary, random, w.data());
  const cuda::DeviceBuffer matrices(copies * layout.bytes);
  repeat_on_device(context, w, matrices);
  const DeviceArray<uint32_t> x(context, random_rows(context, tokens, cols, Activations::kNormal, random));
  const cuda::DeviceBuffer y(tokens * rows * 4);
  cuda::MatvecArgs args;
  args.input.words = x.data();
  args.tokens = tokens;
  args.output_count = 1;
  // At most 512 launches: a small matrix would make a graph of thousands.
  const int64_t launches = std::min<int64_t>(copies, 512);
  const double seconds = replay_seconds(context, [&] {
    for (int64_t i = 0; i < launches; ++i) {
      args.outputs[0] = {{layout, matrices.data() + i * layout.bytes, 1.0f}, nullptr, y.as<float>(), rows, false};
      cuda::matvec(args, context.stream.handle());
    }
  });
  print("matvec " + std::string(format.name) + " " + std::to_string(rows) + "x" + std::to_string(cols) + " batch " +
            std::to_string(tokens),
        seconds / static_cast<double>(launches), layout.bytes, copy_rate);
}

// One step's attention: a token against `length` positions, 32 query heads of 4 key heads of 128.
void bench_attention(Context& context, int64_t length, double copy_rate) {
  constexpr int kHeads = 32, kKvHeads = 4;
  constexpr int64_t kDim = 128;
  const int64_t stride = 2 * kKvHeads * kDim;
  const cuda::DeviceBuffer cache(length * stride * 2), q(kHeads * kDim * 4), out(kHeads * kDim * 4);
  cuda::fill_zero(cache.data(), cache.bytes(), context.stream.handle());
  cuda::fill_zero(q.data(), q.bytes(), context.stream.handle());
  const DeviceArray<int32_t> sequence(context, std::vector<int32_t>{0});
  const DeviceArray<int64_t> position(context, std::vector<int64_t>{length - 1});
  cuda::AttentionArgs args;
  args.q = q.as<float>(), args.q_stride = kHeads * kDim;
  args.tokens = 1;
  args.heads = kHeads, args.kv_heads = kKvHeads, args.head_dim = kDim;
  args.scale = 0.1f;
  args.sequence = sequence.data(), args.position = position.data();
  args.kv = {cache.as<bf16>(), length};
  args.out = out.as<float>(), args.out_stride = kHeads * kDim;
  constexpr int kLaunches = 20;
  const double seconds = replay_seconds(context, [&] {
    for (int i = 0; i < kLaunches; ++i) cuda::attention(args, context.stream.handle());
  });
  print("attention 32/4 heads of 128, length " + std::to_string(length) + ", warm", seconds / kLaunches, cache.bytes(),
        copy_rate);
}

}  // namespace

void bench_ops(Context& context) {
  const double copy_rate = bench_copy(context);
  bench_experts(context, copy_rate);
  const FormatInfo& bf16_format = format_info(FormatId::kBf16);
  constexpr int64_t kShapes[][2] = {{4096, 2048}, {2048, 4096}, {512, 2048}, {128, 2048}, {151936, 2048}};
  for (const auto& shape : kShapes) {
    for (const int64_t tokens : {1, 8}) bench_matvec(context, copy_rate, bf16_format, shape[0], shape[1], tokens);
  }
  for (const FormatInfo& format : all_formats()) bench_matvec(context, copy_rate, format, 4096, 2048, 1);
  for (const int64_t length : {64, 256, 1024, 4096}) bench_attention(context, length, copy_rate);
}

}  // namespace ft::device_test
