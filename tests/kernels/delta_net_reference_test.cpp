// Checked against: the formulas of a gated delta net in double, written from its definition without any of the orders
// of kernels/ops/delta_net.h; log(1 + u) against long double.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/ops/delta_net.h"
#include "kernels/ops/rows.h"
#include "tests/kernels/guarded.h"

namespace ft::reference {
void gate(const GateArgs& args);
void causal_conv(const CausalConvArgs& args);
void l2_norm(const L2NormArgs& args);
void delta_gates(const DeltaGatesArgs& args);
void delta_rule(const DeltaRuleArgs& args);
}  // namespace ft::reference

namespace {

using namespace ft;
using test::fill;
using test::Values;

constexpr uint64_t kSeed = 9;
constexpr double kEps = 0x1p-24;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<float> normal(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  fill(random, Values::kNormal, values.data(), count);
  return values;
}

TEST_CASE("gate: sigmoid and silu") {
  for (float g = -30; g <= 30; g += 0.37f) {
    float x = 1.75f;
    reference::gate({&x, &g, 1, GateKind::kSigmoid});
    CHECK(x == doctest::Approx(1.75 * sigmoid(static_cast<double>(g))).epsilon(8 * kEps));
    x = 1.75f;
    reference::gate({&x, &g, 1, GateKind::kSilu});
    CHECK(x == doctest::Approx(1.75 * static_cast<double>(g) * sigmoid(static_cast<double>(g))).epsilon(8 * kEps));
  }
}

TEST_CASE("causal_conv: taps stand as far apart as the dilation says") {
  const int64_t tokens = 12, taps = 4, dilation = 3;
  std::vector<float> x(tokens, 0.0f), history((taps - 1) * dilation, 0.0f);
  x[1] = 1;
  const float w[] = {5, 4, 3, 2};
  reference::causal_conv({x.data(), 1, tokens, 1, taps, w, 1, history.data(), 1, dilation});
  const double products[] = {0, 2, 0, 0, 3, 0, 0, 4, 0, 0, 5, 0};
  for (size_t t = 0; t < 12; ++t) {
    CHECK(x[t] == doctest::Approx(products[t] * sigmoid(products[t])).epsilon(8 * kEps));
  }
  CHECK(history == std::vector<float>(9, 0.0f));  // the inputs of tokens 3 to 11
}

TEST_CASE("causal_conv: zero before the start, the last tap is the token itself") {
  Random random(kSeed);
  const int64_t tokens = 6, channels = 5, taps = 4;
  std::vector<float> x = normal(random, tokens * channels), given = x, w = normal(random, taps * channels);
  std::vector<float> history((taps - 1) * channels, 0.0f);
  reference::causal_conv({x.data(), channels, tokens, channels, taps, w.data(), channels, history.data(), channels});
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t back = 0; back < taps && back <= t; ++back) {
        sum += static_cast<double>(w[static_cast<size_t>((taps - 1 - back) * channels + c)]) *
               static_cast<double>(given[static_cast<size_t>((t - back) * channels + c)]);
      }
      CHECK(x[static_cast<size_t>(t * channels + c)] == doctest::Approx(sum * sigmoid(sum)).epsilon(1e-5));
    }
  }
  for (int64_t i = 0; i < (taps - 1) * channels; ++i) {
    CHECK(history[static_cast<size_t>(i)] == given[static_cast<size_t>((tokens - taps + 1) * channels + i)]);
  }
}

TEST_CASE("l2_norm: the sum of squares, not their mean, and the constant under the root") {
  float x[2] = {3e-4f, 4e-4f};
  reference::l2_norm({x, 2, 1, 2, 2.0f});
  const double length = std::sqrt(25e-8 + 1e-6);
  CHECK(x[0] == doctest::Approx(2 * 3e-4 / length).epsilon(1e-6));
  CHECK(x[1] == doctest::Approx(2 * 4e-4 / length).epsilon(1e-6));
}

