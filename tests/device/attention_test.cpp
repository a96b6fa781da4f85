// Checked against: the CPU's head_norm_rope and attention kernels, bit for bit. Positions that a token does not see are
// NaN in the cache, so that reading one shows.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/ops.h"
#include "tests/device/lists.h"

namespace ft::device_test {
namespace {

using test::Values;

struct Heads {
  int heads, kv_heads;
  int64_t head_dim;
  int64_t stride() const { return 2 * kv_heads * head_dim; }
  std::string what() const {
    return "heads " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " of " + std::to_string(head_dim);
  }
};

constexpr int64_t kSequences = 3;
constexpr const char* kNames[] = {"normal", "wide", "tiny", "special"};

// Tokens of different sequences and positions; no two write the same place of the cache.
struct Places {
  HostArray<int32_t> sequence;
  HostArray<int64_t> position;
};

void check_prepare(Context& context, const Heads& heads, int64_t rotary_half, bool norms, Values kind, Random& random) {
  constexpr int64_t kPositions = 40;
  constexpr int64_t kTokens = 5;
  const int64_t dim = heads.head_dim;
  const int64_t q_stride = heads.heads * dim + 3, kv_stride = heads.kv_heads * dim + 2;
  HostArray<float> q = random_floats(random, kind, kTokens * q_stride);
  HostArray<float> k = random_floats(random, kind, kTokens * kv_stride);
  const HostArray<float> v = random_floats(random, kind, kTokens * kv_stride);
  const HostArray<float> q_norm = random_floats(random, Values::kNormal, dim);
  const HostArray<float> k_norm = random_floats(random, Values::kNormal, dim);
  const HostArray<float> cos = random_floats(random, kind, kPositions * rotary_half);
  const HostArray<float> sin = random_floats(random, kind, kPositions * rotary_half);
  Places places{HostArray<int32_t>(kTokens), HostArray<int64_t>(kTokens)};
  for (int64_t t = 0; t < kTokens; ++t) {
    places.sequence[t] = static_cast<int32_t>(random.below(kSequences));
    places.position[t] = t * 7 + static_cast<int64_t>(random.below(7));
  }
  const DeviceArray<float> device_k(context, k), device_v(context, v), device_q_norm(context, q_norm),
      device_k_norm(context, k_norm), device_cos(context, cos), device_sin(context, sin);
  const DeviceArray<int32_t> sequence(context, places.sequence);
  const DeviceArray<int64_t> position(context, places.position);
  DeviceArray<float> device_q(context, q);
  DeviceArray<bf16> cache(context, kSequences * kPositions * heads.stride());
  HostArray<bf16> expected = poisoned<bf16>(cache.size());
  const float eps = 1e-6f;
  for (int64_t t = 0; t < kTokens; ++t) {
    const float* c = cos.data() + places.position[t] * rotary_half;
    const float* s = sin.data() + places.position[t] * rotary_half;
    float* q_row = q.data() + t * q_stride;
    float* k_row = k.data() + t * kv_stride;
    context.cpu.head_norm_rope({q_row, heads.heads, dim, norms ? q_norm.data() : nullptr, eps, c, s, rotary_half});
    context.cpu.head_norm_rope({k_row, heads.kv_heads, dim, norms ? k_norm.data() : nullptr, eps, c, s, rotary_half});
    for (int64_t i = 0; i < heads.heads * dim; ++i) q_row[i] = round_to_bf16(q_row[i]);
    bf16* keys = expected.data() + (places.sequence[t] * kPositions + places.position[t]) * heads.stride();
    for (int64_t i = 0; i < heads.kv_heads * dim; ++i) {
      keys[i] = to_bf16(k_row[i]);
      keys[heads.kv_heads * dim + i] = to_bf16(v[t * kv_stride + i]);
    }
  }
  cuda::AttentionPrepareArgs args;
  args.q = device_q.data(), args.q_stride = q_stride;
  args.k = device_k.data(), args.v = device_v.data(), args.kv_stride = kv_stride;
  args.tokens = kTokens;
  args.heads = heads.heads, args.kv_heads = heads.kv_heads, args.head_dim = dim;
  args.q_norm = norms ? device_q_norm.data() : nullptr;
  args.k_norm = norms ? device_k_norm.data() : nullptr;
  args.norm_eps = eps;
  args.cos = device_cos.data(), args.sin = device_sin.data(), args.rotary_half = rotary_half;
  args.sequence = sequence.data(), args.position = position.data();
  args.kv = {cache.data(), kPositions};
  cuda::attention_prepare(args, context.stream.handle());
  const std::string group = std::string("attention_prepare ") + kNames[static_cast<int>(kind)];
  const std::string what = heads.what() + " rotary half " + std::to_string(rotary_half);
  check_same(context, group, what + " q", device_q, q);
  check_same(context, group, what + " cache", cache, expected);
}

struct Span {
  int64_t length, window;
  int64_t begin() const { return window > 0 && length > window ? length - window : 0; }
};

HostArray<bf16> random_cache(const Heads& heads, const Span& span, const Places& places, int64_t positions, Values kind,
                             Random& random) {
  HostArray<bf16> cache(kSequences * positions * heads.stride());
  std::fill_n(cache.data(), cache.size(), to_bf16(NAN));
  for (int64_t t = 0; t < places.position.size(); ++t) {
    const Span seen{places.position[t] + 1, span.window};
    bf16* rows = cache.data() + places.sequence[t] * positions * heads.stride();
    for (int64_t p = seen.begin(); p < seen.length; ++p) {
      for (int64_t i = 0; i < heads.stride(); ++i) {
        // One special key makes the whole head NaN, so most keys stay ordinary.
        const bool key = i < heads.kv_heads * heads.head_dim;
        const bool ordinary = key && (kind == Values::kSpecial ? random.below(2000) != 0 : kind == Values::kWide);
        rows[p * heads.stride() + i] = to_bf16(test::random_value(random, ordinary ? Values::kNormal : kind));
      }
    }
  }
  return cache;
}

// Three tokens, one a sequence: at the span's last position, half of it, and the first one.
void check_attention(Context& context, const Heads& heads, const Span& span, Values kind, Random& random) {
  constexpr int64_t kTokens = kSequences;
  const int64_t dim = heads.head_dim;
  const int64_t positions = span.length + 1;
  const int64_t q_stride = heads.heads * dim + 3, out_stride = heads.heads * dim + 1;
  Places places{HostArray<int32_t>(kTokens), HostArray<int64_t>(kTokens)};
  const int64_t at[kTokens] = {span.length - 1, (span.length - 1) / 2, 0};
  for (int64_t t = 0; t < kTokens; ++t) {
    places.sequence[t] = static_cast<int32_t>((t + 1) % kSequences);
    places.position[t] = at[t];
  }
  const HostArray<bf16> cache = random_cache(heads, span, places, positions, kind, random);
  HostArray<float> q = random_floats(random, kind == Values::kSpecial ? Values::kNormal : kind, kTokens * q_stride);
  if (kind == Values::kWide) q = random_floats(random, Values::kNormal, kTokens * q_stride);
  for (int64_t i = 0; i < q.size(); ++i) q[i] = round_to_bf16(q[i]);
  const float scale = 0.3f;
  HostArray<float> expected = poisoned<float>(kTokens * out_stride);
  for (int64_t t = 0; t < kTokens; ++t) {
    const Span seen{places.position[t] + 1, span.window};
    const int group = heads.heads / heads.kv_heads;
    for (int kv = 0; kv < heads.kv_heads; ++kv) {
      const bf16* keys = cache.data() + places.sequence[t] * positions * heads.stride() + kv * dim;
      context.cpu.attention({q.data() + t * q_stride + kv * group * dim, keys, keys + heads.kv_heads * dim,
                             heads.stride(), seen.begin(), seen.length, dim, scale,
                             expected.data() + t * out_stride + kv * group * dim, group});
    }
  }
  const DeviceArray<float> device_q(context, q);
  const DeviceArray<bf16> device_cache(context, cache);
  const DeviceArray<int32_t> sequence(context, places.sequence);
  const DeviceArray<int64_t> position(context, places.position);
  DeviceArray<float> out(context, expected.size());
  cuda::AttentionArgs args;
  args.q = device_q.data(), args.q_stride = q_stride;
  args.tokens = kTokens;
  args.heads = heads.heads, args.kv_heads = heads.kv_heads, args.head_dim = dim;
  args.scale = scale;
  args.window = span.window;
  args.sequence = sequence.data(), args.position = position.data();
  args.kv = {const_cast<bf16*>(device_cache.data()), positions};
  args.out = out.data(), args.out_stride = out_stride;
  cuda::attention(args, context.stream.handle());
  check_same(context, std::string("attention ") + kNames[static_cast<int>(kind)],
             heads.what() + " length " + std::to_string(span.length) + " window " + std::to_string(span.window), out,
             expected);
}

// ---- a decode step

struct Step {
  std::vector<int64_t> lengths;  // of each token's context, its own position included
  int64_t window = 0;
  int64_t rotary_half = 0;
  bool norms = true;
  Values kind = Values::kNormal;
};

std::string what(const Heads& heads, const Step& step) {
  std::string text = heads.what() + " window " + std::to_string(step.window) + " lengths";
  for (const int64_t length : step.lengths) text += " " + std::to_string(length);
  return text;
}

// Values of a kind, drawn once and then taken in turn: long contexts would take long to draw.
class Pool {
 public:
  Pool(Random& random, Values kind) {
    for (bf16& x : values_) x = to_bf16(test::random_value(random, kind));
  }
  bf16 next() {
    if (++at_ == std::size(values_)) at_ = 0;
    return values_[at_];
  }

