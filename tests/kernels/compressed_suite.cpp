// Checked against: the scalar reference, bit for bit, for every variant that the registry lists and this CPU can run;
// the reference itself against the textbook formulas in long double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/ops/compressed.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/streams.h"
#include "tests/kernels/suite.h"

namespace {

using namespace ft;
using test::fill;
using test::first_difference;
using test::Guarded;
using test::in_both_flush_modes;
using test::Values;
using Real = long double;

constexpr uint64_t kSeed = 7;
constexpr int64_t kWidths[] = {0, 1, 2, 15, 16, 17, 32, 33, 47, 64, 100, 128};

float gaussian(Random& random, double size) { return static_cast<float>(size * random.normal()); }

std::vector<float> gaussians(Random& random, int64_t count, double size) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = gaussian(random, size);
  return values;
}

FT_OP_CASE(kDotRows, dot_rows_equals_reference) {
  in_both_flush_modes<DotRowsFn>(variant, reference_kernel, [](DotRowsFn fn, DotRowsFn reference) {
    Random random(kSeed);
    for (const int64_t cols : kWidths) {
      for (const int64_t rows : {0, 1, 3, 4, 5, 24}) {
        for (const Values kind : test::kAllValues) {
          Guarded<float> x(cols), w(rows * cols), expected(rows), got(rows);
          fill(random, kind, x.data(), cols);
          fill(random, kind, w.data(), w.size());
          reference({x.data(), w.data(), rows, cols, expected.data()});
          fn({x.data(), w.data(), rows, cols, got.data()});
          REQUIRE(first_difference(expected.data(), got.data(), rows) == -1);
          REQUIRE((got.intact() && x.intact() && w.intact()));
        }
      }
    }
  });
}

FT_OP_CASE(kStreamFactors, stream_factors_equals_reference) {
  in_both_flush_modes<StreamFactorsFn>(variant, reference_kernel, [](StreamFactorsFn fn, StreamFactorsFn reference) {
    Random random(kSeed);
    for (int64_t streams = 1; streams <= kMaxStreams; ++streams) {
      const int64_t count = stream_logit_count(streams), mixed = streams * streams;
      for (const Values kind : test::kAllValues) {
        for (const bool head : {false, true}) {
          Guarded<float> logits(count), base(count), scale(3);
          Guarded<float> read(streams), write(streams), mix(mixed), got_read(streams), got_write(streams),
              got_mix(mixed);
          fill(random, kind, logits.data(), count);
          fill(random, kind, base.data(), count);
          fill(random, Values::kNormal, scale.data(), 3);
          StreamFactorsArgs args{logits.data(),
                                 9.5f,
                                 64,
                                 1e-6f,
                                 scale.data(),
                                 base.data(),
                                 streams,
                                 20,
                                 1e-6f,
                                 read.data(),
                                 head ? nullptr : write.data(),
                                 head ? nullptr : mix.data()};
          reference(args);
          args.read = got_read.data();
          if (!head) args.write = got_write.data(), args.mix = got_mix.data();
          fn(args);
          REQUIRE(first_difference(read.data(), got_read.data(), streams) == -1);
          if (!head) REQUIRE(first_difference(write.data(), got_write.data(), streams) == -1);
          if (!head) REQUIRE(first_difference(mix.data(), got_mix.data(), mixed) == -1);
          REQUIRE((got_read.intact() && got_write.intact() && got_mix.intact()));
        }
      }
    }
  });
}

FT_OP_CASE(kSquash, squash_equals_reference) {
  in_both_flush_modes<SquashFn>(variant, reference_kernel, [](SquashFn fn, SquashFn reference) {
    Random random(kSeed);
    for (const int64_t count : kWidths) {
      for (const GateKind how : {GateKind::kSilu, GateKind::kSigmoid}) {
        for (const auto& [scale, factor] : {std::pair{1.0f, 1.0f}, {0.25f, 2.0f}, {1.0f / 3, 0.7f}}) {
          for (const Values kind : test::kAllValues) {
            Guarded<float> expected(count), got(count);
            fill(random, kind, got.data(), count);
            for (int64_t i = 0; i < count; i += 3) got[i] = gaussian(random, 40);
            std::copy_n(got.data(), count, expected.data());
            reference({expected.data(), count, scale, how, factor});
            fn({got.data(), count, scale, how, factor});
            REQUIRE(first_difference(expected.data(), got.data(), count) == -1);
            REQUIRE(got.intact());
          }
        }
      }
    }
  });
}

