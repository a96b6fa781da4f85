// Rates of prefill's kernels on a chunk of 4096 tokens: products of the experts and of dense matrices in TFLOP/s of the
// rows that are wanted (a tile's empty rows do not count), attention in TFLOP/s of visible positions, the passes beside
// them in microseconds. Experts are chosen at random, so their rows vary about tokens * top_k / experts.
#include <cstdio>
#include <functional>
#include <numeric>

#include "kernels/cuda/prefill.h"
#include "kernels/ops/activations.h"
#include "tests/device/prefill_lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

constexpr int kRuns = 7;
constexpr int64_t kTokens = 4096;

double median_seconds(Context& context, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int run = 0; run < kRuns; ++run) {
    cuda::Event begin(true), end(true);
    begin.record(context.stream.handle());
    work();
    end.record(context.stream.handle());
    end.synchronize();
    if (run > 0) seconds.push_back(end.seconds_since(begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

void print_rate(const std::string& what, double seconds, double flops) {
  std::printf("%-58s %9.1f us %7.1f TFLOP/s\n", what.c_str(), seconds * 1e6, flops / seconds * 1e-12);
  std::fflush(stdout);
}

struct ExpertShape {
  int64_t hidden, intermediate;
  int experts, top_k;
};

HostArray<int32_t> random_choices(const ExpertShape& shape, int64_t tokens) {
  Random random(5);
  HostArray<int32_t> ids(tokens * shape.top_k);
  std::vector<int32_t> all(static_cast<size_t>(shape.experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int slot = 0; slot < shape.top_k; ++slot) {
      std::swap(all[static_cast<size_t>(slot)],
                all[static_cast<size_t>(slot) + random.below(all.size() - static_cast<size_t>(slot))]);
      ids[t * shape.top_k + slot] = all[static_cast<size_t>(slot)];
    }
  }
  return ids;
}

void bench_experts(Context& context, const FormatInfo& format, const ExpertShape& shape, int64_t tokens) {
  const ExpertLayout layout = expert_layout(format.id, shape.hidden, shape.intermediate);
  Random random(3);
  HostArray<std::byte> blob(layout.bytes);
  fill_expert(layout, Weights::kOrdinary, random, blob.data());
  const cuda::DeviceBuffer blobs(layout.bytes * shape.experts);
  cuda::copy_to_device(blobs.data(), blob.data(), layout.bytes, context.stream.handle());
  for (int e = 1; e < shape.experts; ++e) {
    cuda::copy_on_device(blobs.data() + e * layout.bytes, blobs.data(), layout.bytes, context.stream.handle());
  }
  PrefillListArrays lists(context, random_choices(shape, tokens), shape.experts);
  HostArray<const std::byte*> by_item(shape.experts);
  for (int i = 0; i < shape.experts; ++i) by_item[i] = blobs.data() + lists.expert_of_item[i] * layout.bytes;
  const DeviceArray<const std::byte*> device_items(context, by_item);
  const DeviceArray<uint32_t> x(context, random_rows(context, tokens, shape.hidden, Activations::kNormal, random));
  const int64_t pairs = tokens * shape.top_k;
  const cuda::DeviceBuffer activated(pairs * activation_words(shape.intermediate) * 4);
  const cuda::DeviceBuffer out(pairs * shape.hidden * 4);
  cuda::fill_zero(activated.data(), activated.bytes(), context.stream.handle());
  cuda::PrefillExpertArgs args;
  args.layout = layout;
  args.blobs = device_items.data();
  args.lists = lists.view();
  args.item_end = shape.experts;
  args.pairs = pairs;
  args.top_k = shape.top_k;
  args.x = x.data();
  args.activated = activated.as<uint32_t>();
  args.out = out.as<float>();
  args.out_stride = shape.hidden;
  const double product = 2.0 * static_cast<double>(pairs) * static_cast<double>(shape.hidden * shape.intermediate);
  const std::string name = std::string(format.name) + " H " + std::to_string(shape.hidden) + " I " +
                           std::to_string(shape.intermediate) + " " + std::to_string(shape.experts) + " experts top-" +
                           std::to_string(shape.top_k) + ", " + std::to_string(tokens) + " tokens";
  const cuda::StreamHandle stream = context.stream.handle();
  print_rate(name + " gate, up", median_seconds(context, [&] { cuda::prefill_gate_up(args, stream); }), 2 * product);
  print_rate(name + " down", median_seconds(context, [&] { cuda::prefill_down(args, stream); }), product);
  print_rate(name + " both",
             median_seconds(context,
                            [&] {
                              cuda::prefill_gate_up(args, stream);
                              cuda::prefill_down(args, stream);
                            }),
             3 * product);
  if (format.id != FormatId::kNvfp4 || tokens != kTokens) return;
  const double seconds = median_seconds(context, [&] { lists.group(context); });
  std::printf("  lists of pairs %.1f us\n", seconds * 1e6);
  const DeviceArray<float> weights(context, HostArray<float>(pairs, 0.1f));
  const cuda::DeviceBuffer residual(tokens * shape.hidden * 4);
  const cuda::PrefillMergeArgs merge{
      lists.device_ids.data(), weights.data(), tokens, shape.top_k, out.as<float>(), shape.hidden, shape.hidden,
      residual.as<float>(),    shape.hidden,   true,   {}};
  std::printf("  merge %.1f us\n", median_seconds(context, [&] { cuda::prefill_merge(merge, stream); }) * 1e6);
}

void bench_linear(Context& context, const FormatInfo& format, int64_t rows, int64_t cols, int64_t tokens) {
  const PackedLayout layout = format.layout(rows, cols);
  Random random(9);
  HostArray<std::byte> bytes(layout.bytes);
  fill_matrix(layout, Weights::kOrdinary, random, bytes.data());
  const DeviceArray<std::byte> matrix(context, bytes);
  const DeviceArray<uint32_t> x(context, random_rows(context, tokens, cols, Activations::kNormal, random));
  const cuda::DeviceBuffer y(tokens * rows * 4);
  cuda::PrefillLinearArgs args;
  args.w = {layout, matrix.data(), 1.0f};
  args.x = x.data();
  args.tokens = tokens;
  args.y = y.as<float>();
  args.y_stride = rows;
  const double seconds = median_seconds(context, [&] { cuda::prefill_linear(args, context.stream.handle()); });
  print_rate(std::string(format.name) + " linear " + std::to_string(rows) + " x " + std::to_string(cols) + ", " +
                 std::to_string(tokens) + " tokens",
             seconds, 2.0 * static_cast<double>(rows * cols * tokens));
}

void bench_attention(Context& context, int64_t head_dim, int64_t before, int64_t tokens) {
  const int heads = head_dim > 128 ? 16 : 32, kv_heads = head_dim > 128 ? 2 : 4;
  const int64_t positions = before + tokens;
  const cuda::DeviceBuffer q(tokens * heads * head_dim * 4), out(tokens * heads * head_dim * 4);
  const cuda::DeviceBuffer kv(positions * 2 * kv_heads * head_dim * 2);
  cuda::fill_zero(q.data(), q.bytes(), context.stream.handle());
  cuda::fill_zero(kv.data(), kv.bytes(), context.stream.handle());
  std::vector<cuda::PrefillQueries> tiles;
  for (int64_t at = 0; at < tokens; at += cuda::kPrefillQueryRows) {
    tiles.push_back({before + at, static_cast<int32_t>(at), cuda::kPrefillQueryRows, 0, 0});
  }
  const DeviceArray<cuda::PrefillQueries> device_tiles(context, tiles);
  cuda::PrefillAttentionArgs args;
  args.q = q.as<float>();
  args.q_stride = heads * head_dim;
  args.tiles = device_tiles.data();
  args.tile_count = static_cast<int>(tiles.size());
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.head_dim = head_dim;
  args.scale = 0.1f;
  args.kv = {kv.as<bf16>(), positions};
  args.out = out.as<float>();
  args.out_stride = heads * head_dim;
  const double seconds = median_seconds(context, [&] { cuda::prefill_attention(args, context.stream.handle()); });
  const double visible =
      static_cast<double>(tokens) * (static_cast<double>(before) + static_cast<double>(tokens + 1) / 2);
  print_rate("attention " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
                 std::to_string(head_dim) + ", " + std::to_string(tokens) + " tokens after " + std::to_string(before),
             seconds, 4.0 * heads * static_cast<double>(head_dim) * visible);
}

}  // namespace

void bench_prefill(Context& context) {
  for (const FormatInfo& format : all_formats()) {
    bench_experts(context, format, {2048, 768, 128, 8}, kTokens);
    if (format.id == FormatId::kNvfp4 || format.id == FormatId::kBf16) {
      bench_experts(context, format, {2560, 640, 512, 10}, kTokens);
    }
  }
  bench_experts(context, format_info(FormatId::kNvfp4), {2048, 768, 128, 8}, 512);
  for (const int64_t tokens : {kTokens, int64_t{512}, int64_t{1}}) {
    bench_linear(context, format_info(FormatId::kBf16), 4096, 2048, tokens);
  }
  bench_linear(context, format_info(FormatId::kBf16), 2048, 4096, kTokens);
  bench_linear(context, format_info(FormatId::kBf16), 512, 2048, kTokens);
  bench_linear(context, format_info(FormatId::kBf16), 128, 2048, kTokens);
  bench_linear(context, format_info(FormatId::kBf16), 151936, 2048, 1);
  bench_linear(context, format_info(FormatId::kNvfp4), 4096, 2048, kTokens);
  bench_attention(context, 128, 0, kTokens);
  bench_attention(context, 128, 28672, kTokens);
  for (const int64_t head_dim : {64, 256, 512}) {
    if (cuda::prefill_attention_takes(head_dim)) bench_attention(context, head_dim, 0, kTokens);
  }
}

}  // namespace ft::device_test
