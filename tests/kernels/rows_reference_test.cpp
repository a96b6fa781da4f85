// Checked against: the same formulas in double (long double for exp) without any of the lane orders, with tolerances
// from the number of roundings; and the scalar arithmetic against this CPU's own SSE and FMA units in flush mode.
#include <doctest/doctest.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/base/bf16.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/rows.h"
#include "kernels/reference/scalar_math.h"
#include "tests/kernels/guarded.h"

namespace ft::reference {
void rmsnorm(const RmsnormArgs& args);
void head_norm_rope(const HeadNormRopeArgs& args);
void glu(const GluArgs& args);
void add(const AddArgs& args);
void softcap(const SoftcapArgs& args);
void merge(const MergeArgs& args);
void router_top_k(const RouterTopKArgs& args);
void attention(const AttentionArgs& args);
}  // namespace ft::reference

namespace {

using namespace ft;
using test::fill;
using test::random_value;
using test::same;
using test::Values;

constexpr uint64_t kSeed = 7;
constexpr double kEps = 0x1p-24;       // half a unit in the last place of fp32, relative
constexpr double kExpError = 0x1p-22;  // kernels/ops/exp.h

TEST_CASE("exp: relative error below 2^-22 over a dense sweep of the clamped range") {
  double worst = 0, worst_x = 0;
  const float step = 0x1p-13f;
  for (float x = kExpLow; x <= kExpHigh; x += step) {
    const long double exact = std::exp(static_cast<long double>(x));
    const double error = std::fabs(static_cast<double>((reference::exp(x) - exact) / exact));
    if (error > worst) worst = error, worst_x = x;
  }
  MESSAGE("largest relative error ", worst / 0x1p-24, " * 2^-24 at ", worst_x);
  CHECK(worst < kExpError);
  CHECK(reference::exp(0.0f) == 1.0f);
  CHECK(reference::exp(-0.0f) == 1.0f);
  CHECK(std::isnan(reference::exp(NAN)));
  CHECK(reference::exp(-INFINITY) == reference::exp(kExpLow));
  CHECK(reference::exp(INFINITY) == reference::exp(kExpHigh));
  CHECK(reference::exp(kExpLow) >= 0x1p-126f);
  CHECK(std::isfinite(reference::exp(kExpHigh)));
}

__attribute__((target("fma"), noinline)) float hardware_fma(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
[[gnu::noinline]] float hardware_add(float a, float b) { return a + b; }
[[gnu::noinline]] float hardware_mul(float a, float b) { return a * b; }
[[gnu::noinline]] float hardware_div(float a, float b) { return a / b; }

void check_against_hardware(float a, float b, float c) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040u);
  const float sum = hardware_add(a, c), product = hardware_mul(a, b), quotient = hardware_div(c, a);
  const float fused = hardware_fma(a, b, c);
  _mm_setcsr(saved & ~0x8040u);
  INFO("a ", a, " b ", b, " c ", c);
  REQUIRE(same(reference::add(a, c), sum));
  REQUIRE(same(reference::mul(a, b), product));
  REQUIRE(same(reference::div(c, a), quotient));
  REQUIRE(same(reference::fma(a, b, c), fused));
  _mm_setcsr(saved | 0x8040u);  // and whatever MXCSR says
  const bool flushed_same = same(reference::fma(a, b, c), fused) && same(reference::mul(a, b), product);
  _mm_setcsr(saved);
  REQUIRE(flushed_same);
}