 private:
  bf16 values_[99991];  // prime: rows of a cache do not repeat
  size_t at_ = 0;
};

// What the step reads, on the host, and what it must leave there.
struct StepData {
  StepData(const Heads& heads, const Step& step, Random& random)
      : tokens(static_cast<int64_t>(step.lengths.size())),
        positions(*std::max_element(step.lengths.begin(), step.lengths.end()) + 2),
        q_stride(heads.heads * heads.head_dim + 3),
        kv_stride(heads.kv_heads * heads.head_dim + 2),
        out_stride(heads.heads * heads.head_dim + 1),
        q(random_floats(random, step.kind == Values::kWide ? Values::kNormal : step.kind, tokens * q_stride)),
        k(random_floats(random, step.kind == Values::kWide ? Values::kNormal : step.kind, tokens * kv_stride)),
        v(random_floats(random, step.kind, tokens * kv_stride)),
        q_norm(random_floats(random, Values::kNormal, heads.head_dim)),
        k_norm(random_floats(random, Values::kNormal, heads.head_dim)),
        cos(random_floats(random, Values::kNormal, positions * step.rotary_half)),
        sin(random_floats(random, Values::kNormal, positions * step.rotary_half)),
        sequence(tokens),
        position(tokens),
        cache(tokens * positions * heads.stride()),
        expected_cache(cache.size()),
        expected(poisoned<float>(tokens * out_stride)) {
    std::fill_n(cache.data(), cache.size(), to_bf16(NAN));
    Pool keys(random, step.kind == Values::kWide ? Values::kNormal : step.kind), values(random, step.kind);
    for (int64_t t = 0; t < tokens; ++t) {
      sequence[t] = static_cast<int32_t>((t + 1) % tokens);
      position[t] = step.lengths[static_cast<size_t>(t)] - 1;
      const Span seen{position[t] + 1, step.window};
      for (int64_t p = seen.begin(); p < position[t]; ++p) {
        bf16* row = cache.data() + (sequence[t] * positions + p) * heads.stride();
        for (int64_t i = 0; i < heads.stride(); ++i) row[i] = i < heads.stride() / 2 ? keys.next() : values.next();
      }
    }
    std::copy_n(cache.data(), cache.size(), expected_cache.data());
  }