FT_OP_CASE(kStreamGates, stream_gates_equals_reference) {
  in_both_flush_modes<StreamGatesFn>(variant, reference_kernel, [](StreamGatesFn fn, StreamGatesFn reference) {
    Random random(kSeed);
    for (int64_t streams = 0; streams <= kMaxStreams; ++streams) {
      for (const Values kind : test::kAllValues) {
        for (const float root : {1.0f, 8.0f, 50.596443f}) {
          Guarded<float> expected(streams), got(streams);
          fill(random, kind, got.data(), streams);
          if (streams > 1) got[0] = 0.0f, got[1] = -1e-7f;  // none, and below the floor
          std::copy_n(got.data(), streams, expected.data());
          reference({expected.data(), streams, root});
          fn({got.data(), streams, root});
          REQUIRE(first_difference(expected.data(), got.data(), streams) == -1);
          REQUIRE(got.intact());
        }
      }
    }
  });
}

FT_OP_CASE(kRotatePairs, rotate_pairs_equals_reference) {
  in_both_flush_modes<RotatePairsFn>(variant, reference_kernel, [](RotatePairsFn fn, RotatePairsFn reference) {
    Random random(kSeed);
    for (const int64_t half : {0, 1, 7, 8, 16, 32, 33}) {
      for (const int64_t before : {0, 1, 48}) {
        for (const bool inverse : {false, true}) {
          for (const Values kind : test::kAllValues) {
            const int64_t rows = 3, dim = before + 2 * half;
            Guarded<float> expected(rows * dim), got(rows * dim), cos(half), sin(half);
            fill(random, kind, got.data(), got.size());
            fill(random, kind, cos.data(), half);
            fill(random, kind, sin.data(), half);
            std::copy_n(got.data(), got.size(), expected.data());
            reference({expected.data(), rows, dim, cos.data(), sin.data(), half, inverse});
            fn({got.data(), rows, dim, cos.data(), sin.data(), half, inverse});
            REQUIRE(first_difference(expected.data(), got.data(), got.size()) == -1);
            REQUIRE((got.intact() && cos.intact() && sin.intact()));
          }
        }
      }
    }
  });
}

FT_OP_CASE(kCompress, compress_equals_reference) {
  in_both_flush_modes<CompressFn>(variant, reference_kernel, [](CompressFn fn, CompressFn reference) {
    Random random(kSeed);
    for (const int64_t cols : kWidths) {
      for (const int64_t slots : {1, 4, 8, 128}) {
        for (const Values kind : test::kAllValues) {
          Guarded<float> value(slots * cols), logit(slots * cols), bias(slots * cols), expected(cols), got(cols);
          for (Guarded<float>* part : {&value, &logit, &bias}) fill(random, kind, part->data(), part->size());
          std::vector<const float*> values, logits, biases;
          for (int64_t s = 0; s < slots; ++s) {
            values.push_back(value.data() + s * cols);
            logits.push_back(logit.data() + s * cols);
            biases.push_back(bias.data() + s * cols);
          }
          reference({values.data(), logits.data(), biases.data(), slots, cols, expected.data()});
          fn({values.data(), logits.data(), biases.data(), slots, cols, got.data()});
          REQUIRE(first_difference(expected.data(), got.data(), cols) == -1);
          REQUIRE((got.intact() && value.intact() && logit.intact() && bias.intact()));
        }
      }
    }
  });
}

