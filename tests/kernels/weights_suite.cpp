// pack_activations, matvec and gate_up: every variant against the scalar reference, bit by bit.
#include <cstring>
#include <memory>
#include <type_traits>

#include "tests/kernels/raw_matrix.h"

namespace ft::test {
namespace {

// What the operands look like. In `edge` products and sums land on both sides of 2^-126 (with cancellation), so every
// flush and the rounding just below the edge are met; `special` has zeros, denormals, infinities and NaN.
struct Mix {
  const char* name;
  Exponents weights;
  Exponents activations;
};
constexpr Mix kMixes[] = {
    {"plain", {-4, 4, 0}, {-4, 4, 0}},      {"special", {-4, 4, 400}, {-4, 4, 400}},
    {"edge", {-66, -58, 0}, {-66, -58, 0}}, {"edge of activations", {-7, 0, 0}, {-126, -117, 50}},
    {"large", {60, 66, 0}, {56, 63, 0}},
};

constexpr int64_t kMaxTokens = 9;

// Ends of blocks of 256 and 512 k, and in them of every number of lanes that is special to a kernel: 1, 4, 8, 9, 15,
// 16. The largest is too much for activations that are prepared (kernels/cpu/tile_dot.inc.h) from 5 tokens on.
std::vector<int64_t> cols_to_try(FormatId format) {
  return cols_of(format, {1,   2,   15,  16,  17,  31,  32,  63,  64,  127, 128, 129, 160, 240,  255,  256,
                          257, 272, 288, 300, 384, 400, 480, 512, 544, 640, 768, 800, 992, 1024, 1056, 4096});
}

struct Activations {
  std::vector<std::vector<uint32_t>> rows;
  std::vector<const uint32_t*> pointers;
};
Activations random_activations(int64_t tokens, int64_t cols, const Exponents& exponents, Random& random) {
  Activations result;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> x(static_cast<size_t>(cols));
    for (float& value : x) value = random_with(random, exponents);
    result.rows.push_back(packed_row(x));
    // What is read past a row meets weights that are +0 or absent: NaN shows it.
    result.rows.back().insert(result.rows.back().end(), 128, 0x7fc07fc0u);
  }
  for (const auto& row : result.rows) result.pointers.push_back(row.data());
  return result;
}

// No kernel's result, so that what was not written shows.
template <class T>
constexpr T kPoison = static_cast<T>(0x5a5a5a);

// (tokens) guarded output rows and the pointers a kernel takes.
template <class T>
struct Outputs {
  Outputs(int64_t tokens, int64_t count) {
    for (int64_t t = 0; t < tokens; ++t) {
      rows.push_back(std::make_unique<Guarded<T>>(count));
      for (int64_t i = 0; i < count; ++i) (*rows.back())[i] = kPoison<T>;
      pointers.push_back(rows.back()->data());
    }
  }
  std::vector<std::unique_ptr<Guarded<T>>> rows;
  std::vector<T*> pointers;
};

template <class T>
std::string difference_of_rows(Guarded<T>& got, Guarded<T>& expected) {
  const auto size = static_cast<size_t>(expected.size());
  if constexpr (std::is_same_v<T, float>) {
    return difference({got.data(), size}, {expected.data(), size});
  } else {
    return difference_of_pairs({got.data(), size}, {expected.data(), size});
  }
}

template <class T>
void check_equal(const Outputs<T>& got, const Outputs<T>& expected) {
  for (size_t t = 0; t < got.rows.size(); ++t) {
    CAPTURE(t);
    CHECK(difference_of_rows(*got.rows[t], *expected.rows[t]) == "");
    CHECK(got.rows[t]->intact());
  }
}

// Runs fn(begin, end) over all of [0, tiles) in one call, or in two with an empty one between.
template <class F>
void run_range(int64_t tiles, int64_t split, F&& fn) {
  if (split < 0) {
    fn(0, tiles);
  } else {
    fn(0, split);
    fn(split, split);
    fn(split, tiles);
  }
}

std::vector<float> random_biases(bool biased, int64_t rows, const Exponents& exponents, Random& random) {
  std::vector<float> biases(biased ? static_cast<size_t>(rows) : 0);
  for (float& value : biases) value = random_with(random, exponents);
  return biases;
}

void check_matvec(const KernelDesc& variant, const KernelDesc& reference_kernel, int64_t rows, int64_t cols,
                  int64_t tokens, const Mix& mix, uint64_t seed) {
  INFO("rows ", rows, " cols ", cols, " tokens ", tokens, " mix ", mix.name, " seed ", seed);
  Random random(seed);
  const Packed w(random_matrix(static_cast<FormatId>(variant.format), rows, cols, mix.weights, random));
  const Activations x = random_activations(tokens, cols, mix.activations, random);
  PackedMatrix view = w.view();
  const auto bias = random_biases(seed % 3 == 0, rows, mix.weights, random);
  if (!bias.empty()) view.bias = bias.data();
  Outputs<float> expected(tokens, rows);
  Outputs<float> got(tokens, rows);
  const auto call = [&](const KernelDesc& kernel, const Outputs<float>& y) {
    return [&, fn = std::get<MatvecFn>(kernel.fn)](int64_t begin, int64_t end) {
      fn({&view, x.pointers.data(), tokens, begin, end, y.pointers.data()});
    };
  };
  const int64_t tiles = view.layout.row_tiles;
  run_range(tiles, -1, call(reference_kernel, expected));
  const int64_t split =
      random.below(2) == 0 ? -1 : static_cast<int64_t>(random.below(static_cast<uint64_t>(tiles + 1)));
  run_range(tiles, split, call(variant, got));
  check_equal(got, expected);
}

FT_OP_CASE(kMatvec, matvec_equals_reference) {
  for (const Mix& mix : kMixes) {
    uint64_t seed = 1;
    for (const int64_t cols : cols_to_try(static_cast<FormatId>(variant.format))) {
      for (const int64_t rows : {1, 3, 4, 9}) {
        check_matvec(variant, reference_kernel, rows, cols, 1 + static_cast<int64_t>(seed % kMaxTokens), mix, seed);
        ++seed;
      }
    }
  }
  check_matvec(variant, reference_kernel, 132, 288, 2, kMixes[0], 7);  // two fp8 scale blocks of rows
}

FT_OP_CASE(kMatvec, matvec_writes_no_row_outside_its_range) {
  const Packed w(zero_matrix(static_cast<FormatId>(variant.format), 10, 32));
  const PackedMatrix view = w.view();
  const auto x = packed_row(std::vector<float>(32, 1.0f));
  const uint32_t* x_pointer = x.data();
  Outputs<float> y(1, 10);
  std::get<MatvecFn>(variant.fn)({&view, &x_pointer, 1, 1, 2, y.pointers.data()});
  for (int64_t row = 0; row < 10; ++row) CHECK(same((*y.rows[0])[row], row / 4 == 1 ? 0.0f : kPoison<float>));
}

// Outputs do not depend on how many tokens share a call, nor on the caller's flush mode.
FT_OP_CASE(kMatvec, matvec_token_count_and_caller_mode_do_not_matter) {
  Random random(3);
  const Packed w(random_matrix(static_cast<FormatId>(variant.format), 12, 288, kMixes[3].weights, random));
  const PackedMatrix view = w.view();
  const Activations x = random_activations(kMaxTokens, 288, kMixes[3].activations, random);
  Outputs<float> alone(kMaxTokens, 12);
  for (size_t t = 0; t < kMaxTokens; ++t) {
    std::get<MatvecFn>(reference_kernel.fn)({&view, &x.pointers[t], 1, 0, 3, &alone.pointers[t]});
  }
  in_both_flush_modes<MatvecFn>(variant, reference_kernel, [&](MatvecFn fn, MatvecFn) {
    for (int64_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
      CAPTURE(tokens);
      Outputs<float> together(tokens, 12);
      fn({&view, x.pointers.data(), tokens, 0, 3, together.pointers.data()});
      check_equal(together, alone);
    }
  });
}

// Every kind of unit, with and without biases, in turn.
ExpertForm form_of(uint64_t seed) {
  const Glu kinds[] = {{GluKind::kSilu, 0}, {GluKind::kSiluClamped, 2}, {GluKind::kGeluTanh, 0}, {GluKind::kOss, 3}};
  return {kinds[seed % 4], seed / 4 % 2 == 1};
}

struct Expert {
  Expert(FormatId format, int64_t hidden, int64_t intermediate, const Exponents& exponents, const ExpertForm& form,
         Random& random)
      : layout(expert_layout(format, hidden, intermediate, form)), blob(layout.bytes) {
    const OwnedMatrix gate = random_matrix(format, intermediate, hidden, exponents, random);
    const OwnedMatrix up = random_matrix(format, intermediate, hidden, exponents, random);
    const OwnedMatrix down = random_matrix(format, hidden, intermediate, exponents, random);
    const auto gate_bias = random_biases(form.biased, intermediate, exponents, random);
    const auto up_bias = random_biases(form.biased, intermediate, exponents, random);
    const auto down_bias = random_biases(form.biased, hidden, exponents, random);
    pack_expert(gate.raw(), up.raw(), down.raw(), layout, blob.data(), {gate_bias, up_bias, down_bias});
    const PackedMatrix packed = expert_down(layout, blob.data());
    REQUIRE((packed.bias != nullptr) == form.biased);
    if (form.biased) REQUIRE(std::memcmp(down_bias.data(), packed.bias, down_bias.size() * sizeof(float)) == 0);
  }
  ExpertLayout layout;
  Guarded<std::byte> blob;
};

void check_gate_up(const KernelDesc& variant, const KernelDesc& reference_kernel, int64_t hidden, int64_t intermediate,
                   int64_t tokens, const Mix& mix, uint64_t seed) {
  INFO("hidden ", hidden, " intermediate ", intermediate, " tokens ", tokens, " mix ", mix.name, " seed ", seed);
  Random random(seed);
  Expert expert(static_cast<FormatId>(variant.format), hidden, intermediate, mix.weights, form_of(seed), random);
  const Activations x = random_activations(tokens, hidden, mix.activations, random);
  const int64_t words = activation_words(intermediate);
  Outputs<uint32_t> expected(tokens, words);
  Outputs<uint32_t> got(tokens, words);
  const auto call = [&](const KernelDesc& kernel, const Outputs<uint32_t>& a) {
    return [&, fn = std::get<GateUpFn>(kernel.fn)](int64_t begin, int64_t end) {
      fn({&expert.layout, expert.blob.data(), x.pointers.data(), tokens, begin, end, a.pointers.data()});
    };
  };
  const int64_t tiles = expert.layout.gate.row_tiles;
  run_range(tiles, -1, call(reference_kernel, expected));
  const int64_t split =
      random.below(2) == 0 ? -1 : static_cast<int64_t>(random.below(static_cast<uint64_t>(tiles + 1)));
  run_range(tiles, split, call(variant, got));
  check_equal(got, expected);
}

FT_OP_CASE(kGateUp, gate_up_equals_reference) {
  const auto format = static_cast<FormatId>(variant.format);
  const bool any_intermediate = format_info(format).cols_multiple == 1;
  for (const Mix& mix : kMixes) {
    uint64_t seed = 100;
    for (const int64_t hidden : cols_of(format, {16, 32, 272, 400, 544})) {
      for (const int64_t intermediate : cols_of(format, {16, 48, 64, 272, 288})) {
        const int64_t odd = any_intermediate ? static_cast<int64_t>(seed % 4) : 0;
        check_gate_up(variant, reference_kernel, hidden, intermediate - odd,
                      1 + static_cast<int64_t>(seed % kMaxTokens), mix, seed);
        ++seed;
      }
    }
  }
  for (int64_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
    check_gate_up(variant, reference_kernel, 64, 32, tokens, kMixes[0], 500 + static_cast<uint64_t>(tokens));
  }
}

FT_OP_CASE(kPackActivations, pack_activations_equals_reference) {
  for (const Exponents& exponents : {Exponents{-4, 4, 0}, Exponents{-130, 127, 8}}) {
    for (const int64_t cols : {1, 2, 15, 16, 17, 31, 160, 255, 256, 257, 300, 512, 640, 1040}) {
      for (const int64_t tokens : {1, 2, 3}) {
        const auto seed = static_cast<uint64_t>(cols * 10 + tokens);
        INFO("cols ", cols, " tokens ", tokens, " seed ", seed);
        Random random(seed);
        const int64_t stride = cols + static_cast<int64_t>(random.below(5));
        std::vector<float> x(static_cast<size_t>(stride * tokens));
        for (float& value : x) value = random_with(random, exponents);
        // Halfway cases of the rounding, both parities.
        for (size_t i = 0; i < x.size(); i += 3) {
          x[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(x[i]) & 0xffff0000u) | 0x8000u);
        }
        const int64_t words = activation_words(cols) * tokens;
        Guarded<uint32_t> expected(words), got(words);
        std::get<PackActivationsFn>(reference_kernel.fn)({x.data(), stride, tokens, cols, expected.data()});
        std::get<PackActivationsFn>(variant.fn)({x.data(), stride, tokens, cols, got.data()});
        CHECK(difference_of_rows(got, expected) == "");
        CHECK(got.intact());
      }
    }
  }
}

}  // namespace
}  // namespace ft::test
