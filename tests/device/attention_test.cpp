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

struct Options {
  bool gated = false, v_norm = false, value_is_key = false, sinks = false;
  int64_t ring = 0;  // rows of a sequence; 0: a row for every position
  int64_t query_width(const Heads& heads) const { return heads.heads * heads.head_dim * (gated ? 2 : 1); }
  int64_t row(int64_t position) const { return ring == 0 ? position : position % ring; }
  std::string what() const {
    return std::string(gated ? " gated" : "") + (v_norm ? " v_norm" : "") + (value_is_key ? " value_is_key" : "") +
           (sinks ? " sinks" : "") + (ring > 0 ? " ring " + std::to_string(ring) : "");
  }
};

constexpr int64_t kSequences = 3;
constexpr const char* kNames[] = {"normal", "wide", "tiny", "special"};

// Tokens of different sequences and positions; no two write the same place of the cache.
struct Places {
  HostArray<int32_t> sequence;
  HostArray<int64_t> position;
};

// What the cache gets as a head's values, (head_dim).
std::vector<float> values_of(Context& context, const Heads& heads, const Options& options, float eps, const float* key,
                             const float* value) {
  const float* from = options.value_is_key ? key : value;
  std::vector<float> row(from, from + heads.head_dim);
  const std::vector<float> ones(row.size(), 1.0f);
  if (options.v_norm) {
    context.cpu.rmsnorm({row.data(), heads.head_dim, row.data(), heads.head_dim, 1, heads.head_dim, ones.data(), eps});
  }
  return row;
}

void apply_gates(Context& context, const Heads& heads, const float* q_row, float* out) {
  const int64_t dim = heads.head_dim;
  for (int head = 0; head < heads.heads; ++head) {
    context.cpu.gate({out + head * dim, q_row + (2 * head + 1) * dim, dim, GateKind::kSigmoid});
  }
}