TEST_CASE("software flush: the same bits as this CPU in flush mode, around the smallest normal number above all") {
  if (!__builtin_cpu_supports("fma")) {
    MESSAGE("skipped: this CPU has no fma to compare with");
    return;
  }
  Random random(kSeed);
  const float least = 0x1p-126f;
  for (int i = 0; i < 400000; ++i) {
    const Values kind = test::kAllValues[i % 4];
    check_against_hardware(random_value(random, kind), random_value(random, kind), random_value(random, kind));
    // Products within a few units of 2^-126: a in [1, 2), b close to 2^-126 / a.
    const float a = 1.0f + static_cast<float>(random.below(1u << 23)) * 0x1p-23f;
    float b = static_cast<float>(0x1p-62 / a);
    for (uint64_t n = random.below(4); n > 0; --n) b = std::nextafter(b, random.below(2) == 0 ? 0.0f : 1.0f);
    const float small = std::ldexp(a, -64);
    check_against_hardware(small, b, 0.0f);
    check_against_hardware(small, b, std::ldexp(random_value(random, Values::kTiny), -10));
    // Sums whose parts are near: 2^-126 + a little product of either sign.
    const float tail = std::ldexp(a, -75 - static_cast<int>(random.below(4)));
    check_against_hardware(-tail, std::ldexp(1.0f, -75), least);
    check_against_hardware(tail, std::ldexp(1.0f, -75), -std::nextafter(least, 1.0f));
  }
  // 2^-126 - 2^-151 (1 + y^3) and 2^-126 - 2^-151 (1 - x^2): on either side of the limit of tininess, by less than
  // double can tell.
  const float y = 0x1p-12f, x = 0x1p-16f;
  for (const float sign : {1.0f, -1.0f}) {
    check_against_hardware(sign * (1 + y) * 0x1p-75f, (y * y - y + 1) * 0x1p-76f, -sign * least);
    check_against_hardware(sign * (1 + x) * 0x1p-75f, (1 - x) * 0x1p-76f, -sign * least);
  }
  CHECK(reference::fma((1 + y) * 0x1p-75f, (y * y - y + 1) * 0x1p-76f, -least) == 0.0f);
  CHECK(reference::fma((1 + x) * 0x1p-75f, (1 - x) * 0x1p-76f, -least) == -least);
}

TEST_CASE("rmsnorm and rotation: the formula in double") {
  Random random(kSeed);
  for (const int64_t cols : {1, 5, 16, 33, 128, 2048}) {
    std::vector<float> x(cols), y(cols), w(cols);
    fill(random, Values::kNormal, x.data(), cols);
    fill(random, Values::kNormal, w.data(), cols);
    reference::rmsnorm({x.data(), cols, y.data(), cols, 1, cols, w.data(), 1e-6f});
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(cols) + 1e-6);
    // Sum of cols positive terms in 16 lanes: cols/16 + 4 roundings; its root halves them; six more on the way.
    const int64_t roundings = cols / 16 + 1 + 4;
    const double tolerance = (static_cast<double>(roundings) / 2 + 6) * kEps;
    for (int64_t i = 0; i < cols; ++i) {
      const double exact = x[i] * r * w[i];
      REQUIRE(std::fabs(y[i] - exact) <= tolerance * std::fabs(exact));
    }
  }
  std::vector<float> x = {1, 2, 3, 4, 5}, cos = {0.6f, 0.0f}, sin = {0.8f, 1.0f};
  reference::head_norm_rope({x.data(), 1, 5, nullptr, 0, cos.data(), sin.data(), 2});
  const double expected[] = {1 * 0.6 - 3 * 0.8, -4, 3 * 0.6 + 1 * 0.8, 2, 5};  // pairs (1,3), (2,4); 5 stays
  for (int i = 0; i < 5; ++i) CHECK(std::fabs(x[i] - expected[i]) <= 4 * kEps * 3);
}

// As transformers writes the activations, in double.
double exact_glu(const Glu& how, double g, double u) {
  const double limit = how.limit;
  switch (how.kind) {
    case GluKind::kSilu:
      break;
    case GluKind::kSiluClamped:
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit);
      break;
    case GluKind::kGeluTanh:
      // 0.5 (1 + tanh(z)), where 1 + tanh(z) loses all its digits for z < -18
      return g / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    case GluKind::kOss:
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit);
      return g / (1 + std::exp(-1.702 * g)) * (u + 1);
  }
  return g / (1 + std::exp(-g)) * u;
}

