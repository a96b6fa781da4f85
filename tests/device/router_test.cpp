// Checked against: the CPU's router_top_k and router_scores, bit for bit: ties, NaN, infinities, up to the bounds of
// experts and k.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/ops.h"
#include "kernels/ops/compressed.h"
#include "kernels/ops/rows.h"
#include "tests/device/lists.h"

namespace ft::device_test {
namespace {

constexpr int64_t kTokens = 3;
constexpr int64_t kGap = 2;

struct Expected {
  HostArray<int32_t> ids;
  HostArray<float> weights;
};

Expected on_the_cpu(Context& context, const HostArray<float>& logits, int64_t experts, int k, bool renormalize,
                    const float* expert_scale) {
  Expected expected{HostArray<int32_t>(kTokens * k), HostArray<float>(kTokens * k)};
  HostArray<float> scratch(experts);
  for (int64_t t = 0; t < kTokens; ++t) {
    context.cpu.router_top_k({logits.data() + t * (experts + kGap), experts, k, renormalize, scratch.data(),
                              expected.ids.data() + t * k, expected.weights.data() + t * k, expert_scale});
  }
  return expected;
}

// Without forced ids, with a flag that is 0, and with one that is 1.
void check_router(Context& context, const std::string& group, const HostArray<float>& logits, int64_t experts, int k,
                  bool renormalize, Random& random) {
  const HostArray<float> scale = random_floats(random, test::Values::kNormal, experts);
  const bool scales = random.below(3) == 0;
  const Expected expected = on_the_cpu(context, logits, experts, k, renormalize, scales ? scale.data() : nullptr);
  HostArray<int32_t> forced_ids(kTokens * k);
  for (int64_t i = 0; i < forced_ids.size(); ++i) {
    forced_ids[i] = static_cast<int32_t>(random.below(static_cast<uint64_t>(experts) + 1)) - 1;
  }
  const DeviceArray<float> device_logits(context, logits), device_scale(context, scale);
  const DeviceArray<int32_t> device_forced(context, forced_ids);
  const DeviceArray<int32_t> flags(context, std::vector<int32_t>{0, 1});
  const std::string what = "experts " + std::to_string(experts) + " k " + std::to_string(k);
  for (int form = 0; form < 3; ++form) {
    DeviceArray<int32_t> ids(context, kTokens * k), record(context, kTokens * k);
    DeviceArray<float> weights(context, kTokens * k);
    cuda::RouterArgs args;
    args.logits = device_logits.data();
    args.logits_stride = experts + kGap;
    args.tokens = kTokens;
    args.experts = experts;
    args.k = k;
    args.renormalize = renormalize;
    args.forced = form == 0 ? nullptr : flags.data() + (form - 1);
    args.forced_ids = form == 0 ? nullptr : device_forced.data();
    args.ids = ids.data();
    args.weights = weights.data();
    args.record = form == 0 ? nullptr : record.data();
    args.expert_scale = scales ? device_scale.data() : nullptr;
    cuda::router_top_k(args, context.stream.handle());
    const HostArray<int32_t>& expected_ids = form == 2 ? forced_ids : expected.ids;
    const std::string name = group + (form == 2 ? " forced" : "");
    check_same(context, name, what + " ids", ids, expected_ids);
    check_same(context, name, what + " weights", weights, expected.weights);
    if (form > 0) check_same(context, name, what + " record", record, expected_ids);
  }
}

// Chosen by score, with and without a bias of the choice, or by the token's id.
void check_scores(Context& context, const std::string& group, const HostArray<float>& logits, int64_t experts, int k,
                  Random& random) {
  constexpr int64_t kVocab = 11;
  const HostArray<float> bias = random_floats(random, test::Values::kNormal, experts);
  HostArray<int32_t> table(kVocab * k), ids(kTokens);
  for (int64_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<int32_t>(random.below(static_cast<uint64_t>(experts)));
  }
  for (int64_t t = 0; t < kTokens; ++t) ids[t] = static_cast<int32_t>(random.below(kVocab));
  const DeviceArray<float> device_logits(context, logits), device_bias(context, bias);
  const DeviceArray<int32_t> device_table(context, table), device_ids(context, ids);
  for (int form = 0; form < 3; ++form) {
    Expected expected{HostArray<int32_t>(kTokens * k), HostArray<float>(kTokens * k)};
    HostArray<float> scratch(experts);
    for (int64_t t = 0; t < kTokens; ++t) {
      context.cpu.router_scores({logits.data() + t * (experts + kGap), experts, k, form == 1 ? bias.data() : nullptr,
                                 form == 2 ? table.data() + ids[t] * k : nullptr, 2.5f, scratch.data(),
                                 expected.ids.data() + t * k, expected.weights.data() + t * k});
    }
    DeviceArray<int32_t> chosen(context, kTokens * k);
    DeviceArray<float> weights(context, kTokens * k);
    cuda::RouterArgs args;
    args.logits = device_logits.data();
    args.logits_stride = experts + kGap;
    args.tokens = kTokens;
    args.experts = experts;
    args.k = k;
    args.by_score = true;
    args.scale = 2.5f;
    if (form == 1) args.choice_bias = device_bias.data();
    if (form == 2) args.given = device_table.data(), args.token_ids = device_ids.data();
    args.ids = chosen.data();
    args.weights = weights.data();
    cuda::router_top_k(args, context.stream.handle());
    const std::string what = "experts " + std::to_string(experts) + " k " + std::to_string(k);
    check_same(context, group, what + " ids", chosen, expected.ids);
    check_same(context, group, what + " weights", weights, expected.weights);
  }
}

}  // namespace

void test_router(Context& context) {
  Random random(1234);
  for (const int64_t experts : {1, 2, 15, 16, 17, 31, 32, 33, 60, 64, 100, 128, 256, 384, 512, 4096}) {
    for (const int64_t wanted : {1, 2, 3, 4, 5, 6, 7, 8, 64}) {
      if (wanted > 1 && wanted < 8 && experts != 60 && experts != 128) continue;  // every k for two sizes
      const auto k = static_cast<int>(std::min(wanted, experts));
      const int64_t count = kTokens * (experts + kGap);
      const bool renormalize = random.below(2) == 0;
      for (const test::Values kind : test::kAllValues) {
        const char* names[] = {"normal", "wide", "tiny", "special"};
        const HostArray<float> logits = random_floats(random, kind, count);
        const std::string name = names[static_cast<int>(kind)];
        check_router(context, "router " + name, logits, experts, k, renormalize, random);
        check_scores(context, "router by score " + name, logits, experts, k, random);
      }
      HostArray<float> logits(count);
      for (int64_t i = 0; i < count; ++i) logits[i] = static_cast<float>(random.below(4));
      check_router(context, "router ties", logits, experts, k, renormalize, random);
      for (int64_t i = 0; i < count; ++i) logits[i] = random.below(2) == 0 ? 0.0f : -0.0f;
      check_router(context, "router ties", logits, experts, k, renormalize, random);
      for (int64_t i = 0; i < count; ++i) logits[i] = static_cast<float>(200.0 * random.normal());  // most p are least
      check_router(context, "router far apart", logits, experts, k, renormalize, random);
      std::fill_n(logits.data(), count, -INFINITY);
      check_router(context, "router -inf", logits, experts, k, renormalize, random);
      logits[experts - 1] = 2.0f;
      check_router(context, "router -inf", logits, experts, k, renormalize, random);
      logits[experts / 2] = NAN;
      check_router(context, "router NaN", logits, experts, k, renormalize, random);
      logits[experts / 2] = INFINITY;
      check_router(context, "router +inf", logits, experts, k, renormalize, random);
    }
  }
}

}  // namespace ft::device_test