void check_prepare(Context& context, const Heads& heads, int64_t rotary_half, bool norms, const Options& options,
                   Values kind, Random& random) {
  constexpr int64_t kPositions = 40;
  constexpr int64_t kTokens = 5;
  const int64_t dim = heads.head_dim;
  const int64_t q_stride = options.query_width(heads) + 3, kv_stride = heads.kv_heads * dim + 2;
  const int64_t q_head = options.gated ? 2 * dim : dim;
  const int64_t cache_rows = options.ring > 0 ? options.ring : kPositions;
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
  DeviceArray<bf16> cache(context, kSequences * cache_rows * heads.stride());
  HostArray<bf16> expected = poisoned<bf16>(cache.size());
  const float eps = 1e-6f;
  for (int64_t t = 0; t < kTokens; ++t) {
    bf16* keys = expected.data() + (places.sequence[t] * cache_rows + options.row(places.position[t])) * heads.stride();
    for (int head = 0; head < heads.kv_heads; ++head) {
      const int64_t at = t * kv_stride + head * dim;
      const std::vector<float> row = values_of(context, heads, options, eps, k.data() + at, v.data() + at);
      for (int64_t i = 0; i < dim; ++i) keys[(heads.kv_heads + head) * dim + i] = to_bf16(row[static_cast<size_t>(i)]);
    }
    const float* c = cos.data() + places.position[t] * rotary_half;
    const float* s = sin.data() + places.position[t] * rotary_half;
    float* q_row = q.data() + t * q_stride;
    float* k_row = k.data() + t * kv_stride;
    for (int head = 0; head < heads.heads; ++head) {
      float* own = q_row + head * q_head;
      context.cpu.head_norm_rope({own, 1, dim, norms ? q_norm.data() : nullptr, eps, c, s, rotary_half});
      for (int64_t i = 0; i < dim; ++i) own[i] = round_to_bf16(own[i]);
    }
    context.cpu.head_norm_rope({k_row, heads.kv_heads, dim, norms ? k_norm.data() : nullptr, eps, c, s, rotary_half});
    for (int64_t i = 0; i < heads.kv_heads * dim; ++i) keys[i] = to_bf16(k_row[i]);
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
  args.gated = options.gated, args.v_norm = options.v_norm, args.value_is_key = options.value_is_key;
  args.kv = {cache.data(), cache_rows, options.ring};
  cuda::attention_prepare(args, context.stream.handle());
  const std::string group = std::string("attention_prepare ") + kNames[static_cast<int>(kind)];
  const std::string what = heads.what() + " rotary half " + std::to_string(rotary_half) + options.what();
  check_same(context, group, what + " q", device_q, q);
  check_same(context, group, what + " cache", cache, expected);
}

struct Span {
  int64_t length, window;
  int64_t begin() const { return window > 0 && length > window ? length - window : 0; }
};

HostArray<bf16> random_cache(const Heads& heads, const Span& span, const Places& places, int64_t cache_rows,
                             const Options& options, Values kind, Random& random) {
  HostArray<bf16> cache(kSequences * cache_rows * heads.stride());
  std::fill_n(cache.data(), cache.size(), to_bf16(NAN));
  for (int64_t t = 0; t < places.position.size(); ++t) {
    const Span seen{places.position[t] + 1, span.window};
    bf16* rows = cache.data() + places.sequence[t] * cache_rows * heads.stride();
    for (int64_t p = seen.begin(); p < seen.length; ++p) {
      for (int64_t i = 0; i < heads.stride(); ++i) {
        // One special key makes the whole head NaN, so most keys stay ordinary.
        const bool key = i < heads.kv_heads * heads.head_dim;
        const bool ordinary = key && (kind == Values::kSpecial ? random.below(2000) != 0 : kind == Values::kWide);
        rows[options.row(p) * heads.stride() + i] =
            to_bf16(test::random_value(random, ordinary ? Values::kNormal : kind));
      }
    }
  }
  return cache;
}

// Three tokens, one a sequence: at the span's last position, half of it, and the first one.
void check_attention(Context& context, const Heads& heads, const Span& span, const Options& options, Values kind,
                     Random& random) {
  constexpr int64_t kTokens = kSequences;
  const int64_t dim = heads.head_dim;
  const int64_t positions = options.ring > 0 ? options.ring : span.length + 1;
  const int64_t q_stride = options.query_width(heads) + 3, q_head = options.gated ? 2 * dim : dim,
                out_stride = heads.heads * dim + 1;
  Places places{HostArray<int32_t>(kTokens), HostArray<int64_t>(kTokens)};
  const int64_t at[kTokens] = {span.length - 1, (span.length - 1) / 2, 0};
  for (int64_t t = 0; t < kTokens; ++t) {
    places.sequence[t] = static_cast<int32_t>((t + 1) % kSequences);
    places.position[t] = at[t];
  }
  const HostArray<bf16> cache = random_cache(heads, span, places, positions, options, kind, random);
  const HostArray<float> sinks = random_floats(random, Values::kNormal, heads.heads);
  HostArray<float> q = random_floats(random, kind == Values::kSpecial ? Values::kNormal : kind, kTokens * q_stride);
  if (kind == Values::kWide) q = random_floats(random, Values::kNormal, kTokens * q_stride);
  for (int64_t i = 0; i < q.size(); ++i) q[i] = round_to_bf16(q[i]);
  const float scale = 0.3f;
  HostArray<float> expected = poisoned<float>(kTokens * out_stride);
  for (int64_t t = 0; t < kTokens; ++t) {
    const Span seen{places.position[t] + 1, span.window};
    const int group = heads.heads / heads.kv_heads;
    for (int head = 0; head < heads.heads; ++head) {
      const bf16* keys = cache.data() + places.sequence[t] * positions * heads.stride() + head / group * dim;
      context.cpu.attention({q.data() + t * q_stride + head * q_head, keys, keys + heads.kv_heads * dim, heads.stride(),
                             seen.begin(), seen.length, dim, scale, expected.data() + t * out_stride + head * dim, 1,
                             options.sinks ? sinks.data() + head : nullptr, options.ring});
    }
    if (options.gated) apply_gates(context, heads, q.data() + t * q_stride, expected.data() + t * out_stride);
  }
  const DeviceArray<float> device_q(context, q), device_sinks(context, sinks);
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
  args.kv = {const_cast<bf16*>(device_cache.data()), positions, options.ring};
  args.gated = options.gated;
  args.sinks = options.sinks ? device_sinks.data() : nullptr;
  args.out = out.data(), args.out_stride = out_stride;
  cuda::attention(args, context.stream.handle());
  check_same(context, std::string("attention ") + kNames[static_cast<int>(kind)],
             heads.what() + " length " + std::to_string(span.length) + " window " + std::to_string(span.window) +
                 options.what(),
             out, expected);
}

// ---- a decode step

struct Step {
  std::vector<int64_t> lengths;  // of each token's context, its own position included
  int64_t window = 0;
  int64_t rotary_half = 0;
  bool norms = true;
  Values kind = Values::kNormal;
  Options options = {};
};

std::string what(const Heads& heads, const Step& step) {
  std::string text = heads.what() + " window " + std::to_string(step.window) + step.options.what() + " lengths";
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
        cache_rows(step.options.ring > 0 ? step.options.ring : positions),
        q_stride(step.options.query_width(heads) + 3),
        kv_stride(heads.kv_heads * heads.head_dim + 2),
        out_stride(heads.heads * heads.head_dim + 1),
        q(random_floats(random, step.kind == Values::kWide ? Values::kNormal : step.kind, tokens * q_stride)),
        k(random_floats(random, step.kind == Values::kWide ? Values::kNormal : step.kind, tokens * kv_stride)),
        v(random_floats(random, step.kind, tokens * kv_stride)),
        q_norm(random_floats(random, Values::kNormal, heads.head_dim)),
        k_norm(random_floats(random, Values::kNormal, heads.head_dim)),
        sinks(random_floats(random, Values::kNormal, heads.heads)),
        cos(random_floats(random, Values::kNormal, positions * step.rotary_half)),
        sin(random_floats(random, Values::kNormal, positions * step.rotary_half)),
        sequence(tokens),
        position(tokens),
        cache(tokens * cache_rows * heads.stride()),
        expected_cache(cache.size()),
        expected(poisoned<float>(tokens * out_stride)) {
    std::fill_n(cache.data(), cache.size(), to_bf16(NAN));
    Pool keys(random, step.kind == Values::kWide ? Values::kNormal : step.kind), values(random, step.kind);
    for (int64_t t = 0; t < tokens; ++t) {
      sequence[t] = static_cast<int32_t>((t + 1) % tokens);
      position[t] = step.lengths[static_cast<size_t>(t)] - 1;
      const Span seen{position[t] + 1, step.window};
      for (int64_t p = seen.begin(); p < position[t]; ++p) {
        bf16* row = cache.data() + (sequence[t] * cache_rows + step.options.row(p)) * heads.stride();
        for (int64_t i = 0; i < heads.stride(); ++i) row[i] = i < heads.stride() / 2 ? keys.next() : values.next();
      }
    }
    std::copy_n(cache.data(), cache.size(), expected_cache.data());
  }

  int64_t tokens, positions, cache_rows, q_stride, kv_stride, out_stride;
  HostArray<float> q, k, v, q_norm, k_norm, sinks, cos, sin;
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
    const int64_t q_head = step.options.gated ? 2 * dim : dim;
    const float* q_row = data.q.data() + t * data.q_stride;
    std::vector<float> q,
        k(data.k.data() + t * data.kv_stride, data.k.data() + t * data.kv_stride + heads.kv_heads * dim);
    for (int head = 0; head < heads.heads; ++head)
      q.insert(q.end(), q_row + head * q_head, q_row + head * q_head + dim);
    bf16* sequence = data.expected_cache.data() + data.sequence[t] * data.cache_rows * heads.stride();
    bf16* row = sequence + step.options.row(data.position[t]) * heads.stride();
    for (int head = 0; head < heads.kv_heads; ++head) {
      const std::vector<float> values = values_of(context, heads, step.options, eps, k.data() + head * dim,
                                                  data.v.data() + t * data.kv_stride + head * dim);
      for (int64_t i = 0; i < dim; ++i) {
        row[(heads.kv_heads + head) * dim + i] = to_bf16(values[static_cast<size_t>(i)]);
      }
    }
    const float* q_norm = step.norms ? data.q_norm.data() : nullptr;
    const float* k_norm = step.norms ? data.k_norm.data() : nullptr;
    context.cpu.head_norm_rope({q.data(), heads.heads, dim, q_norm, eps, c, s, step.rotary_half});
    context.cpu.head_norm_rope({k.data(), heads.kv_heads, dim, k_norm, eps, c, s, step.rotary_half});
    for (float& x : q) x = round_to_bf16(x);
    for (int64_t i = 0; i < heads.kv_heads * dim; ++i) row[i] = to_bf16(k[static_cast<size_t>(i)]);
    const Span seen{data.position[t] + 1, step.window};
    float* out = data.expected.data() + t * data.out_stride;
    for (int kv = 0; kv < heads.kv_heads; ++kv) {
      const bf16* keys = sequence + kv * dim;
      context.cpu.attention({q.data() + kv * group * dim, keys, keys + heads.kv_heads * dim, heads.stride(),
                             seen.begin(), seen.length, dim, scale, out + kv * group * dim, group,
                             step.options.sinks ? data.sinks.data() + kv * group : nullptr, step.options.ring});
    }
    if (step.options.gated) apply_gates(context, heads, q_row, out);
  }
}