TEST_CASE("gated linear units: the formula in double") {
  Random random(kSeed);
  for (const Glu how :
       {Glu{GluKind::kSilu, 0}, Glu{GluKind::kSiluClamped, 3}, Glu{GluKind::kGeluTanh, 0}, Glu{GluKind::kOss, 7}}) {
    for (int i = 0; i < 20000; ++i) {
      const auto g = static_cast<float>(10 * random.normal());
      const auto u = static_cast<float>(5 * random.normal());
      float y = 0;
      reference::glu({&g, &u, &y, 1, how});
      const double exact = exact_glu(how, g, u);
      // exp's argument is rounded; below its range exp stays at e^-87, and the gelu there is 0. 1 + tanh of the exact
      // formula cancels in double for gates far below zero.
      const double size = std::fabs(exact) * (1 + 4 * std::fabs(static_cast<double>(g) * g));
      REQUIRE(std::fabs(y - exact) <= (kExpError + 8 * kEps) * size + 0x1p-51 * std::fabs(static_cast<double>(g) * u));
    }
  }
}

TEST_CASE("add with a scale: the formula in double, and none is exactly the sum") {
  Random random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    const float x = static_cast<float>(random.normal()), y = static_cast<float>(random.normal());
    float sum = x, scaled = x;
    reference::add({&sum, &y, 1});
    CHECK(same(sum, x + y));
    reference::add({&scaled, &y, 1, 0.3f});
    const double exact = (static_cast<double>(x) + y) * static_cast<double>(0.3f);
    REQUIRE(std::fabs(scaled - exact) <= 2 * kEps * std::fabs(exact));
  }
}

TEST_CASE("soft cap: the formula in double, its sign, its ends") {
  for (const float cap : {0.5f, 30.0f, 1000.0f}) {
    float before = -INFINITY;
    for (int i = -4000; i <= 4000; ++i) {
      const float x = cap * static_cast<float>(i) / 400;
      float y = x;
      reference::softcap({&y, 1, cap});
      REQUIRE(std::fabs(y - cap * std::tanh(static_cast<double>(x) / cap)) <= 0x1p-21 * cap);
      REQUIRE(std::signbit(y) == std::signbit(x));
      REQUIRE(std::fabs(y) <= cap);
      REQUIRE(y >= before);  // the largest logit stays the largest
      before = y;
    }
  }
  float ends[] = {INFINITY, -INFINITY, NAN, -0.0f};
  reference::softcap({ends, 4, 30.0f});
  CHECK(ends[0] == 30.0f);
  CHECK(ends[1] == -30.0f);
  CHECK(std::isnan(ends[2]));
  CHECK(same(ends[3], -0.0f));
}

TEST_CASE("merge: the formula in double") {
  Random random(kSeed);
  const int64_t slots = 8, cols = 50;
  std::vector<float> y(slots * cols), weight(slots), out(cols);
  fill(random, Values::kNormal, y.data(), slots * cols);
  fill(random, Values::kNormal, weight.data(), slots);
  std::vector<const float*> rows;
  for (int64_t s = 0; s < slots; ++s) rows.push_back(y.data() + s * cols);
  reference::merge({rows.data(), weight.data(), slots, cols, out.data()});
  for (int64_t i = 0; i < cols; ++i) {
    double exact = 0, size = 0;
    for (int64_t s = 0; s < slots; ++s) {
      exact += static_cast<double>(weight[s]) * y[s * cols + i];
      size += std::fabs(static_cast<double>(weight[s]) * y[s * cols + i]);
    }
    REQUIRE(std::fabs(out[i] - exact) <= slots * kEps * size);
  }
}

TEST_CASE("router: softmax in double, a stable sort for the order") {
  Random random(kSeed);
  for (const int64_t experts : {4, 60, 128, 512}) {
    for (const bool renormalize : {false, true}) {
      const int64_t k = std::min<int64_t>(8, experts);
      std::vector<float> logits(experts), scratch(experts), weights(k);
      std::vector<int32_t> ids(k), order(experts);
      for (float& x : logits) x = static_cast<float>(random.below(40)) * 0.25f;  // ties among the largest
      reference::router_top_k({logits.data(), experts, k, renormalize, scratch.data(), ids.data(), weights.data()});
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
      double sum = 0;
      const double largest = logits[order[0]];
      for (int64_t i = 0; i < (renormalize ? k : experts); ++i) sum += std::exp(logits[order[i]] - largest);
      for (int64_t s = 0; s < k; ++s) {
        REQUIRE(ids[s] == order[s]);
        const double exact = std::exp(logits[order[s]] - largest) / sum;
        const double tolerance = 2 * (kExpError + (static_cast<double>(experts) / 16 + 8) * kEps);
        REQUIRE(std::fabs(weights[s] - exact) <= tolerance * exact);
      }
    }
  }
}