FT_OP_CASE(kIndexScores, index_scores_equals_reference) {
  in_both_flush_modes<IndexScoresFn>(variant, reference_kernel, [](IndexScoresFn fn, IndexScoresFn reference) {
    Random random(kSeed);
    for (const int64_t dim : kWidths) {
      for (const int64_t heads : {0, 1, 5}) {
        for (const int64_t count : {0, 1, 6}) {
          for (const Values kind : test::kAllValues) {
            Guarded<float> q(heads * dim), weight(heads), expected(count), got(count), wide(count * dim);
            Guarded<bf16> keys(count * dim);
            fill(random, kind, q.data(), q.size());
            fill(random, kind, weight.data(), heads);
            fill(random, kind, wide.data(), wide.size());
            for (int64_t i = 0; i < keys.size(); ++i) keys[i] = to_bf16(wide[i]);
            reference({q.data(), weight.data(), heads, dim, keys.data(), count, expected.data()});
            fn({q.data(), weight.data(), heads, dim, keys.data(), count, got.data()});
            REQUIRE(first_difference(expected.data(), got.data(), count) == -1);
            REQUIRE((got.intact() && q.intact() && weight.intact() && keys.intact()));
          }
        }
      }
    }
  });
}

void check_scores(RouterScoresFn fn, RouterScoresFn reference, RouterScoresArgs args) {
  Guarded<float> expected_p(args.experts), got_p(args.experts), expected(args.k), got(args.k);
  Guarded<int32_t> expected_ids(args.k), ids(args.k);
  args.scratch = expected_p.data(), args.ids = expected_ids.data(), args.weights = expected.data();
  reference(args);
  args.scratch = got_p.data(), args.ids = ids.data(), args.weights = got.data();
  fn(args);
  REQUIRE(first_difference(expected_p.data(), got_p.data(), args.experts) == -1);
  REQUIRE(first_difference(expected.data(), got.data(), args.k) == -1);
  REQUIRE(std::equal(ids.data(), ids.data() + args.k, expected_ids.data()));
  REQUIRE((got_p.intact() && got.intact() && ids.intact()));
}

FT_OP_CASE(kRouterScores, router_scores_equals_reference_ties_and_nan_included) {
  in_both_flush_modes<RouterScoresFn>(variant, reference_kernel, [](RouterScoresFn fn, RouterScoresFn reference) {
    Random random(kSeed);
    for (const int64_t experts : {1, 2, 15, 16, 17, 60, 256, 4096}) {
      for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{6}, kMaxTopK}) {
        if (k > experts) continue;
        for (const Values kind : test::kAllValues) {
          Guarded<float> logits(experts), bias(experts);
          Guarded<int32_t> given(k);
          fill(random, kind, logits.data(), experts);
          fill(random, kind, bias.data(), experts);
          for (int64_t i = 0; i < experts; i += 3) logits[i] = 0.25f, bias[i] = 0.5f;            // ties
          for (int64_t s = 0; s < k; ++s) given[s] = static_cast<int32_t>(s * 7 / 2 % experts);  // some twice
          check_scores(fn, reference, {logits.data(), experts, k, nullptr, nullptr, 1.5f});
          check_scores(fn, reference, {logits.data(), experts, k, bias.data(), nullptr, 1.5f});
          check_scores(fn, reference, {logits.data(), experts, k, nullptr, given.data(), 2.5f});
        }
      }
    }
  });
}

Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

// Of one call with the reference: (read, write, mix[p][q]).
struct Factors {
  std::vector<float> read, write, mix;
};
Factors reference_factors(StreamFactorsArgs args) {
  const auto streams = static_cast<size_t>(args.streams);
  Factors factors{std::vector<float>(streams), std::vector<float>(streams), std::vector<float>(streams * streams)};
  args.read = factors.read.data(), args.write = factors.write.data(), args.mix = factors.mix.data();
  std::get<StreamFactorsFn>(test::reference_of(OpId::kStreamFactors, kNoFormat).fn)(args);
  return factors;
}

}  // namespace