void check_decode(Context& context, const Heads& heads, const Step& step, Random& random) {
  const float scale = 0.3f, eps = 1e-6f;
  StepData data(heads, step, random);
  decode_on_cpu(context, heads, step, scale, eps, data);
  DeviceArray<float> q(context, data.q);
  const DeviceArray<float> k(context, data.k), v(context, data.v), q_norm(context, data.q_norm),
      k_norm(context, data.k_norm), cos(context, data.cos), sin(context, data.sin), sinks(context, data.sinks);
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
  prepare.gated = step.options.gated, prepare.v_norm = step.options.v_norm;
  prepare.value_is_key = step.options.value_is_key;
  prepare.kv = {cache.data(), data.cache_rows, step.options.ring};
  args.sinks = step.options.sinks ? sinks.data() : nullptr;
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

constexpr Options kOptions[] = {{.gated = true}, {.v_norm = true},         {.value_is_key = true},
                                {.sinks = true}, {true, true, true, true}, {.v_norm = true, .value_is_key = true}};

// Every option at contexts of one split, of several units and with windows; rings that have gone round many times.
void test_decode_options(Context& context) {
  Random random(3307);
  for (const Heads& heads : {Heads{16, 2, 64}, Heads{8, 1, 128}, Heads{16, 2, 256}, Heads{8, 4, 256}, Heads{4, 2, 512},
                             Heads{6, 3, 16}, Heads{5, 1, 64}}) {
    for (const Options& options : kOptions) {
      for (const int64_t length : {1, 65, 1025, 2200}) {
        check_decode(context, heads, {{length, 70}, 0, heads.head_dim / 4, true, Values::kNormal, options}, random);
      }
      check_decode(context, heads, {{1500, 3}, 128, heads.head_dim / 2, false, Values::kNormal, options}, random);
      check_decode(context, heads, {{200}, 0, heads.head_dim / 2, true, Values::kSpecial, options}, random);
      check_decode(context, heads, {{200}, 0, heads.head_dim / 2, true, Values::kTiny, options}, random);
    }
    for (const int64_t window : {1, 64, 100, 1000}) {
      for (const int64_t more : {0, 64}) {
        Options options;
        options.ring = (window + 64 + 63) / 64 * 64 + more;
        options.sinks = more == 0;
        for (const int64_t length : {int64_t{1}, window, options.ring, options.ring + 1, options.ring + 63,
                                     2 * options.ring + 17, 7 * options.ring - 1}) {
          check_decode(context, heads, {{length, 40}, window, heads.head_dim / 2, true, Values::kNormal, options},
                       random);
        }
      }
    }
  }
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

void test_attention(Context& context) { test_decode(context); }

void test_attention_options(Context& context) { test_decode_options(context); }

void test_attention_parts(Context& context) {
  Random random(4711);
  for (const int64_t dim : {1, 2, 7, 16, 31, 33, 64, 80, 127, 128, 130, 192, 256, 257, 511, 512}) {
    for (const int64_t half : {int64_t{0}, dim / 4, dim / 2}) {
      for (const Values kind : test::kAllValues) {
        check_prepare(context, {6, 2, dim}, half, random.below(4) != 0, {}, kind, random);
        Options options{random.below(2) == 0, random.below(2) == 0, random.below(2) == 0};
        if (random.below(2) == 0) options.ring = 64;
        check_prepare(context, {6, 2, dim}, half, random.below(4) != 0, options, kind, random);
      }
    }
    for (const int64_t length : {1, 63, 64, 65, 200, 1100}) {
      check_attention(context, {4, 2, dim}, {length, 0}, {}, Values::kNormal, random);
      check_attention(context, {4, 2, dim}, {length, 0}, {.gated = true, .sinks = true}, Values::kNormal, random);
      check_attention(context, {4, 2, dim}, {length, 100}, {.sinks = true, .ring = 192}, Values::kNormal, random);
    }
  }
  for (const Heads& heads : {Heads{1, 1, 64}, Heads{8, 1, 128}, Heads{19, 1, 80}, Heads{6, 3, 96}, Heads{4, 4, 256}}) {
    for (const int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 1000, 1025, 2200}) {
      for (const int64_t window : {0, 1, 16, 63, 64, 65, 100}) {
        for (const Values kind : test::kAllValues) {
          if (length >= 1000 && kind != Values::kNormal) continue;
          check_attention(context, heads, {length, window}, {}, kind, random);
        }
      }
    }
  }
}

}  // namespace ft::device_test