TEST_CASE("router: an expert's scale multiplies its weight and plays no part in the choice") {
  const std::vector<float> logits = {1, 3, 2, 0}, scale = {100, 0.5f, -2, 50};
  std::vector<float> scratch(4), plain(2), scaled(2);
  std::vector<int32_t> ids(2);
  for (const bool renormalize : {false, true}) {
    reference::router_top_k({logits.data(), 4, 2, renormalize, scratch.data(), ids.data(), plain.data()});
    reference::router_top_k(
        {logits.data(), 4, 2, renormalize, scratch.data(), ids.data(), scaled.data(), scale.data()});
    CHECK(ids == std::vector<int32_t>{1, 2});
    CHECK(scaled[0] == plain[0] * 0.5f);
    CHECK(scaled[1] == plain[1] * -2);
  }
}

TEST_CASE("router: NaN, infinities and the limits give valid ids and NaN weights") {
  std::vector<float> logits(kMaxRoutedExperts, 0.0f), scratch(kMaxRoutedExperts), weights(kMaxTopK);
  std::vector<int32_t> ids(kMaxTopK);
  const auto run = [&] {
    reference::router_top_k(
        {logits.data(), kMaxRoutedExperts, kMaxTopK, true, scratch.data(), ids.data(), weights.data()});
  };
  for (const float poison : {NAN, INFINITY}) {
    logits[4095] = poison;
    run();
    for (int s = 0; s < kMaxTopK; ++s) {
      CHECK(ids[s] == s);
      CHECK(std::isnan(weights[s]));
    }
  }
  logits[4095] = 1.0f;
  run();
  CHECK(ids[0] == 4095);
  for (int s = 1; s < kMaxTopK; ++s) CHECK(ids[s] == s - 1);
}

// softmax(q k * scale) v in double, all positions at once; a sink is one more logit with a value of zero.
std::vector<double> attention_exact(const AttentionArgs& args, double* score_error) {
  std::vector<double> score, out(args.head_dim, 0.0);
  double largest = -INFINITY, sum = 0;
  *score_error = 0;
  for (int64_t t = args.begin; t < args.length; ++t) {
    double dot = 0, size = 0;
    for (int64_t d = 0; d < args.head_dim; ++d) {
      const double term = static_cast<double>(args.q[d]) * to_float(args.k[t * args.kv_stride + d]);
      dot += term;
      size += std::fabs(term);
    }
    score.push_back(dot * args.scale);
    largest = std::max(largest, score.back());
    // Per lane one rounding a dimension, four in the tree, one for the scale, one for the difference to the maximum.
    const double roundings = static_cast<double>(args.head_dim) / 16 + 2 + 4;
    *score_error = std::max(*score_error, roundings * kEps * size * args.scale + 2 * kEps * std::fabs(score.back()));
  }
  if (args.sinks != nullptr) {
    largest = std::max<double>(largest, args.sinks[0]);
    sum = std::exp(args.sinks[0] - largest);
  }
  for (const double s : score) sum += std::exp(s - largest);
  for (size_t i = 0; i < score.size(); ++i) {
    for (int64_t d = 0; d < args.head_dim; ++d) {
      const int64_t t = args.begin + static_cast<int64_t>(i);
      out[d] += std::exp(score[i] - largest) / sum * to_float(args.v[t * args.kv_stride + d]);
    }
  }
  return out;
}

