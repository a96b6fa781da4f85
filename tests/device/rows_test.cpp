// Checked against: the CPU's row kernels, bit for bit, over widths around the lane and block sizes and all kinds of
// values. Rows are a few elements apart, and what lies between stays as it was.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/lists.h"

namespace ft::device_test {
namespace {

using test::Values;

constexpr int64_t kWidths[] = {1,   2,   3,   15,  16,  17,  31,   33,   64,   127,  128,
                               129, 255, 256, 257, 300, 768, 1000, 2048, 4095, 4097, 8200};
constexpr int64_t kTokens[] = {1, 2, 5, 17};
constexpr const char* kNames[] = {"normal", "wide", "tiny", "special"};

std::string name_of(Values kind) { return kNames[static_cast<int>(kind)]; }

struct Case {
  int64_t tokens, cols, stride;
  Values kind;
  std::string what() const { return "tokens " + std::to_string(tokens) + " cols " + std::to_string(cols); }
};

template <class Check>
void for_cases(Check&& check) {
  size_t i = 0;
  for (const int64_t cols : kWidths) {
    for (const Values kind : test::kAllValues) {
      check(Case{kTokens[i % std::size(kTokens)], cols, cols + static_cast<int64_t>(i % 4), kind});
      ++i;
    }
  }
}

HostArray<float> copy_of(const HostArray<float>& from) {
  HostArray<float> result(from.size());
  std::copy_n(from.data(), from.size(), result.data());
  return result;
}

// Three forms: to y and words, to y = x, to words alone.
void check_rmsnorm(Context& context, Random& random, const Case& c) {
  const HostArray<float> x = random_floats(random, c.kind, c.tokens * c.stride);
  const HostArray<float> w = random_floats(random, Values::kNormal, c.cols);
  const float eps = random.below(2) == 0 ? 1e-6f : 1e-5f;
  const int64_t word_count = c.tokens * activation_words(c.cols);
  HostArray<float> y = poisoned<float>(x.size());
  HostArray<float> in_place = copy_of(x);
  HostArray<uint32_t> words(word_count);
  context.cpu.rmsnorm({x.data(), c.stride, y.data(), c.stride, c.tokens, c.cols, w.data(), eps});
  context.cpu.rmsnorm({x.data(), c.stride, in_place.data(), c.stride, c.tokens, c.cols, w.data(), eps});
  context.cpu.pack_activations({y.data(), c.stride, c.tokens, c.cols, words.data()});

  DeviceArray<float> device_x(context, x);
  const DeviceArray<float> device_w(context, w);
  DeviceArray<float> device_y(context, y.size());
  DeviceArray<uint32_t> both(context, word_count), alone(context, word_count);
  cuda::RmsnormPackArgs args{device_x.data(), c.stride,        device_w.data(), eps,        c.tokens,
                             c.cols,          device_y.data(), c.stride,        both.data()};
  cuda::rmsnorm_pack(args, context.stream.handle());
  args.y = nullptr, args.words = alone.data();
  cuda::rmsnorm_pack(args, context.stream.handle());
  args.y = device_x.data(), args.words = nullptr;
  cuda::rmsnorm_pack(args, context.stream.handle());
  const std::string group = "rmsnorm_pack " + name_of(c.kind);
  check_same(context, group, c.what() + " y", device_y, y);
  check_same(context, group, c.what() + " words with y", both, words);
  check_same(context, group, c.what() + " words", alone, words);
  check_same(context, group, c.what() + " in place", device_x, in_place);
}

void check_pack(Context& context, Random& random, const Case& c) {
  HostArray<float> x = random_floats(random, c.kind, c.tokens * c.stride);
  for (int64_t i = 0; i < x.size(); i += 3) {  // halfway cases of the rounding, both parities
    x[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(x[i]) & 0xffff0000u) | 0x8000u);
  }
  HostArray<uint32_t> words(c.tokens * activation_words(c.cols));
  context.cpu.pack_activations({x.data(), c.stride, c.tokens, c.cols, words.data()});
  const DeviceArray<float> device_x(context, x);
  DeviceArray<uint32_t> got(context, words.size());
  cuda::pack_activations({device_x.data(), c.stride, c.tokens, c.cols, got.data()}, context.stream.handle());
  check_same(context, "pack_activations " + name_of(c.kind), c.what(), got, words);
}

// To y and words, to words alone, and in place of the gate.
void check_glu(Context& context, Random& random, const Case& c, const Glu& glu) {
  const int64_t b_stride = c.stride + 1;
  HostArray<float> a = random_floats(random, c.kind, c.tokens * c.stride);
  for (int64_t i = 0; i < a.size(); i += 3) a[i] = static_cast<float>(40.0 * random.normal());  // exp's whole range
  const HostArray<float> b = random_floats(random, c.kind, c.tokens * b_stride);
  HostArray<float> product = poisoned<float>(a.size()), in_place = copy_of(a);
  HostArray<uint32_t> words(c.tokens * activation_words(c.cols));
  for (int64_t t = 0; t < c.tokens; ++t) {
    float *y = product.data() + t * c.stride, *gate = in_place.data() + t * c.stride;
    context.cpu.glu({gate, b.data() + t * b_stride, y, c.cols, glu});
    std::copy_n(y, c.cols, gate);
  }
  context.cpu.pack_activations({product.data(), c.stride, c.tokens, c.cols, words.data()});
  DeviceArray<float> device_a(context, a);
  const DeviceArray<float> device_b(context, b);
  DeviceArray<float> y(context, product.size());
  DeviceArray<uint32_t> both(context, words.size()), alone(context, words.size());
  cuda::GluArgs args{glu,      device_a.data(), device_b.data(), c.stride, b_stride,
                     c.tokens, c.cols,          y.data(),        c.stride, both.data()};
  cuda::glu(args, context.stream.handle());
  args.y = nullptr, args.words = alone.data();
  cuda::glu(args, context.stream.handle());
  args.y = device_a.data(), args.words = nullptr;
  cuda::glu(args, context.stream.handle());
  const std::string group = "glu " + std::to_string(static_cast<int>(glu.kind)) + " " + name_of(c.kind);
  check_same(context, group, c.what() + " y", y, product);
  check_same(context, group, c.what() + " words with y", both, words);
  check_same(context, group, c.what() + " words", alone, words);
  check_same(context, group, c.what() + " in place", device_a, in_place);
}

// With and without a norm and a scale.
void check_add(Context& context, Random& random, const Case& c, bool norms, bool scales) {
  const int64_t x_stride = c.stride + 1;
  const HostArray<float> x = random_floats(random, c.kind, c.tokens * x_stride);
  const HostArray<float> to = random_floats(random, c.kind, c.tokens * c.stride);
  const HostArray<float> w = random_floats(random, Values::kNormal, c.cols);
  HostArray<float> scale(1, -0.37f), normed = copy_of(x), expected = copy_of(to);
  if (norms) {
    context.cpu.rmsnorm({x.data(), x_stride, normed.data(), x_stride, c.tokens, c.cols, w.data(), 1e-6f});
  }
  for (int64_t t = 0; t < c.tokens; ++t) {
    context.cpu.add({expected.data() + t * c.stride, normed.data() + t * x_stride, c.cols, scales ? scale[0] : 1.0f});
  }
  const DeviceArray<float> device_x(context, x), device_w(context, w), device_scale(context, scale);
  DeviceArray<float> device_to(context, to);
  cuda::add({device_x.data(), x_stride, norms ? device_w.data() : nullptr, 1e-6f, device_to.data(), c.stride, c.tokens,
             c.cols, scales ? device_scale.data() : nullptr},
            context.stream.handle());
  const std::string group = std::string(norms ? "add normed " : "add ") + name_of(c.kind);
  check_same(context, group, c.what() + (scales ? " scaled" : ""), device_to, expected);
}

void check_softcap(Context& context, Random& random, const Case& c) {
  HostArray<float> x = random_floats(random, c.kind, c.tokens * c.cols);
  const DeviceArray<float> device(context, x);
  cuda::softcap({device.data(), x.size(), 30.0f}, context.stream.handle());
  context.cpu.softcap({x.data(), x.size(), 30.0f});
  check_same(context, "softcap " + name_of(c.kind), c.what(), device, x);
}

void check_embed_and_take(Context& context, Random& random, const Case& c) {
  constexpr int64_t kRows = 29;
  HostArray<bf16> table(kRows * c.cols);
  for (int64_t i = 0; i < table.size(); ++i) table[i] = to_bf16(test::random_value(random, c.kind));
  const HostArray<float> x = random_floats(random, c.kind, kRows * c.stride);
  HostArray<int32_t> ids(c.tokens);
  for (int64_t t = 0; t < c.tokens; ++t) ids[t] = static_cast<int32_t>(random.below(kRows));
  const int copies = c.kind == Values::kNormal ? 3 : 1;
  const float scale = c.kind == Values::kNormal ? 1.5f : 1.0f;
  const int64_t out_stride = copies * c.cols + c.stride - c.cols;
  HostArray<float> embedded = poisoned<float>(c.tokens * out_stride);
  HostArray<float> taken = poisoned<float>(c.tokens * c.stride);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < c.cols; ++i) {
      const float value = to_float(table[ids[t] * c.cols + i]);
      const float flushed = std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value * scale;
      for (int copy = 0; copy < copies; ++copy) embedded[t * out_stride + copy * c.cols + i] = flushed;
      taken[t * c.stride + i] = x[ids[t] * c.stride + i];
    }
  }
  const DeviceArray<bf16> device_table(context, table);
  const DeviceArray<int32_t> device_ids(context, ids);
  const DeviceArray<float> device_x(context, x);
  DeviceArray<float> out(context, embedded.size()), rows(context, taken.size());
  cuda::embed({device_table.data(), c.cols, device_ids.data(), c.tokens, out.data(), out_stride, scale, copies},
              context.stream.handle());
  cuda::take_rows({device_x.data(), c.stride, device_ids.data(), c.tokens, c.cols, rows.data(), c.stride},
                  context.stream.handle());
  check_same(context, "embed " + name_of(c.kind), c.what(), out, embedded);
  check_same(context, "take_rows " + name_of(c.kind), c.what(), rows, taken);
}