TEST_CASE("delta_gates: against long double over the range of its inputs") {
  double worst = 0;
  for (float a = -80; a <= 80; a += 0.0625f) {
    for (const float log : {-3.0f, 0.0f, 2.5f}) {
      float write = a, decay = a - 0.25f;
      const float bias = 0.25f;
      reference::delta_gates({&write, &decay, &log, &bias, 1});
      const auto wide = static_cast<long double>(a);
      const long double softplus = std::max(wide, 0.0L) + std::log1p(std::exp(-std::fabs(wide)));
      const long double rate = std::exp(static_cast<long double>(log)) * softplus;
      CHECK(write == doctest::Approx(sigmoid(static_cast<double>(a))).epsilon(1e-6));
      if (rate > 80) {
        CHECK(decay < 1e-34f);
        continue;
      }
      // An error of the exponent counts by its size.
      const auto error = static_cast<double>(std::fabs((decay - std::exp(-rate)) / std::exp(-rate)) / (1 + rate));
      worst = std::max(worst, error);
    }
  }
  MESSAGE("largest error of the decay, relative to 1 + its exponent: ", worst / kEps, " * 2^-24");
  CHECK(worst < 8 * kEps);
}

TEST_CASE("delta_gates: log(1 + u) is right to 2^-22") {
  double worst = 0;
  const float zero = 0;
  for (float a = -86; a <= 0;
       a += 0.01f) {  // small u = exp(a): the decay is then 1 - u, so it is read off exp(log) = e^a
    float write = 0, decay = a;
    const float log = -a;  // the rate is log(1 + u) / u, between log 2 and 1
    if (log > 80) continue;
    reference::delta_gates({&write, &decay, &log, &zero, 1});
    const long double u = std::exp(static_cast<long double>(a));
    const long double rate = std::exp(static_cast<long double>(log)) * std::log1p(u);
    worst = std::max(worst, static_cast<double>(std::fabs(-std::log(static_cast<long double>(decay)) / rate - 1)));
  }
  MESSAGE("largest relative error of the rate: ", worst / kEps, " * 2^-24");
  CHECK(worst <
        24 * kEps);  // two exponentials, a division, the polynomial, three products, and the logarithm's argument
}

TEST_CASE("delta_rule: decays, corrects, then reads, and a token sees its own update") {
  Random random(kSeed);
  const int64_t tokens = 7, key_dim = 6, value_dim = 19, width = 2 * key_dim + value_dim;
  std::vector<float> x = normal(random, tokens * width), gates(static_cast<size_t>(tokens) * 2);
  for (float& value : gates) value = static_cast<float>(random.uniform());
  std::vector<float> state(static_cast<size_t>(delta_state_floats(key_dim, value_dim)), 0.0f);
  std::vector<float> out(static_cast<size_t>(tokens * value_dim));
  reference::delta_rule({x.data(), x.data() + key_dim, x.data() + 2 * key_dim, width, gates.data(), gates.data() + 1, 2,
                         tokens, key_dim, value_dim, state.data(), out.data(), value_dim});
  std::vector<double> s(static_cast<size_t>(key_dim * value_dim), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    const float *q = x.data() + t * width, *k = q + key_dim, *v = k + key_dim;
    const double write = static_cast<double>(gates[static_cast<size_t>(2 * t)]);
    for (double& value : s) value *= static_cast<double>(gates[static_cast<size_t>(2 * t + 1)]);
    for (int64_t j = 0; j < value_dim; ++j) {
      double predicted = 0, read = 0;
      for (int64_t i = 0; i < key_dim; ++i)
        predicted += s[static_cast<size_t>(i * value_dim + j)] * static_cast<double>(k[i]);
      for (int64_t i = 0; i < key_dim; ++i) {
        double& value = s[static_cast<size_t>(i * value_dim + j)];
        value += static_cast<double>(k[i]) * write * (static_cast<double>(v[j]) - predicted);
        read += value * static_cast<double>(q[i]);
      }
      CHECK(std::fabs(static_cast<double>(out[static_cast<size_t>(t * value_dim + j)]) - read) <
            1e-4 * (1 + std::fabs(read)));
    }
  }
}

}  // namespace
