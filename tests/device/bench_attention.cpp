// device_bench_attention: times of a decode step's attention, 32 query heads of 4 key/value heads of 128 dimensions,
// over contexts and batches, beside the least that reading its keys and values takes (a plain read in the same run).
// Each launch of a captured graph has a layer of its own, in turn from more than twice the L2 cache. First launches of
// attention alone; then, for one token, what it adds to a layer's two products, qkv before it and output after it
// (hidden size 2048, bf16), which is what a step pays: its start and end overlap with theirs.
#include <algorithm>
#include <cstdio>
#include <functional>

#include "kernels/cuda/memory_read.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/harness.h"

namespace ft::device_test {
namespace {

constexpr int64_t kColdBytes = int64_t{256} << 20;
constexpr int64_t kMaxLayers = 48;  // launches in a graph
constexpr int kRuns = 8;
constexpr int64_t kHidden = 2048;

struct Shape {
  const char* name;
  int heads, kv_heads;
  int64_t dim;
  int64_t window = 0;
  bool gated = false, sinks = false, v_norm = false, value_is_key = false;

  int64_t query_width() const { return heads * dim * (gated ? 2 : 1); }
  int64_t kv_width() const { return kv_heads * dim; }
  // Rows of a sequence, a ring where there is a window.
  int64_t rows(int64_t length) const {
    const int64_t ring = (window + 64 + 63) / 64 * 64;
    return window > 0 && ring < length ? ring : length;
  }
};
constexpr Shape kPlain{"Qwen3-30B-A3B", 32, 4, 128};
constexpr Shape kFamilies[] = {{"gpt-oss full", 64, 8, 64, 0, false, true},
                               {"gpt-oss sliding", 64, 8, 64, 128, false, true},
                               {"Gemma 4 sliding", 16, 8, 256, 1024, false, false, true},
                               {"Gemma 4 full", 16, 2, 512, 0, false, false, true, true},
                               {"Qwen3.5 full", 16, 2, 256, 0, true}};

double read_rate(Context& context) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const cuda::DeviceBuffer from(kBytes), sink(16);
  return static_cast<double>(kBytes) / replay_seconds(context, kRuns, [&] {
           cuda::read_memory(from.data(), kBytes, sink.as<uint32_t>(), context.stream.handle());
         });
}

// Layers of a step over `tokens` contexts of `length` positions.
class Layers {
 public:
  Layers(Context& context, const Shape& shape, int64_t length, int64_t tokens)
      : context_(context),
        cache_rows_(shape.rows(length)),
        ring_(cache_rows_ < length ? cache_rows_ : 0),
        bytes_(tokens * shape.rows(length) * 2 * shape.kv_width() * static_cast<int64_t>(sizeof(bf16))),
        count_(std::clamp<int64_t>(kColdBytes / bytes_, 2, kMaxLayers)),
        cache_(count_ * bytes_),
        rows_(tokens * (shape.query_width() + 2 * shape.kv_width()) * 4),
        out_(tokens * shape.heads * shape.dim * 4),
        angles_(length * shape.dim / 2 * 4),
        norm_(shape.dim * 4),
        scratch_(cuda::attention_decode_scratch_bytes(tokens, shape.heads, shape.kv_heads, shape.dim, length)),
        sequence_(context, sequences(tokens)),
        position_(context, std::vector<int64_t>(static_cast<size_t>(tokens), length - 1)),
        qkv_layout_(format_info(FormatId::kBf16).layout((shape.query_width() + 2 * shape.kv_width()), kHidden)),
        out_layout_(format_info(FormatId::kBf16).layout(kHidden, shape.heads * shape.dim)),
        qkv_(kMaxLayers * qkv_layout_.bytes),
        output_(kMaxLayers * out_layout_.bytes),
        words_(activation_words(kHidden) * 4),
        packed_(activation_words(shape.heads * shape.dim) * 4),
        hidden_(kHidden * 4) {
    for (const cuda::DeviceBuffer* buffer :
         {&cache_, &rows_, &out_, &angles_, &norm_, &scratch_, &qkv_, &output_, &words_, &packed_, &hidden_}) {
      cuda::fill_zero(buffer->data(), buffer->bytes(), context.stream.handle());
    }
    cuda::AttentionPrepareArgs& prepare = args_.prepare;
    float* rows = rows_.as<float>();
    prepare.q = rows, prepare.q_stride = shape.query_width();
    prepare.k = rows + tokens * shape.query_width(), prepare.v = prepare.k + tokens * shape.kv_width();
    prepare.kv_stride = shape.kv_width();
    prepare.tokens = tokens;
    prepare.heads = shape.heads, prepare.kv_heads = shape.kv_heads, prepare.head_dim = shape.dim;
    prepare.gated = shape.gated, prepare.v_norm = shape.v_norm, prepare.value_is_key = shape.value_is_key;
    prepare.q_norm = norm_.as<float>(), prepare.k_norm = norm_.as<float>(), prepare.norm_eps = 1e-6f;
    prepare.cos = angles_.as<float>(), prepare.sin = angles_.as<float>(), prepare.rotary_half = shape.dim / 2;
    prepare.sequence = sequence_.data(), prepare.position = position_.data();
    args_.scale = 0.1f;
    args_.window = shape.window;
    args_.sinks = shape.sinks ? norm_.as<float>() : nullptr;
    args_.out = out_.as<float>(), args_.out_stride = shape.heads * shape.dim;
    args_.scratch = scratch_.data();
  }
  int64_t bytes() const { return bytes_; }
  // Of a layer.
  double seconds(bool attention, bool products) {
    const int64_t layers = products ? kMaxLayers : count_;
    const double all = replay_seconds(context_, kRuns, [&] {
      for (int64_t layer = 0; layer < layers; ++layer) {
        if (products) multiply(qkv_layout_, qkv_, layer, words_, rows_);
        if (attention) attend(layer % count_);
        if (products) multiply(out_layout_, output_, layer, packed_, hidden_);
      }
    });
    return all / static_cast<double>(layers);
  }