TEST_CASE("the factors of streams are the formulas', scales and bases included, and mix nearly doubly stochastic") {
  Random random(kSeed);
  constexpr int64_t kStreams = 4, kCols = 256;
  const std::vector<float> logits = gaussians(random, 24, 3), base = gaussians(random, 24, 0.5);
  const float scale[3] = {0.7f, 1.3f, 0.4f};
  const Factors got = reference_factors(
      {logits.data(), 80.0f, kCols, 1e-6f, scale, base.data(), kStreams, 20, 1e-6f, nullptr, nullptr});
  const Real r = 1 / std::sqrt(Real{80} / kCols + 1e-6L);
  const auto a = [&](size_t i, int part) { return logits[i] * r * scale[part] + base[i]; };
  for (size_t i = 0; i < kStreams; ++i) {
    CHECK(std::fabs(got.read[i] - (sigmoid(a(i, 0)) + 1e-6L)) < 1e-6L);
    CHECK(std::fabs(got.write[i] - 2 * sigmoid(a(kStreams + i, 1))) < 1e-6L);
  }
  Real c[4][4];
  for (int p = 0; p < 4; ++p) {
    Real sum = 0;
    for (int q = 0; q < 4; ++q) sum += c[p][q] = std::exp(a(static_cast<size_t>(8 + 4 * p + q), 2));
    for (int q = 0; q < 4; ++q) c[p][q] = c[p][q] / sum + 1e-6L;
  }
  for (int round = 0; round < 20; ++round) {
    for (int p = 0; p < 4 && round > 0; ++p) {
      const Real sum = c[p][0] + c[p][1] + c[p][2] + c[p][3] + 1e-6L;
      for (Real& value : c[p]) value /= sum;
    }
    for (int q = 0; q < 4; ++q) {
      const Real sum = c[0][q] + c[1][q] + c[2][q] + c[3][q] + 1e-6L;
      for (auto& row : c) row[q] /= sum;
    }
  }
  for (int p = 0; p < 4; ++p) {
    Real column = 0;
    for (int q = 0; q < 4; ++q) {
      CHECK(std::fabs(got.mix[static_cast<size_t>(4 * q + p)] - c[p][q]) < 2e-6L);
      column += got.mix[static_cast<size_t>(4 * p + q)];
    }
    CHECK(std::fabs(column - 1) < 1e-4L);
  }
}

TEST_CASE("squash is act(x * scale) * factor") {
  const auto squash = std::get<SquashFn>(test::reference_of(OpId::kSquash, kNoFormat).fn);
  for (float x = -30; x <= 30; x += 0.7f) {
    float silu = x, factor = x;
    squash({&silu, 1, 0.25f, GateKind::kSilu, 1});
    squash({&factor, 1, 0.25f, GateKind::kSigmoid, 2});
    const Real quarter = static_cast<Real>(x) / 4;
    CHECK(std::fabs(silu - quarter * sigmoid(quarter)) <= 1e-6L * (1 + std::fabs(quarter)));
    CHECK(std::fabs(factor - 2 * sigmoid(quarter)) <= 1e-6L);
  }
}

TEST_CASE("gates of streams: the root keeps the sign, small scores count as the floor, none as nothing") {
  const auto gates = std::get<StreamGatesFn>(test::reference_of(OpId::kStreamGates, kNoFormat).fn);
  float x[] = {0.0f, 8.0f, -8.0f, 8e-8f, -8e-8f, 72.0f};
  gates({x, 6, 8.0f});
  const Real expected[] = {0.5L, sigmoid(1), sigmoid(-1), sigmoid(1e-3L), sigmoid(-1e-3L), sigmoid(3)};
  for (int i = 0; i < 6; ++i) CHECK(std::fabs(x[i] - expected[i]) < 1e-7L);
  CHECK(x[3] != 0.5f);
}

TEST_CASE("rounds count: one round leaves rows as the softmax of the columns made them") {
  const std::vector<float> logits = {0, 0, 0, 0, 1, 2, 3, 5}, base(8, 0.0f);
  const float scale[3] = {1, 1, 1};
  const auto rows_of = [&](int64_t rounds) {
    const Factors got =
        reference_factors({logits.data(), 2.0f, 2, 0.0f, scale, base.data(), 2, rounds, 0.0f, nullptr, nullptr});
    return std::fabs(got.mix[0] + got.mix[2] - 1.0f) + std::fabs(got.mix[1] + got.mix[3] - 1.0f);
  };
  CHECK(rows_of(1) > 1e-2f);
  CHECK(rows_of(2) < rows_of(1));
  CHECK(rows_of(20) < 1e-5f);
}