// Some rows on the device, some in pinned memory, trailing slots without an expert; with and without a shared expert,
// that one with and without a gate; added to what is there or not.
void check_merge(Context& context, Random& random, const Case& c, int top_k) {
  const int64_t pairs = c.tokens * top_k;
  const int64_t host_stride = c.stride + 2;
  const HostArray<float> rows = random_floats(random, c.kind, pairs * c.stride);
  const HostArray<float> weights = random_floats(random, c.kind, pairs);
  cuda::PinnedBuffer pinned(pairs * host_stride * 4);
  test::fill(random, c.kind, pinned.as_host<float>(), pairs * host_stride);
  HostArray<int32_t> ids(pairs, -1);
  HostArray<uint8_t> from_host(pairs);
  const bool shares = top_k != 1, gates = top_k == 8, adds = c.tokens % 2 == 0;
  const HostArray<float> shared = random_floats(random, c.kind, c.tokens * host_stride);
  const HostArray<float> gate = random_floats(random, Values::kNormal, c.tokens);
  const HostArray<float> before = random_floats(random, Values::kNormal, c.tokens * c.stride);
  HostArray<float> expected = copy_of(before), merged(c.cols);
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto slots = static_cast<int64_t>(random.below(static_cast<uint64_t>(top_k) + 1));
    std::vector<const float*> y;
    std::vector<float> weight(weights.data() + t * top_k, weights.data() + t * top_k + slots);
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t pair = t * top_k + s;
      ids[pair] = static_cast<int32_t>(random.below(128));
      from_host[pair] = static_cast<uint8_t>(random.below(2) * 255);
      y.push_back(from_host[pair] != 0 ? pinned.as_host<float>() + pair * host_stride : rows.data() + pair * c.stride);
    }
    if (shares) {
      y.push_back(shared.data() + t * host_stride);
      weight.push_back(1.0f);
      if (gates) context.cpu.gate({&weight.back(), gate.data() + t, 1, GateKind::kSigmoid});
    }
    context.cpu.merge({y.data(), weight.data(), static_cast<int64_t>(y.size()), c.cols, merged.data()});
    float* to = expected.data() + t * c.stride;
    if (!adds) std::copy_n(merged.data(), c.cols, to);
    if (adds) context.cpu.add({to, merged.data(), c.cols});
  }
  const DeviceArray<int32_t> device_ids(context, ids);
  const DeviceArray<float> device_weights(context, weights), device_rows(context, rows);
  const DeviceArray<uint8_t> device_from_host(context, from_host);
  const DeviceArray<float> device_shared(context, shared), device_gate(context, gate);
  DeviceArray<float> out(context, before);
  cuda::MergeArgs args;
  args.ids = device_ids.data();
  args.weights = device_weights.data();
  args.tokens = c.tokens;
  args.top_k = top_k;
  args.rows = device_rows.data();
  args.rows_stride = c.stride;
  args.host_rows = pinned.as_device<float>();
  args.host_stride = host_stride;
  args.from_host = device_from_host.data();
  args.cols = c.cols;
  args.out = out.data();
  args.out_stride = c.stride;
  args.add = adds;
  if (shares) args.shared = {device_shared.data(), host_stride, gates ? device_gate.data() : nullptr};
  cuda::merge(args, context.stream.handle());
  check_same(context, "merge " + name_of(c.kind), c.what() + " top_k " + std::to_string(top_k), out, expected);
}

}  // namespace

void test_rows(Context& context) {
  Random random(77);
  for_cases([&](const Case& c) {
    check_rmsnorm(context, random, c);
    check_pack(context, random, c);
    for (const Glu& glu : {Glu{}, {GluKind::kSiluClamped, 3.0f}, {GluKind::kGeluTanh, 0}, {GluKind::kOss, 7.0f}}) {
      check_glu(context, random, c, glu);
    }
    for (const bool norms : {false, true}) {
      for (const bool scales : {false, true}) check_add(context, random, c, norms, scales);
    }
    check_softcap(context, random, c);
    check_embed_and_take(context, random, c);
    for (const int top_k : {1, 8, 11}) check_merge(context, random, c, top_k);
  });
}

}  // namespace ft::device_test
