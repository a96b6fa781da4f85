// Checked against: the scalar reference, bit for bit, for every variant that the registry lists and this CPU can run;
// and, for what is stateful, against itself with the tokens cut into several calls.
// (The reference itself is checked in delta_net_reference_test.cpp.)
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/ops/delta_net.h"
#include "tests/kernels/suite.h"

namespace {

using namespace ft;
using test::fill;
using test::first_difference;
using test::Guarded;
using test::in_both_flush_modes;
using test::Values;

constexpr uint64_t kSeed = 5;
constexpr int64_t kWidths[] = {0, 1, 3, 4, 7, 15, 16, 17, 31, 32, 33, 47, 64, 100, 128};

FT_OP_CASE(kGate, gate_equals_reference) {
  in_both_flush_modes<GateFn>(variant, reference_kernel, [](GateFn fn, GateFn reference) {
    Random random(kSeed);
    for (const GateKind how : {GateKind::kSilu, GateKind::kSigmoid}) {
      for (const int64_t count : kWidths) {
        for (const Values kind : test::kAllValues) {
          Guarded<float> gate(count), expected(count), got(count);
          fill(random, kind, gate.data(), count);
          fill(random, kind, got.data(), count);
          for (int64_t i = 0; i < count; i += 3) gate[i] = static_cast<float>(40.0 * random.normal());
          std::copy_n(got.data(), count, expected.data());
          reference({expected.data(), gate.data(), count, how});
          fn({got.data(), gate.data(), count, how});
          REQUIRE(first_difference(expected.data(), got.data(), count) == -1);
          REQUIRE((got.intact() && gate.intact()));
        }
      }
    }
  });
}

std::vector<std::pair<Values, int64_t>> kinds_and_dilations() {
  std::vector<std::pair<Values, int64_t>> pairs;
  for (const Values kind : test::kAllValues) {
    for (const int64_t dilation : {int64_t{1}, int64_t{3}, kMaxConvDilation}) pairs.emplace_back(kind, dilation);
  }
  return pairs;
}

FT_OP_CASE(kCausalConv, causal_conv_equals_reference_however_the_tokens_are_cut) {
  in_both_flush_modes<CausalConvFn>(variant, reference_kernel, [](CausalConvFn fn, CausalConvFn reference) {
    Random random(kSeed);
    for (const int64_t channels : kWidths) {
      for (const int64_t taps : {int64_t{1}, int64_t{2}, int64_t{4}, kMaxConvTaps}) {
        for (const auto& [kind, dilation] : kinds_and_dilations()) {
          const int64_t tokens = 2 * dilation + 9, stride = channels + 2, before = (taps - 1) * dilation;
          Guarded<float> expected(tokens * stride), got(tokens * stride), w(taps * stride);
          Guarded<float> old_history(before * stride), history(before * stride);
          fill(random, kind, expected.data(), expected.size());
          fill(random, kind, w.data(), w.size());
          fill(random, kind, history.data(), history.size());
          std::copy_n(expected.data(), expected.size(), got.data());
          std::copy_n(history.data(), history.size(), old_history.data());
          reference({expected.data(), stride, tokens, channels, taps, w.data(), stride, old_history.data(), stride,
                     dilation});
          for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 0}, {1, 2}, {3, tokens - 3}}) {
            fn({got.data() + first * stride, stride, count, channels, taps, w.data(), stride, history.data(), stride,
                dilation});
          }
          REQUIRE(first_difference(expected.data(), got.data(), got.size()) == -1);
          REQUIRE(first_difference(old_history.data(), history.data(), history.size()) == -1);
          REQUIRE((got.intact() && w.intact() && history.intact()));
        }
      }
    }
  });
}

FT_OP_CASE(kL2Norm, l2_norm_equals_reference) {
  in_both_flush_modes<L2NormFn>(variant, reference_kernel, [](L2NormFn fn, L2NormFn reference) {
    Random random(kSeed);
    for (const int64_t cols : kWidths) {
      for (const Values kind : test::kAllValues) {
        const int64_t rows = 3, stride = cols + 5;
        Guarded<float> expected(rows * stride), got(rows * stride);
        fill(random, kind, expected.data(), expected.size());
        std::copy_n(expected.data(), expected.size(), got.data());
        reference({expected.data(), stride, rows, cols, 0.125f});
        fn({got.data(), stride, rows, cols, 0.125f});
        REQUIRE(first_difference(expected.data(), got.data(), got.size()) == -1);
        REQUIRE(got.intact());
      }
    }
  });
}

