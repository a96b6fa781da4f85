// device_bench_attention: times of a decode step's attention, 32 query heads of 4 key/value heads of 128 dimensions,
// over contexts and batches, as bytes of keys and values a second. Each launch of a captured graph has a layer of its
// own, in turn from more than twice the L2 cache; next to them a copy on the device in the same run (its bytes are read
// and written, so it counts twice).
#include <algorithm>
#include <cstdio>
#include <functional>

#include "kernels/cuda/ops.h"
#include "tests/device/harness.h"

namespace ft::device_test {
namespace {

constexpr int64_t kColdBytes = int64_t{256} << 20;
constexpr int64_t kMaxLayers = 256;  // launches in a graph
constexpr int kRuns = 8;
constexpr int kHeads = 32, kKvHeads = 4;
constexpr int64_t kDim = 128;

double copy_rate(Context& context) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const cuda::DeviceBuffer from(kBytes), to(kBytes);
  const double seconds = replay_seconds(
      context, kRuns, [&] { cuda::copy_on_device(to.data(), from.data(), kBytes, context.stream.handle()); });
  return 2.0 * static_cast<double>(kBytes) / seconds;
}

void bench_decode(Context& context, int64_t length, int64_t tokens, double copy) {
  const int64_t stride = 2 * kKvHeads * kDim;
  const int64_t layer_bytes = tokens * length * stride * static_cast<int64_t>(sizeof(bf16));
  const int64_t layers = std::clamp<int64_t>(kColdBytes / layer_bytes, 2, kMaxLayers);
  const cuda::DeviceBuffer cache(layers * layer_bytes), q(tokens * kHeads * kDim * 4), kv(tokens * kKvHeads * kDim * 4),
      out(tokens * kHeads * kDim * 4), angles(length * kDim / 2 * 4), norm(kDim * 4),
      scratch(cuda::attention_decode_scratch_bytes(tokens, kHeads, kKvHeads, kDim, length));
  for (const cuda::DeviceBuffer* buffer : {&cache, &q, &kv, &out, &angles, &norm, &scratch}) {
    cuda::fill_zero(buffer->data(), buffer->bytes(), context.stream.handle());
  }
  std::vector<int32_t> sequences;
  for (int64_t t = 0; t < tokens; ++t) sequences.push_back(static_cast<int32_t>(t));
  const DeviceArray<int32_t> sequence(context, sequences);
  const DeviceArray<int64_t> position(context, std::vector<int64_t>(static_cast<size_t>(tokens), length - 1));
  cuda::AttentionDecodeArgs args;
  cuda::AttentionPrepareArgs& prepare = args.prepare;
  prepare.q = q.as<float>(), prepare.q_stride = kHeads * kDim;
  prepare.k = kv.as<float>(), prepare.v = kv.as<float>(), prepare.kv_stride = kKvHeads * kDim;
  prepare.tokens = tokens;
  prepare.heads = kHeads, prepare.kv_heads = kKvHeads, prepare.head_dim = kDim;
  prepare.q_norm = norm.as<float>(), prepare.k_norm = norm.as<float>(), prepare.norm_eps = 1e-6f;
  prepare.cos = angles.as<float>(), prepare.sin = angles.as<float>(), prepare.rotary_half = kDim / 2;
  prepare.sequence = sequence.data(), prepare.position = position.data();
  args.scale = 0.1f;
  args.out = out.as<float>(), args.out_stride = kHeads * kDim;
  args.scratch = scratch.data();
  const double all = replay_seconds(context, kRuns, [&] {
    for (int64_t layer = 0; layer < layers; ++layer) {
      prepare.kv = {reinterpret_cast<bf16*>(cache.data() + layer * layer_bytes), length};
      cuda::attention_decode(args, context.stream.handle());
    }
  });
  const double seconds = all / static_cast<double>(layers);
  const double rate = static_cast<double>(layer_bytes) / seconds;
  std::printf("context %6lld tokens %lld  %9.2f us a layer %9.2f MB %7.0f GB/s  %.2f of copy\n",
              static_cast<long long>(length), static_cast<long long>(tokens), seconds * 1e6,
              static_cast<double>(layer_bytes) * 1e-6, rate * 1e-9, rate / copy);
  std::fflush(stdout);
}

void bench(Context& context) {
  const double copy = copy_rate(context);
  std::printf("copy on the device, 1 GiB: %.0f GB/s read and written\n", copy * 1e-9);
  for (const int64_t length : {128, 1024, 4096, 32768, 131072}) {
    for (const int64_t tokens : {1, 4, 8}) bench_decode(context, length, tokens, copy);
  }
}

}  // namespace
}  // namespace ft::device_test

int main() {
  const char* arguments[] = {"device_bench_attention", "--bench"};
  return ft::device_test::run_tests(2, const_cast<char**>(arguments), {}, ft::device_test::bench);
}
