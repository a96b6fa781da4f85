// Checked against: the scalar reference, bit for bit, for every variant that the registry lists and this CPU can run.
// (The reference itself is checked in rows_reference_test.cpp.)
#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>

#include "kernels/base/bf16.h"
#include "tests/kernels/suite.h"

namespace {

using namespace ft;
using test::fill;
using test::first_difference;
using test::Guarded;
using test::in_both_flush_modes;
using test::Values;

constexpr uint64_t kSeed = 20240917;

const std::vector<int64_t>& widths() {
  static const std::vector<int64_t> all = [] {
    std::vector<int64_t> list;
    for (int64_t i = 0; i <= 40; ++i) list.push_back(i);
    list.insert(list.end(), {63, 64, 65, 80, 127, 128, 129, 2048});
    return list;
  }();
  return all;
}

FT_OP_CASE(kRmsnorm, rmsnorm_equals_reference_in_place_too) {
  in_both_flush_modes<RmsnormFn>(variant, reference_kernel, [](RmsnormFn fn, RmsnormFn reference) {
    Random random(kSeed);
    for (const int64_t cols : widths()) {
      for (const Values kind : test::kAllValues) {
        const int64_t tokens = 2, stride = cols + 3;
        Guarded<float> x(tokens * stride), expected(tokens * stride), got(tokens * stride), w(cols);
        fill(random, kind, x.data(), x.size());
        fill(random, Values::kNormal, w.data(), cols);
        RmsnormArgs args{x.data(), stride, expected.data(), stride, tokens, cols, w.data(), 1e-6f};
        reference(args);
        args.y = got.data();
        fn(args);
        REQUIRE(first_difference(expected.data(), got.data(), got.size()) == -1);
        std::copy_n(x.data(), x.size(), got.data());
        std::copy_n(x.data(), x.size(), expected.data());
        args.x = expected.data(), args.y = expected.data();
        reference(args);
        args.x = got.data(), args.y = got.data();
        fn(args);
        REQUIRE(first_difference(expected.data(), got.data(), got.size()) == -1);
        REQUIRE((got.intact() && x.intact() && w.intact()));
      }
    }
  });
}

FT_OP_CASE(kHeadNormRope, head_norm_rope_equals_reference) {
  in_both_flush_modes<HeadNormRopeFn>(variant, reference_kernel, [](HeadNormRopeFn fn, HeadNormRopeFn reference) {
    Random random(kSeed);
    for (const int64_t head_dim : widths()) {
      for (const int64_t half : {int64_t{0}, head_dim / 4, head_dim / 2}) {
        for (const Values kind : test::kAllValues) {
          const int64_t heads = 3;
          Guarded<float> expected(heads * head_dim), got(heads * head_dim), w(head_dim), cos(half), sin(half);
          fill(random, kind, expected.data(), expected.size());
          fill(random, Values::kNormal, w.data(), head_dim);
          fill(random, kind, cos.data(), half);
          fill(random, kind, sin.data(), half);
          std::copy_n(expected.data(), expected.size(), got.data());
          HeadNormRopeArgs args{expected.data(), heads,      head_dim,   random.below(4) == 0 ? nullptr : w.data(),
                                1e-6f,           cos.data(), sin.data(), half};
          reference(args);
          args.x = got.data();
          fn(args);
          REQUIRE(first_difference(expected.data(), got.data(), got.size()) == -1);
          REQUIRE((got.intact() && w.intact() && cos.intact() && sin.intact()));
        }
      }
    }
  });
}

FT_OP_CASE(kGlu, glu_equals_reference_in_place_too) {
  in_both_flush_modes<GluFn>(variant, reference_kernel, [](GluFn fn, GluFn reference) {
    Random random(kSeed);
    for (const Glu how : {Glu{GluKind::kSilu, 0}, Glu{GluKind::kSiluClamped, 1.5f}, Glu{GluKind::kGeluTanh, 0},
                          Glu{GluKind::kOss, 7}}) {
      for (const int64_t count : widths()) {
        for (const Values kind : test::kAllValues) {
          Guarded<float> gate(count), up(count), expected(count), got(count);
          fill(random, kind, gate.data(), count);
          fill(random, kind, up.data(), count);
          for (int64_t i = 0; i < count; i += 3)
            gate[i] = static_cast<float>(40.0 * random.normal());  // exp's whole range
          for (int64_t i = 1; i < count; i += 3)
            up[i] = static_cast<float>(5.0 * random.normal());  // both sides of the limits
          reference({gate.data(), up.data(), expected.data(), count, how});
          fn({gate.data(), up.data(), got.data(), count, how});
          REQUIRE(first_difference(expected.data(), got.data(), count) == -1);
          fn({gate.data(), up.data(), gate.data(), count, how});
          REQUIRE(first_difference(expected.data(), gate.data(), count) == -1);
          REQUIRE((got.intact() && gate.intact() && up.intact()));
        }
      }
    }
  });
}

FT_OP_CASE(kAdd, add_equals_reference) {
  in_both_flush_modes<AddFn>(variant, reference_kernel, [](AddFn fn, AddFn reference) {
    Random random(kSeed);
    for (const int64_t count : widths()) {
      for (const Values kind : test::kAllValues) {
        Guarded<float> y(count), expected(count), got(count);
        fill(random, kind, y.data(), count);
        fill(random, kind, got.data(), count);
        std::copy_n(got.data(), count, expected.data());
        const float scale = count % 2 == 0 ? 1.0f : static_cast<float>(random.normal());
        reference({expected.data(), y.data(), count, scale});
        fn({got.data(), y.data(), count, scale});
        REQUIRE(first_difference(expected.data(), got.data(), count) == -1);
        REQUIRE((got.intact() && y.intact()));
      }
    }
  });
}

FT_OP_CASE(kSoftcap, softcap_equals_reference) {
  in_both_flush_modes<SoftcapFn>(variant, reference_kernel, [](SoftcapFn fn, SoftcapFn reference) {
    Random random(kSeed);
    for (const float cap : {30.0f, 1.0f, 0.037f, 1e6f}) {
      for (const int64_t count : widths()) {
        for (const Values kind : test::kAllValues) {
          Guarded<float> expected(count), got(count);
          fill(random, kind, got.data(), count);
          for (int64_t i = 0; i < count; i += 3) got[i] = cap * static_cast<float>(2 * random.normal());
          std::copy_n(got.data(), count, expected.data());
          reference({expected.data(), count, cap});
          fn({got.data(), count, cap});
          REQUIRE(first_difference(expected.data(), got.data(), count) == -1);
          REQUIRE(got.intact());
        }
      }
    }
  });
}

FT_OP_CASE(kMerge, merge_equals_reference) {
  in_both_flush_modes<MergeFn>(variant, reference_kernel, [](MergeFn fn, MergeFn reference) {
    Random random(kSeed);
    for (const int64_t cols : widths()) {
      for (const int64_t slots : {0, 1, 2, 8, 11}) {
        for (const Values kind : test::kAllValues) {
          Guarded<float> y(slots * cols), weight(slots), expected(cols), got(cols);
          fill(random, kind, y.data(), y.size());
          fill(random, kind, weight.data(), slots);
          fill(random, Values::kNormal, got.data(), cols);  // what stood there must not count
          std::vector<const float*> rows;
          for (int64_t s = 0; s < slots; ++s) rows.push_back(y.data() + s * cols);
          reference({rows.data(), weight.data(), slots, cols, expected.data()});
          fn({rows.data(), weight.data(), slots, cols, got.data()});
          REQUIRE(first_difference(expected.data(), got.data(), cols) == -1);
          REQUIRE((got.intact() && y.intact()));
        }
      }
    }
  });
}

void check_router(RouterTopKFn fn, RouterTopKFn reference, const float* logits, int64_t experts, int64_t k,
                  bool renormalize, const float* expert_scale = nullptr) {
  Guarded<float> expected_p(experts), got_p(experts), expected(k), got(k);
  Guarded<int32_t> expected_ids(k), ids(k);
  RouterTopKArgs args{logits,          experts,     k, renormalize, expected_p.data(), expected_ids.data(),
                      expected.data(), expert_scale};
  reference(args);
  args.scratch = got_p.data(), args.ids = ids.data(), args.weights = got.data();
  fn(args);
  REQUIRE(first_difference(expected_p.data(), got_p.data(), experts) == -1);
  REQUIRE(first_difference(expected.data(), got.data(), k) == -1);
  REQUIRE(std::equal(ids.data(), ids.data() + k, expected_ids.data()));
  REQUIRE((got_p.intact() && got.intact() && ids.intact()));
}

FT_OP_CASE(kRouterTopK, router_top_k_equals_reference_ties_and_nan_included) {
  in_both_flush_modes<RouterTopKFn>(variant, reference_kernel, [](RouterTopKFn fn, RouterTopKFn reference) {
    Random random(kSeed);
    for (const int64_t experts : {1, 2, 15, 16, 17, 60, 64, 100, 128, 256, 512, 4096}) {
      for (const int64_t wanted : {1, 2, 8, 64}) {
        const int64_t k = std::min(wanted, experts);
        for (const Values kind : test::kAllValues) {
          Guarded<float> logits(experts);
          fill(random, kind, logits.data(), experts);
          check_router(fn, reference, logits.data(), experts, k, random.below(2) == 0);
          Guarded<float> scale(experts);
          fill(random, kind, scale.data(), experts);
          check_router(fn, reference, logits.data(), experts, k, random.below(2) == 0, scale.data());
        }
        Guarded<float> coarse(experts);  // few distinct values: ties everywhere
        for (int64_t i = 0; i < experts; ++i) coarse[i] = static_cast<float>(random.below(4));
        check_router(fn, reference, coarse.data(), experts, k, true);
        std::fill_n(coarse.data(), experts, -INFINITY);
        check_router(fn, reference, coarse.data(), experts, k, true);
        coarse[experts - 1] = 2.0f;
        check_router(fn, reference, coarse.data(), experts, k, true);
      }
    }
  });
}

struct AttentionCase {
  int64_t head_dim, heads, begin, length;
  Values kind;
};

void check_attention(AttentionFn fn, AttentionFn reference, const AttentionCase& c, Random& random) {
  INFO("head_dim ", c.head_dim, " heads ", c.heads, " begin ", c.begin, " length ", c.length, " values ",
       static_cast<int>(c.kind));
  const int64_t stride = c.head_dim + static_cast<int64_t>(random.below(3));
  Guarded<float> q(c.heads * c.head_dim), expected(q.size()), got(q.size());
  Guarded<bf16> k(c.length * stride), v(c.length * stride);
  fill(random, c.kind == Values::kWide ? Values::kNormal : c.kind, q.data(), q.size());
  for (int64_t i = 0; i < q.size(); ++i) q[i] = round_to_bf16(q[i]);
  for (int64_t i = 0; i < k.size(); ++i) {
    const bool visible = i / stride >= c.begin;  // what is not visible is NaN: reading it would show
    // One special key value makes the whole head NaN, so most keys of such a case stay ordinary.
    const Values kind = c.kind == Values::kSpecial && random.below(40) != 0 ? Values::kNormal : c.kind;
    k[i] = visible ? to_bf16(random_value(random, kind)) : to_bf16(NAN);
    v[i] = visible ? to_bf16(random_value(random, c.kind)) : to_bf16(NAN);
  }
  Guarded<float> sinks(c.heads);
  fill(random, c.kind, sinks.data(), sinks.size());
  AttentionArgs args{q.data(), k.data(), v.data(), stride, c.begin, c.length, c.head_dim, 0.3f, got.data(), c.heads};
  for (const float* given : {static_cast<const float*>(sinks.data()), static_cast<const float*>(nullptr)}) {
    args.sinks = given;
    args.out = got.data();
    fn(args);
    args.out = expected.data();
    reference(args);
    REQUIRE(first_difference(expected.data(), got.data(), got.size()) == -1);
    REQUIRE((got.intact() && q.intact() && k.intact() && v.intact() && sinks.intact()));
  }
  args.out = q.data();  // in place
  fn(args);
  REQUIRE(first_difference(expected.data(), q.data(), q.size()) == -1);
}

FT_OP_CASE(kAttention, attention_equals_reference_over_head_sizes_lengths_and_windows) {
  in_both_flush_modes<AttentionFn>(variant, reference_kernel, [](AttentionFn fn, AttentionFn reference) {
    Random random(kSeed);
    for (int64_t head_dim = 1; head_dim <= 66; ++head_dim) {
      check_attention(fn, reference, {head_dim, 1, 0, 67, Values::kNormal}, random);
    }
    for (const int64_t head_dim : {32, 64, 80, 96, 128, 192, 256, 511, 512}) {
      for (const int64_t heads : {1, 2, 7, 8, 19}) {
        check_attention(fn, reference, {head_dim, heads, 1, 70, Values::kNormal}, random);
      }
    }
    for (const int64_t length : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000}) {
      for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, length - 1}) {
        if (begin < 0 || begin > length) continue;
        for (const Values kind : test::kAllValues) check_attention(fn, reference, {64, 2, begin, length, kind}, random);
      }
    }
    // Every place in a group where a context may begin and end, then several groups.
    constexpr int64_t kGroup = kAttentionGroup * kAttentionSplit;
    for (int64_t splits = 1; splits <= kAttentionGroup; ++splits) {
      for (int64_t from = 0; from < splits; ++from) {
        check_attention(fn, reference, {8, 1, from * kAttentionSplit, splits * kAttentionSplit, Values::kTiny}, random);
        check_attention(fn, reference,
                        {8, 2, from * kAttentionSplit + 5, splits * kAttentionSplit - 7, Values::kNormal}, random);
      }
    }
    for (const int64_t length : {kGroup - 1, kGroup, kGroup + 1, 2 * kGroup, 4 * kGroup + 65}) {
      for (const int64_t begin : {int64_t{0}, int64_t{700}, kGroup - 1, kGroup, length - 1}) {
        if (begin < length) check_attention(fn, reference, {16, 8, begin, length, Values::kNormal}, random);
      }
    }
  });
}

