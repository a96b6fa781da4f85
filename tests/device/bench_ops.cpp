// Times of the product kernels with cold weights: each launch reads other weights than the ones before it, taken in
// turn from more than twice the L2 cache, in one captured graph (so launches cost what they cost in a step). Next to
// them, in the same run: a plain read and a copy (its bytes are read and written, so it counts twice), and for experts
// that are fetched, the gather kernel. GB/s of weights and scales, and their share of the plain read.
#include <algorithm>
#include <cstdio>
#include <functional>

#include "kernels/cuda/memory_read.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/lists.h"
#include "tests/device/products_data.h"

namespace ft::device_test {
namespace {

constexpr int64_t kColdBytes = int64_t{384} << 20;  // > 2 x 60 MB of L2, and enough launches to be a steady rate
constexpr int kRuns = 6;

double rate(int64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds * 1e-9; }

// Prints the ceilings; returns that of reading.
double bench_ceilings(Context& context) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const cuda::DeviceBuffer from(kBytes), to(kBytes), sink(16);
  const auto stream = context.stream.handle();
  const double copy =
      replay_seconds(context, kRuns, [&] { cuda::copy_on_device(to.data(), from.data(), kBytes, stream); });
  const double read =
      replay_seconds(context, kRuns, [&] { cuda::read_memory(from.data(), kBytes, sink.as<uint32_t>(), stream); });
  std::printf("read 1 GiB: %.0f GB/s; copy 1 GiB, read and written: %.0f GB/s\n", rate(kBytes, read),
              2 * rate(kBytes, copy));
  return rate(kBytes, read);
}

// `to` holds `block` a whole number of times.
void repeat_on_device(Context& context, const HostArray<std::byte>& block, const cuda::DeviceBuffer& to) {
  cuda::copy_to_device(to.data(), block.data(), block.size(), context.stream.handle());
  for (int64_t at = block.size(); at < to.bytes(); at += block.size()) {
    cuda::copy_on_device(to.data() + at, to.data(), block.size(), context.stream.handle());
  }
}

struct ExpertShape {
  int items;
  int64_t hidden, intermediate;
};

enum class Down { kNone, kRows, kMerge };

// `items` experts, `tokens` pairs each, of `sets` sets one after the other.
struct ExpertBench {
  ExpertBench(Context& context, const FormatInfo& format, const ExpertShape& shape, int tokens)
      : count(shape.items),
        layout(expert_layout(format.id, shape.hidden, shape.intermediate)),
        sets(std::max<int64_t>(2, kColdBytes / (count * layout.bytes))),
        blobs(sets * count * layout.bytes),
        x(context, int64_t{tokens} * activation_words(shape.hidden)),
        activated(int64_t{tokens} * count * activation_words(shape.intermediate) * 4),
        out(int64_t{tokens} * count * shape.hidden * 4),
        residual(int64_t{tokens} * shape.hidden * 4),
        items(context, sets * count),
        units(cuda::blob_units(layout)),
        counters(sets * count * cuda::kArrivalParts * 4),
        copies(context, sets * count),
        fetched(context, std::vector<int32_t>{0}),
        bounds(context, std::vector<int32_t>{0, count}),
        pairs(context, pairs_of(tokens)),
        ids(context, std::vector<int32_t>(static_cast<size_t>(tokens * count), 0)),
        weights(tokens * count * 4) {
    Random random(1);
    HostArray<std::byte> blob(layout.bytes);
    fill_expert(layout, Weights::kOrdinary, random, blob.data());
    repeat_on_device(context, blob, blobs);
    x.write(random_rows(context, tokens, shape.hidden, Activations::kNormal, random));
    for (const cuda::DeviceBuffer* buffer : {&activated, &residual, &weights}) {
      cuda::fill_zero(buffer->data(), buffer->bytes(), context.stream.handle());
    }
    args.layout = layout;
    args.item_begin = bounds.data(), args.item_end = bounds.data() + 1;
    args.max_items = count;
    args.max_item_pairs = tokens;
    args.pairs = pairs.data();
    args.top_k = count;
    args.x = x.data();
    args.activated = activated.as<uint32_t>();
    args.out = out.as<float>();
    args.out_stride = shape.hidden;
    merge = {ids.data(), weights.as<float>(), tokens, residual.as<float>(), shape.hidden};
    fetch(0, nullptr);
  }
  // From now on the last `most` items of each set come from `bank`, which holds as many blobs as all sets fetch.
  void fetch(int most, const std::byte* bank) {
    HostArray<cuda::ExpertItem> list(sets * count);
    HostArray<cuda::Copy> copy_list(sets * count);
    const auto tokens = static_cast<int32_t>(merge.tokens);
    for (int64_t i = 0; i < list.size(); ++i) {
      const auto place = static_cast<int32_t>(i % count);
      const int64_t copy = place - (count - most);
      std::byte* slot = blobs.data() + i * layout.bytes;
      list[i] = {slot, place * tokens, tokens};
      if (copy < 0) continue;
      list[i].arrival = static_cast<int32_t>(i);
      copy_list[i / count * count + copy] = {bank + (i / count * most + copy) * layout.bytes, slot,
                                             counters.as<uint32_t>() + cuda::kArrivalParts * i, units};
    }
    items.write(list);
    copies.write(copy_list);
    HostArray<int32_t> number(1);
    number[0] = most;
    fetched.write(number);
    args.arrivals = {counters.as<uint32_t>(), units, box.as_device<cuda::CpuMailbox>(), 0, 2'000'000'000};
    args.fetch.count = fetched.data();
    args.fetch.here = bank != nullptr;
  }
  std::vector<int32_t> pairs_of(int tokens) const {
    std::vector<int32_t> result;
    for (int item = 0; item < count; ++item) {
      for (int t = 0; t < tokens; ++t) result.push_back(t * count + item);
    }
    return result;
  }
  double seconds(Context& context, bool gate_up, Down down) {
    const double all = replay_seconds(context, kRuns, [&] {
      if (args.fetch.here) cuda::fill_zero(counters.data(), counters.bytes(), context.stream.handle());
      for (int64_t set = 0; set < sets; ++set) {
        args.fetch.copies = copies.data() + set * count;
        args.items = items.data() + set * count;
        if (gate_up) cuda::expert_gate_up(args, context.stream.handle());
        if (down == Down::kRows) cuda::expert_down(args, context.stream.handle());
        if (down == Down::kMerge) cuda::expert_down_merge(args, merge, context.stream.handle());
      }
    });
    return all / static_cast<double>(sets);
  }

  int count;
  ExpertLayout layout;
  int64_t sets;
  cuda::DeviceBuffer blobs;
  DeviceArray<uint32_t> x;
  cuda::DeviceBuffer activated, out, residual;
  DeviceArray<cuda::ExpertItem> items;
  cuda::BlobUnits units;
  cuda::DeviceBuffer counters;
  DeviceArray<cuda::Copy> copies;
  DeviceArray<int32_t> fetched;
  cuda::PinnedBuffer box{sizeof(cuda::CpuMailbox)};
  DeviceArray<int32_t> bounds, pairs, ids;
  cuda::DeviceBuffer weights;
  cuda::ExpertArgs args;
  cuda::ExpertMerge merge;
};

constexpr ExpertShape kExpertShapes[] = {{8, 2048, 768}, {10, 2560, 640}, {6, 4096, 2048}};

std::string name_of(const FormatInfo& format, const ExpertShape& shape) {
  return std::to_string(shape.items) + " experts " + std::to_string(shape.hidden) + "x" +
         std::to_string(shape.intermediate) + " " + std::string(format.name);
}

void bench_experts(Context& context, double read_rate) {
  std::printf(
      "\n%-32s gate, up, down+merge: us  GB/s  of read | gate, up   down   down+merge  (GB/s) | 4 tokens  8 tokens\n",
      "cold experts");
  for (const ExpertShape& shape : kExpertShapes) {
    for (const FormatInfo& format : all_formats()) {
      std::string more;
      for (const int tokens : {4, 8}) {
        ExpertBench bench(context, format, shape, tokens);
        const double seconds = bench.seconds(context, true, Down::kMerge);
        char text[64];
        std::snprintf(text, sizeof text, " %9.0f", rate(shape.items * bench.layout.payload_bytes, seconds));
        more += text;
      }
      ExpertBench bench(context, format, shape, 1);
      const double all = bench.seconds(context, true, Down::kMerge);
      const int64_t bytes = shape.items * bench.layout.payload_bytes, down = shape.items * bench.layout.down.bytes;
      std::printf("%-32s %22.2f %5.0f  %5.2f | %9.0f %8.0f %9.0f         |%s\n", name_of(format, shape).c_str(),
                  all * 1e6, rate(bytes, all), rate(bytes, all) / read_rate,
                  rate(2 * shape.items * bench.layout.gate.bytes, bench.seconds(context, true, Down::kNone)),
                  rate(down, bench.seconds(context, false, Down::kRows)),
                  rate(down, bench.seconds(context, false, Down::kMerge)), more.c_str());
      std::fflush(stdout);
    }
  }
}

// The same with some items fetched, next to the gather kernel with the same bytes.
void bench_fetches(Context& context) {
  std::printf("\n%-32s %8s %20s %20s %16s\n", "fetched experts, GB/s over link", "fetched", "gate, up, down+merge",
              "gather", "no fetch, us");
  for (const ExpertShape& shape : kExpertShapes) {
    for (const FormatId id : {FormatId::kBf16, FormatId::kNvfp4}) {
      ExpertBench bench(context, format_info(id), shape, 1);
      bench.sets = std::min<int64_t>(bench.sets, 6);
      const int64_t bytes = bench.layout.bytes;
      const cuda::PinnedBuffer bank(bench.sets * shape.items * bytes);
      const double no_fetch = bench.seconds(context, true, Down::kMerge);
      for (const int fetched : {0, 1, 2, 4, shape.items}) {
        bench.fetch(fetched, bank.device());
        const double seconds = bench.seconds(context, true, Down::kMerge);
        const double gathered = replay_seconds(context, kRuns, [&] {
          for (int64_t set = 0; set < bench.sets; ++set) {
            cuda::Fetch fetch = bench.args.fetch;
            fetch.copies = bench.copies.data() + set * shape.items;
            cuda::gather(fetch, cuda::kGatherBlocks, context.stream.handle());
          }
        });
        std::printf("%-32s %8d %9.2f us %6.1f %11.2f us %6.1f %13.2f\n", name_of(format_info(id), shape).c_str(),
                    fetched, seconds * 1e6, rate(fetched * bytes, seconds),
                    gathered / static_cast<double>(bench.sets) * 1e6, rate(fetched * bytes * bench.sets, gathered),
                    no_fetch * 1e6);
        std::fflush(stdout);
      }
    }
  }
}

// Seconds of one product; normed: its input is packed and normed by the launch.
double matvec_seconds(Context& context, const PackedLayout& layout, int64_t tokens, bool normed) {
  const int64_t copies = std::max<int64_t>(2, kColdBytes / layout.bytes);
  Random random(1);
  HostArray<std::byte> w(layout.bytes);
  fill_matrix(layout, Weights::kOrdinary, random, w.data());
  const cuda::DeviceBuffer matrices(copies * layout.bytes);
  repeat_on_device(context, w, matrices);
  const DeviceArray<uint32_t> words(context, random_rows(context, tokens, layout.cols, Activations::kNormal, random));
  const DeviceArray<float> x(context, random_floats(random, test::Values::kNormal, tokens * layout.cols));
  DeviceArray<uint32_t> scratch(context, words.size());
  const cuda::DeviceBuffer y(tokens * layout.rows * 4);
  cuda::MatvecArgs args;
  args.tokens = tokens;
  args.output_count = 1;
  if (normed) {
    args.input = {nullptr, x.data(), layout.cols, x.data(), 1e-6f, scratch.data()};
  } else {
    args.input.words = words.data();
  }
  // At most 512 launches: a small matrix would make a graph of thousands.
  const int64_t launches = std::min<int64_t>(copies, 512);
  const double seconds = replay_seconds(context, kRuns, [&] {
    for (int64_t i = 0; i < launches; ++i) {
      args.outputs[0] = {
          {layout, matrices.data() + i * layout.bytes, 1.0f}, nullptr, y.as<float>(), layout.rows, false};
      cuda::matvec(args, context.stream.handle());
    }
  });
  return seconds / static_cast<double>(launches);
}

void bench_matvec(Context& context, double read_rate) {
  constexpr int64_t kShapes[][2] = {{5120, 2048}, {2048, 4096}, {512, 2048}, {128, 2048}, {151936, 2048}};
  std::printf("\n%-32s       us   GB/s of read | normed: us   GB/s | 4 tokens: us   GB/s | 8 tokens: us   GB/s\n",
              "cold matvec");
  for (const auto& shape : kShapes) {
    for (const FormatInfo& format : all_formats()) {
      if (format.id != FormatId::kBf16 && shape[0] != 5120) continue;
      const PackedLayout layout = format.layout(shape[0], shape[1]);
      const std::string name = std::to_string(shape[0]) + "x" + std::to_string(shape[1]) + " ";
      const double one = matvec_seconds(context, layout, 1, false), normed = matvec_seconds(context, layout, 1, true);
      const double four = matvec_seconds(context, layout, 4, false), eight = matvec_seconds(context, layout, 8, false);
      std::printf("%-32s %8.2f %6.0f    %.2f |   %8.2f %6.0f |     %8.2f %6.0f |     %8.2f %6.0f\n",
                  (name + std::string(format.name)).c_str(), one * 1e6, rate(layout.bytes, one),
                  rate(layout.bytes, one) / read_rate, normed * 1e6, rate(layout.bytes, normed), four * 1e6,
                  rate(layout.bytes, four), eight * 1e6, rate(layout.bytes, eight));
      std::fflush(stdout);
    }
  }
}

}  // namespace

void bench_ops(Context& context) {
  const double read_rate = bench_ceilings(context);
  bench_matvec(context, read_rate);
  bench_experts(context, read_rate);
  bench_fetches(context);
}

}  // namespace ft::device_test