  int64_t tokens, positions, q_stride, kv_stride, out_stride;
  HostArray<float> q, k, v, q_norm, k_norm, cos, sin;
  HostArray<int32_t> sequence;
  HostArray<int64_t> position;
  HostArray<bf16> cache, expected_cache;
  HostArray<float> expected;
};

// By the CPU kernels, into expected and expected_cache.
void decode_on_cpu(Context& context, const Heads& heads, const Step& step, float scale, float eps, StepData& data) {
  const int64_t dim = heads.head_dim;
  const int group = heads.heads / heads.kv_heads;
  for (int64_t t = 0; t < data.tokens; ++t) {
    const float* c = data.cos.data() + data.position[t] * step.rotary_half;
    const float* s = data.sin.data() + data.position[t] * step.rotary_half;
    std::vector<float> q(data.q.data() + t * data.q_stride, data.q.data() + t * data.q_stride + heads.heads * dim);
    std::vector<float> k(data.k.data() + t * data.kv_stride, data.k.data() + t * data.kv_stride + heads.kv_heads * dim);
    const float* q_norm = step.norms ? data.q_norm.data() : nullptr;
    const float* k_norm = step.norms ? data.k_norm.data() : nullptr;
    context.cpu.head_norm_rope({q.data(), heads.heads, dim, q_norm, eps, c, s, step.rotary_half});
    context.cpu.head_norm_rope({k.data(), heads.kv_heads, dim, k_norm, eps, c, s, step.rotary_half});
    for (float& x : q) x = round_to_bf16(x);
    bf16* sequence = data.expected_cache.data() + data.sequence[t] * data.positions * heads.stride();
    bf16* row = sequence + data.position[t] * heads.stride();
    for (int64_t i = 0; i < heads.kv_heads * dim; ++i) {
      row[i] = to_bf16(k[static_cast<size_t>(i)]);
      row[heads.kv_heads * dim + i] = to_bf16(data.v[t * data.kv_stride + i]);
    }
    const Span seen{data.position[t] + 1, step.window};
    for (int kv = 0; kv < heads.kv_heads; ++kv) {
      const bf16* keys = sequence + kv * dim;
      context.cpu.attention({q.data() + kv * group * dim, keys, keys + heads.kv_heads * dim, heads.stride(),
                             seen.begin(), seen.length, dim, scale,
                             data.expected.data() + t * data.out_stride + kv * group * dim, group});
    }
  }
}

void check_decode(Context& context, const Heads& heads, const Step& step, Random& random) {
  const float scale = 0.3f, eps = 1e-6f;
  StepData data(heads, step, random);
  decode_on_cpu(context, heads, step, scale, eps, data);
  DeviceArray<float> q(context, data.q);
  const DeviceArray<float> k(context, data.k), v(context, data.v), q_norm(context, data.q_norm),
      k_norm(context, data.k_norm), cos(context, data.cos), sin(context, data.sin);
  const DeviceArray<int32_t> sequence(context, data.sequence);
  const DeviceArray<int64_t> position(context, data.position);
  const DeviceArray<bf16> cache(context, data.cache);
  const DeviceArray<float> out(context, data.expected.size());
  DeviceArray<std::byte> scratch(context, cuda::attention_decode_scratch_bytes(data.tokens, heads.heads, heads.kv_heads,
                                                                               heads.head_dim, data.positions));
  cuda::fill_zero(scratch.data(), scratch.size(), context.stream.handle());
  cuda::AttentionDecodeArgs args;
  cuda::AttentionPrepareArgs& prepare = args.prepare;
  prepare.q = q.data(), prepare.q_stride = data.q_stride;
  prepare.k = k.data(), prepare.v = v.data(), prepare.kv_stride = data.kv_stride;
  prepare.tokens = data.tokens;
  prepare.heads = heads.heads, prepare.kv_heads = heads.kv_heads, prepare.head_dim = heads.head_dim;
  prepare.q_norm = step.norms ? q_norm.data() : nullptr;
  prepare.k_norm = step.norms ? k_norm.data() : nullptr;
  prepare.norm_eps = eps;
  prepare.cos = cos.data(), prepare.sin = sin.data(), prepare.rotary_half = step.rotary_half;
  prepare.sequence = sequence.data(), prepare.position = position.data();
  prepare.kv = {cache.data(), data.positions};
  args.scale = scale;
  args.window = step.window;
  args.out = out.data(), args.out_stride = data.out_stride;
  args.scratch = scratch.data();
  const std::string group = std::string("attention_decode ") + kNames[static_cast<int>(step.kind)];
  for (int run = 0; run < 2; ++run) {  // the second one finds what the first left in scratch
    q.write(data.q);
    cuda::attention_decode(args, context.stream.handle());
    check_same(context, group, what(heads, step) + " run " + std::to_string(run), out, data.expected);
  }
  check_same(context, group, what(heads, step) + " cache", cache, data.expected_cache);
  context.report.check(group, scratch.intact() ? "" : what(heads, step) + ": wrote outside scratch");
}

void test_decode(Context& context) {
  Random random(1147);
  const int64_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 1023, 1024, 1025, 1089, 2113};
  for (const Heads& heads : {Heads{8, 1, 128}, Heads{4, 2, 64}, Heads{4, 1, 256}}) {
    for (const int64_t length : lengths) {
      for (const int64_t window : {0, 1, 63, 64, 65, 100, 1000}) {
        if (window >= length && window > 1) continue;
        check_decode(context, heads, {{length}, window, heads.head_dim / 2}, random);
      }
      for (const Values kind : {Values::kWide, Values::kTiny}) {
        check_decode(context, heads, {{length}, 0, heads.head_dim / 4, true, kind}, random);
      }
    }
    check_decode(context, heads, {{200}, 0, 0, false}, random);
    check_decode(context, heads, {{200}, 0, heads.head_dim / 2, true, Values::kSpecial}, random);
  }
  for (const int64_t dim : {64, 128, 256, 80, 33}) {
    for (int group = 1; group <= 9; ++group) {
      check_decode(context, {2 * group, 2, dim}, {{300, 64, 1}, 0, dim / 2}, random);
    }
    check_decode(context, {19, 1, dim}, {{1500, 700}, 0, dim / 2}, random);
    check_decode(context, {19, 1, dim}, {{1500, 700}, 130, dim / 4}, random);
  }
  // Units of every size: these are taken as the splits in all, counted for each key/value head, grow.
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t length : {600, 1100, 2200, 4500, 9000}) {
      check_decode(context, {8, 4, dim}, {{length, length - 70, length / 2, 1, 64}, 0, dim / 2}, random);
      check_decode(context, {32, 4, dim}, {{length, length - 300}, length / 3, dim / 2}, random);
    }
  }
  check_decode(context, {8, 4, 128}, {{33333}, 0, 64}, random);
  check_decode(context, {32, 4, 128}, {{20000}, 0, 64}, random);
  Step full;
  full.rotary_half = 32;
  for (int t = 0; t < cuda::kMaxDecodeTokens; ++t) full.lengths.push_back(1 + static_cast<int64_t>(random.below(400)));
  check_decode(context, {4, 2, 64}, full, random);
  check_decode(context, {4, 2, 128}, full, random);
}

}  // namespace

void test_attention(Context& context) {
  test_decode(context);
  Random random(4711);
  for (const int64_t dim : {1, 2, 7, 16, 31, 33, 64, 80, 127, 128, 130, 192, 256, 257, 511, 512}) {
    for (const int64_t half : {int64_t{0}, dim / 4, dim / 2}) {
      for (const Values kind : test::kAllValues) {
        check_prepare(context, {6, 2, dim}, half, random.below(4) != 0, kind, random);
      }
    }
    for (const int64_t length : {1, 63, 64, 65, 200, 1100}) {
      check_attention(context, {4, 2, dim}, {length, 0}, Values::kNormal, random);
    }
  }
  for (const Heads& heads : {Heads{1, 1, 64}, Heads{8, 1, 128}, Heads{19, 1, 80}, Heads{6, 3, 96}, Heads{4, 4, 256}}) {
    for (const int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 1000, 1025, 2200}) {
      for (const int64_t window : {0, 1, 16, 63, 64, 65, 100}) {
        for (const Values kind : test::kAllValues) {
          if (length >= 1000 && kind != Values::kNormal) continue;
          check_attention(context, heads, {length, window}, kind, random);
        }
      }
    }
  }
}

}  // namespace ft::device_test