TEST_CASE("the inverse rotation takes the rotation back, and what stands before it is left alone") {
  const auto rotate = std::get<RotatePairsFn>(test::reference_of(OpId::kRotatePairs, kNoFormat).fn);
  std::vector<float> x = {5, 6, 1, 2, 3, 4};
  const float cos[] = {0.6f, -0.8f}, sin[] = {0.8f, 0.6f};
  rotate({x.data(), 1, 6, cos, sin, 2, false});
  const float expected[] = {5, 6, -1.0f, 2.0f, -4.8f, -1.4f};
  for (size_t i = 0; i < 6; ++i) CHECK(std::fabs(x[i] - expected[i]) < 1e-6f);
  rotate({x.data(), 1, 6, cos, sin, 2, true});
  for (size_t i = 0; i < 6; ++i) CHECK(std::fabs(x[i] - static_cast<float>(std::array{5, 6, 1, 2, 3, 4}[i])) < 1e-6f);
}

TEST_CASE("an entry is the softmax-weighted sum of its tokens, the bias included") {
  const auto compress = std::get<CompressFn>(test::reference_of(OpId::kCompress, kNoFormat).fn);
  const float values[3][2] = {{1, -2}, {4, 0.5f}, {-3, 8}}, logits[3][2] = {{0, 1}, {2, -1}, {-1, 3}};
  const float bias[3][2] = {{0.5f, 0}, {-1, 1}, {2, -4}};
  const float *v[3], *l[3], *b[3];
  for (int s = 0; s < 3; ++s) v[s] = values[s], l[s] = logits[s], b[s] = bias[s];
  float out[2];
  compress({v, l, b, 3, 2, out});
  for (int i = 0; i < 2; ++i) {
    Real sum = 0, mixed = 0;
    for (int s = 0; s < 3; ++s) {
      const Real e = std::exp(static_cast<Real>(logits[s][i]) + bias[s][i]);
      sum += e, mixed += e * values[s][i];
    }
    CHECK(std::fabs(out[i] - mixed / sum) < 1e-6L);
  }
}

TEST_CASE("scores of an index count positive products only, with weights of either sign") {
  const auto scores = std::get<IndexScoresFn>(test::reference_of(OpId::kIndexScores, kNoFormat).fn);
  const float q[] = {1, 0, /**/ 0, 1}, weight[] = {2, -3};
  const bf16 keys[] = {to_bf16(1), to_bf16(1), to_bf16(-1), to_bf16(2), to_bf16(-1), to_bf16(-1)};
  float got[3];
  scores({q, weight, 2, 2, keys, 3, got});
  CHECK(got[0] == -1.0f);
  CHECK(got[1] == -6.0f);
  CHECK(got[2] == 0.0f);
}

TEST_CASE("a router of scores chooses with the bias, weighs without it, and takes what a table gives") {
  const auto route = std::get<RouterScoresFn>(test::reference_of(OpId::kRouterScores, kNoFormat).fn);
  const float logits[] = {-30, -2, 0.5f, 3, 40}, bias[] = {9, 0, 0, 0, -9};
  Real p[5];
  for (int i = 0; i < 5; ++i) p[i] = std::sqrt(std::log1p(std::exp(static_cast<Real>(logits[i]))));
  float scratch[5], weights[2];
  int32_t ids[2];
  const auto check = [&](int first, int second) {
    CHECK(ids[0] == first);
    CHECK(ids[1] == second);
    for (int s = 0; s < 2; ++s) {
      const Real expected = 1.5L * p[ids[s]] / (p[first] + p[second]);
      CHECK(std::fabs(weights[s] - expected) <= 2e-6L * expected);
    }
  };
  RouterScoresArgs args{logits, 5, 2, nullptr, nullptr, 1.5f, scratch, ids, weights};
  route(args);
  check(4, 3);
  args.bias = bias;
  route(args);
  check(0, 3);
  const int32_t twice[] = {2, 2};
  args.given = twice;
  route(args);
  check(2, 2);
  CHECK(weights[0] == 0.75f);
  for (int i = 0; i < 5; ++i) CHECK(std::fabs(scratch[i] - p[i]) <= 1e-6L * p[i]);
}