 private:
  static std::vector<int32_t> sequences(int64_t tokens) {
    std::vector<int32_t> result;
    for (int64_t t = 0; t < tokens; ++t) result.push_back(static_cast<int32_t>(t));
    return result;
  }
  void attend(int64_t layer) {
    args_.prepare.kv = {reinterpret_cast<bf16*>(cache_.data() + layer * bytes_), cache_rows_, ring_};
    cuda::attention_decode(args_, context_.stream.handle());
  }
  // The input of the output product stands packed already: packing is not attention's.
  void multiply(const PackedLayout& layout, const cuda::DeviceBuffer& weights, int64_t layer,
                const cuda::DeviceBuffer& words, const cuda::DeviceBuffer& y) {
    cuda::MatvecArgs args;
    args.tokens = 1;
    args.output_count = 1;
    args.input.words = words.as<uint32_t>();
    args.outputs[0] = {
        {layout, weights.data() + layer * layout.bytes, 1.0f}, nullptr, y.as<float>(), layout.rows, false};
    cuda::matvec(args, context_.stream.handle());
  }

  Context& context_;
  int64_t cache_rows_, ring_, bytes_, count_;
  cuda::DeviceBuffer cache_, rows_, out_, angles_, norm_, scratch_;
  DeviceArray<int32_t> sequence_;
  DeviceArray<int64_t> position_;
  PackedLayout qkv_layout_, out_layout_;
  cuda::DeviceBuffer qkv_, output_, words_, packed_, hidden_;
  cuda::AttentionDecodeArgs args_;
};

void bench(Context& context) {
  const double read = read_rate(context);
  std::printf("read 1 GiB: %.0f GB/s\n%9s %6s | %10s %9s %8s %8s | %s\n", read * 1e-9, "context", "tokens", "us alone",
              "MB", "GB/s", "of floor", "us in a layer");
  for (const int64_t length : {64, 300, 1024, 4096, 32768, 131072}) {
    for (const int64_t tokens : {1, 2, 4, 8}) {
      Layers layers(context, kPlain, length, tokens);
      const double alone = layers.seconds(true, false);
      const auto bytes = static_cast<double>(layers.bytes());
      std::printf("%9lld %6lld | %10.2f %9.2f %8.0f %8.2f |", static_cast<long long>(length),
                  static_cast<long long>(tokens), alone * 1e6, bytes * 1e-6, bytes / alone * 1e-9,
                  alone * read / bytes);
      if (tokens == 1) {
        std::printf(" %.2f", (layers.seconds(true, true) - layers.seconds(false, true)) * 1e6);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

void bench_families(Context& context) {
  const double read = read_rate(context);
  std::printf("%-16s %9s | %10s %9s %8s %8s | %s\n", "", "context", "us alone", "MB", "GB/s", "of floor",
              "us in a layer");
  for (const Shape& shape : kFamilies) {
    for (const int64_t length : {300, 4096, 32768}) {
      Layers layers(context, shape, length, 1);
      const double alone = layers.seconds(true, false);
      const auto bytes = static_cast<double>(layers.bytes());
      std::printf("%-16s %9lld | %10.2f %9.2f %8.0f %8.2f | %.2f\n", shape.name, static_cast<long long>(length),
                  alone * 1e6, bytes * 1e-6, bytes / alone * 1e-9, alone * read / bytes,
                  (layers.seconds(true, true) - layers.seconds(false, true)) * 1e6);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace ft::device_test

// device_bench_attention [families]
int main(int argc, char**) {
  const char* arguments[] = {"device_bench_attention", "--bench"};
  const auto bench = argc > 1 ? ft::device_test::bench_families : ft::device_test::bench;
  return ft::device_test::run_tests(2, const_cast<char**>(arguments), {}, bench);
}