// Positions in a line, and the same in a ring that has just room for them: what is not visible is NaN.
FT_OP_CASE(kAttention, attention_in_a_ring_is_that_of_the_same_rows_in_a_line) {
  in_both_flush_modes<AttentionFn>(variant, reference_kernel, [](AttentionFn fn, AttentionFn) {
    Random random(kSeed);
    for (const int64_t head_dim : {30, 64}) {
      for (const int64_t ring : {kAttentionSplit, 3 * kAttentionSplit, 17 * kAttentionSplit}) {
        for (const int64_t length : {int64_t{1}, ring - 1, ring, ring + 1, 3 * ring + 5, 5 * ring + 63}) {
          for (const int64_t visible : {int64_t{1}, int64_t{40}, ring - kAttentionSplit + 1}) {
            const int64_t heads = 3, begin = std::max<int64_t>(0, length - visible);
            Guarded<float> q(heads * head_dim), in_line(q.size()), in_ring(q.size());
            Guarded<bf16> k(length * head_dim), v(k.size()), ring_k(ring * head_dim), ring_v(ring_k.size());
            fill(random, Values::kNormal, q.data(), q.size());
            for (int64_t i = 0; i < q.size(); ++i) q[i] = round_to_bf16(q[i]);
            for (int64_t i = 0; i < ring_k.size(); ++i) ring_k[i] = ring_v[i] = to_bf16(NAN);
            for (int64_t i = 0; i < k.size(); ++i) {
              k[i] = to_bf16(random_value(random, Values::kNormal));
              v[i] = to_bf16(random_value(random, Values::kNormal));
              const int64_t t = i / head_dim;
              if (t < begin) continue;
              ring_k[t % ring * head_dim + i % head_dim] = k[i];
              ring_v[t % ring * head_dim + i % head_dim] = v[i];
            }
            AttentionArgs args{q.data(), k.data(), v.data(), head_dim,       begin,
                               length,   head_dim, 0.125f,   in_line.data(), heads};
            fn(args);
            args.k = ring_k.data(), args.v = ring_v.data(), args.out = in_ring.data(), args.ring = ring;
            fn(args);
            REQUIRE(first_difference(in_line.data(), in_ring.data(), in_ring.size()) == -1);
            REQUIRE((in_ring.intact() && ring_k.intact() && ring_v.intact()));
          }
        }
      }
    }
  });
}