TEST_CASE("attention: softmax and sum in double, without splits") {
  Random random(kSeed);
  for (const int64_t head_dim : {3, 64, 80, 128}) {
    for (const int64_t length : {1, 64, 65, 129, 1000, 2100}) {
      for (const int64_t begin : {int64_t{0}, length / 2}) {
        std::vector<float> q(head_dim), out(head_dim);
        std::vector<bf16> k(length * head_dim), v(length * head_dim);
        for (float& x : q) x = round_to_bf16(static_cast<float>(random.normal()));
        for (bf16& x : k) x = to_bf16(static_cast<float>(random.normal()));
        for (bf16& x : v) x = to_bf16(static_cast<float>(random.normal()));
        AttentionArgs args{q.data(), k.data(), v.data(), head_dim, begin, length, head_dim, 0.5f, out.data()};
        // None, as small as most scores, as large as the largest ones, and above all of them.
        const float sink = std::array{0.0f, -3.0f, 10.0f, 60.0f}[random.below(4)];
        if (sink != 0) args.sinks = &sink;
        reference::attention(args);
        double score_error = 0;
        const std::vector<double> exact = attention_exact(args, &score_error);
        double v_max = 0;
        for (const bf16 x : v) v_max = std::max(v_max, std::fabs(static_cast<double>(to_float(x))));
        // Each weight is off by exp(+-score error), the exp itself, one rounding per position of its split, and an exp
        // and two roundings per join on the way (the tree of its group, then the groups, the sink), in the numerator
        // and in the sum alike.
        const int64_t groups = length / (kAttentionGroup * kAttentionSplit) + 1;
        const auto joins = static_cast<double>(5 + groups);
        const double positions = static_cast<double>(std::min(length, kAttentionSplit));
        const double relative = 2 * (score_error + kExpError * (1 + joins) + (positions + 2 * joins + 2) * kEps);
        for (int64_t d = 0; d < head_dim; ++d) REQUIRE(std::fabs(out[d] - exact[d]) <= relative * v_max);
      }
    }
  }
}

TEST_CASE("attention: no position gives zeros, and NaN stays in the head or dimension it came from") {
  std::vector<float> q(8, 1.0f), out(8, 5.0f);
  std::vector<bf16> k(16, to_bf16(1.0f)), v(16, to_bf16(2.0f));
  AttentionArgs args{q.data(), k.data(), v.data(), 4, 2, 2, 4, 1.0f, out.data(), 2};
  reference::attention(args);
  for (const float x : out) CHECK(same(x, 0.0f));
  args.begin = 0, args.length = 3;
  v[1] = to_bf16(NAN);
  reference::attention(args);
  for (int d = 0; d < 8; ++d) CHECK((d % 4 == 1 ? std::isnan(out[d]) : out[d] == 2.0f));
  v[1] = to_bf16(2.0f);
  q[0] = NAN;
  reference::attention(args);
  for (int d = 0; d < 8; ++d) CHECK((d < 4 ? std::isnan(out[d]) : out[d] == 2.0f));
}

TEST_CASE("attention: sinks that take nothing, half, all, or poison their head") {
  const std::vector<float> q(8, 1.0f);
  std::vector<float> out(8), sinks = {-INFINITY, 4.0f};  // the score of the one position is 4
  const std::vector<bf16> k(4, to_bf16(1.0f)), v(4, to_bf16(2.0f));
  AttentionArgs args{q.data(), k.data(), v.data(), 4, 0, 1, 4, 1.0f, out.data(), 2, sinks.data()};
  reference::attention(args);
  for (int d = 0; d < 8; ++d) CHECK(out[d] == (d < 4 ? 2.0f : 1.0f));
  sinks = {4000.0f, INFINITY};
  reference::attention(args);
  for (int d = 0; d < 8; ++d) CHECK((d < 4 ? out[d] < 1e-30f : std::isnan(out[d])));
  sinks = {NAN, 4.0f};
  reference::attention(args);
  for (int d = 0; d < 8; ++d) CHECK((d < 4 ? std::isnan(out[d]) : out[d] == 1.0f));
  args.length = 0;
  reference::attention(args);
  for (const float x : out) CHECK(same(x, 0.0f));
}

}  // namespace