FT_OP_CASE(kDeltaGates, delta_gates_equal_reference) {
  in_both_flush_modes<DeltaGatesFn>(variant, reference_kernel, [](DeltaGatesFn fn, DeltaGatesFn reference) {
    Random random(kSeed);
    for (const int64_t heads : kWidths) {
      for (const Values kind : test::kAllValues) {
        Guarded<float> write(heads), decay(heads), log(heads), bias(heads), old_write(heads), old_decay(heads);
        fill(random, kind, write.data(), heads);
        fill(random, kind, decay.data(), heads);
        fill(random, kind, log.data(), heads);
        fill(random, kind, bias.data(), heads);
        for (int64_t i = 0; i < heads; i += 3) {  // the whole range of exp
          write[i] = static_cast<float>(40.0 * random.normal());
          decay[i] = static_cast<float>(40.0 * random.normal());
          log[i] = static_cast<float>(3.0 * random.normal());
        }
        std::copy_n(write.data(), heads, old_write.data());
        std::copy_n(decay.data(), heads, old_decay.data());
        reference({old_write.data(), old_decay.data(), log.data(), bias.data(), heads});
        fn({write.data(), decay.data(), log.data(), bias.data(), heads});
        REQUIRE(first_difference(old_write.data(), write.data(), heads) == -1);
        REQUIRE(first_difference(old_decay.data(), decay.data(), heads) == -1);
        REQUIRE((write.intact() && decay.intact() && log.intact() && bias.intact()));
      }
    }
  });
}

// A head with its tokens, and what a kernel makes of it.
struct Head {
  static constexpr int64_t kTokens = 5;
  int64_t key_dim = 0, value_dim = 0;
  int64_t stride = 2 * key_dim + value_dim + 1;
  Guarded<float> x{kTokens * stride}, gates{kTokens * 2}, state{delta_state_floats(key_dim, value_dim)};
  Guarded<float> out{kTokens * (value_dim + 3)};

  DeltaRuleArgs args(int64_t first, int64_t tokens) {
    const float* row = x.data() + first * stride;
    return {row,
            row + key_dim,
            row + 2 * key_dim,
            stride,
            gates.data() + 2 * first,
            gates.data() + 2 * first + 1,
            2,
            tokens,
            key_dim,
            value_dim,
            state.data(),
            out.data() + first * (value_dim + 3),
            value_dim + 3};
  }
  // Columns of the value alone: (key_dim, value_dim).
  std::vector<float> columns() {
    std::vector<float> all;
    for (int64_t i = 0; i < key_dim; ++i) {
      for (int64_t j = 0; j < value_dim; ++j) all.push_back(state[(j / 16 * key_dim + i) * 16 + j % 16]);
    }
    return all;
  }
};

void check_rule(DeltaRuleFn fn, DeltaRuleFn reference, int64_t key_dim, int64_t value_dim, Values kind,
                Random& random) {
  Head expected{key_dim, value_dim}, got{key_dim, value_dim};
  fill(random, kind, expected.x.data(), expected.x.size());
  fill(random, kind, expected.gates.data(), expected.gates.size());
  if (kind == Values::kNormal) {
    for (int64_t i = 0; i < expected.gates.size(); ++i) expected.gates[i] = static_cast<float>(random.uniform());
  }
  fill(random, kind, expected.state.data(), expected.state.size());
  std::copy_n(expected.x.data(), expected.x.size(), got.x.data());
  std::copy_n(expected.gates.data(), expected.gates.size(), got.gates.data());
  std::copy_n(expected.state.data(), expected.state.size(), got.state.data());
  reference(expected.args(0, Head::kTokens));
  fn(got.args(0, 1));
  fn(got.args(1, 0));
  fn(got.args(1, 4));
  REQUIRE(first_difference(expected.out.data(), got.out.data(), got.out.size()) == -1);
  const std::vector<float> wanted = expected.columns(), have = got.columns();
  REQUIRE(first_difference(wanted.data(), have.data(), static_cast<int64_t>(have.size())) == -1);
  REQUIRE((got.x.intact() && got.gates.intact() && got.state.intact() && got.out.intact()));
}

FT_OP_CASE(kDeltaRule, delta_rule_equals_reference_however_the_tokens_are_cut) {
  in_both_flush_modes<DeltaRuleFn>(variant, reference_kernel, [](DeltaRuleFn fn, DeltaRuleFn reference) {
    Random random(kSeed);
    for (const int64_t key_dim : {1, 2, 3, 4, 5, 18, 64}) {
      for (const int64_t value_dim : kWidths) {
        for (const Values kind : test::kAllValues) {
          CAPTURE(key_dim);
          CAPTURE(value_dim);
          check_rule(fn, reference, key_dim, value_dim, kind, random);
        }
      }
    }
    check_rule(fn, reference, kMaxDeltaKeyDim, kMaxDeltaValueDim, Values::kNormal, random);
  });
}

}  // namespace