FT_OP_CASE(kAttention, attention_of_hidden_positions_and_of_heads_apart_is_the_same) {
  in_both_flush_modes<AttentionFn>(variant, reference_kernel, [](AttentionFn fn, AttentionFn) {
    Random random(kSeed);
    const int64_t head_dim = 64, heads = 5, begin = 70, length = 333;
    Guarded<float> q(heads * head_dim), together(q.size()), alone(q.size());
    const int64_t lead = kAttentionGroup * kAttentionSplit;  // rows before position 0, and after the last one
    Guarded<bf16> k((lead + length + lead) * head_dim), v(k.size());
    fill(random, Values::kNormal, q.data(), q.size());
    for (int64_t i = 0; i < k.size(); ++i) {
      k[i] = to_bf16(random_value(random, Values::kNormal));
      v[i] = to_bf16(random_value(random, Values::kNormal));
    }
    Guarded<float> sinks(heads);
    fill(random, Values::kNormal, sinks.data(), heads);
    AttentionArgs args{q.data(),
                       k.data() + lead * head_dim,
                       v.data() + lead * head_dim,
                       head_dim,
                       begin,
                       length,
                       head_dim,
                       0.125f,
                       together.data(),
                       heads,
                       sinks.data()};
    fn(args);
    for (int64_t i = 0; i < k.size(); ++i) {
      const int64_t t = i / head_dim - lead;
      if (t < begin || t >= length) k[i] = v[i] = to_bf16(NAN);
    }
    args.heads = 1;
    for (int64_t h = 0; h < heads; ++h) {
      args.q = q.data() + h * head_dim;
      args.out = alone.data() + h * head_dim;
      args.sinks = sinks.data() + h;
      fn(args);
    }
    REQUIRE(first_difference(together.data(), alone.data(), alone.size()) == -1);
    // Moved by a whole group, cache and range together: the same bits.
    args.k = k.data();
    args.v = v.data();
    args.begin += lead;
    args.length += lead;
    args.q = q.data(), args.out = alone.data(), args.heads = heads, args.sinks = sinks.data();
    fn(args);
    REQUIRE(first_difference(together.data(), alone.data(), alone.size()) == -1);
  });
}

}  // namespace
