// Every code of every format through every kernel that this CPU runs, against kernels/base/fp_codes.h: row c of a
// matrix has code c at one place and zeros elsewhere, the activations are 1 or a power of two, so y[c] is the code's
// value. Also gate_up against its definition in long double.
#include <cmath>

#include "kernels/base/fp_codes.h"
#include "kernels/formats/expert_blob.h"
#include "kernels/host/isa.h"
#include "tests/kernels/raw_matrix.h"

namespace ft::test {
namespace {

// Two blocks, the second one short, of lanes of 16 k and of 32 k.
constexpr int64_t kCols = 544;
constexpr int64_t kPlaces[] = {0,  1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15, 16,
                               17, 18,  19,  20,  21,  22,  23,  24,  25,  26,  27,  28,  29,  30,  31,  32, 47,
                               48, 127, 128, 255, 256, 257, 271, 272, 480, 495, 496, 511, 512, 527, 528, 543};

std::vector<float> product(const KernelDesc& kernel, const OwnedMatrix& matrix, float activation) {
  const Packed packed(matrix);
  const PackedMatrix view = packed.view();
  const auto x = packed_row(std::vector<float>(static_cast<size_t>(matrix.cols), activation));
  std::vector<float> y(static_cast<size_t>(matrix.rows));
  const uint32_t* x_pointer = x.data();
  float* y_pointer = y.data();
  std::get<MatvecFn>(kernel.fn)({&view, &x_pointer, 1, 0, view.layout.row_tiles, &y_pointer});
  return y;
}

// Calls f(kernel) for each matvec of `format` that this CPU runs.
template <class F>
void each_matvec(FormatId format, F f) {
  for (const KernelDesc& kernel : kernel_registry()) {
    if (kernel.op != OpId::kMatvec || kernel.format != static_cast<int>(format)) continue;
    if (kernel.isa > detect_isa()) {
      MESSAGE("skipped " << std::string(kernel.name) << ": not on this CPU");
      continue;
    }
    CAPTURE(std::string(kernel.name));
    f(kernel);
  }
}

float expected_sum(float value) { return value == 0.0f ? 0.0f : value; }  // a -0 ends as +0 among other lanes' +0

// Row r holds code r at one place of an otherwise zero matrix.
template <class Decode>
void check_all_codes(FormatId format, uint32_t codes, Decode decode) {
  each_matvec(format, [&](const KernelDesc& kernel) {
    for (const int64_t place : kPlaces) {
      CAPTURE(place);
      OwnedMatrix matrix = zero_matrix(format, codes, kCols);
      for (uint32_t code = 0; code < codes; ++code) set_code(matrix, code, place, code);
      const auto y = product(kernel, matrix, 1.0f);
      for (uint32_t code = 0; code < codes; ++code) {
        CAPTURE(code);
        CHECK(same(y[code], expected_sum(decode(static_cast<uint8_t>(code)))));
      }
    }
  });
}

TEST_SUITE("baseline") {
  TEST_CASE("all 256 e4m3 codes at every kind of place of fp8_block") {
    check_all_codes(FormatId::kFp8Block, 256, decode_e4m3);
  }

  TEST_CASE("all 256 e4m3 codes at every kind of place of fp8_channel") {
    check_all_codes(FormatId::kFp8Channel, 256, decode_e4m3);
  }

  TEST_CASE("fp8_channel: a row has its own scale, in every block and lane") {
    each_matvec(FormatId::kFp8Channel, [](const KernelDesc& kernel) {
      for (const int64_t cols : {1, 16, 63, 128, 256, 271, 544}) {
        CAPTURE(cols);
        OwnedMatrix matrix = zero_matrix(FormatId::kFp8Channel, 11, cols);
        for (int64_t row = 0; row < 11; ++row) {
          for (int64_t k = 0; k < cols; ++k) set_code(matrix, row, k, 0x38);  // 1.0
          set_scale(matrix, row, 0, static_cast<float>(row - 4));
        }
        const auto y = product(kernel, matrix, 1.0f);
        for (int64_t row = 0; row < 11; ++row)
          CHECK(y[static_cast<size_t>(row)] == static_cast<float>((row - 4) * cols));
      }
    });
  }

  TEST_CASE("fp8_channel with one scale in all rows has the bits of fp8_block with it in all blocks") {
    each_matvec(FormatId::kFp8Channel, [](const KernelDesc& kernel) {
      const KernelDesc* same_isa = nullptr;
      each_matvec(FormatId::kFp8Block, [&](const KernelDesc& other) {
        if (other.isa == kernel.isa) same_isa = &other;
      });
      REQUIRE(same_isa != nullptr);
      Random random(9);
      for (const int64_t cols : {41, 128, 256, 400, 544}) {
        CAPTURE(cols);
        OwnedMatrix channel = random_matrix(FormatId::kFp8Channel, 13, cols, {}, random);
        OwnedMatrix block = zero_matrix(FormatId::kFp8Block, 13, cols);
        block.codes = channel.codes;
        block.global = channel.global;
        for (int64_t row = 0; row < 13; ++row) set_scale(channel, row, 0, 0.0123f);
        for (int64_t k = 0; k < cols; ++k) set_scale(block, 0, k, 0.0123f);
        CHECK(difference(product(kernel, channel, 0.3f), product(*same_isa, block, 0.3f)) == "");
      }
    });
  }

  TEST_CASE("all 16 e2m1 codes at every kind of place of nvfp4") { check_all_codes(FormatId::kNvfp4, 16, decode_e2m1); }

  TEST_CASE("all 256 e4m3 block scales of nvfp4, zero, subnormal, negative and NaN included") {
    each_matvec(FormatId::kNvfp4, [](const KernelDesc& kernel) {
      for (const int64_t place : kPlaces) {
        CAPTURE(place);
        OwnedMatrix matrix = zero_matrix(FormatId::kNvfp4, 256, kCols);
        for (uint32_t code = 0; code < 256; ++code) {
          set_code(matrix, code, place, 2);  // 1.0
          set_scale_code(matrix, code, place, static_cast<uint8_t>(code));
        }
        const auto y = product(kernel, matrix, 1.0f);
        for (size_t code = 0; code < 256; ++code) {
          CAPTURE(code);
          CHECK(same(y[code], expected_sum(decode_e4m3(static_cast<uint8_t>(code)))));
        }
      }
    });
  }

  TEST_CASE("all 16 e2m1 codes at every kind of place of mxfp4") { check_all_codes(FormatId::kMxfp4, 16, decode_e2m1); }

  TEST_CASE("all 256 e8m0 scales of mxfp4 with all 16 codes: 0 is flushed, 255 is NaN") {
    each_matvec(FormatId::kMxfp4, [](const KernelDesc& kernel) {
      for (const int64_t place : {0, 31, 256, 512, 543}) {
        CAPTURE(place);
        OwnedMatrix matrix = zero_matrix(FormatId::kMxfp4, 16 * 256, kCols);
        for (int64_t row = 0; row < 16 * 256; ++row) {
          set_code(matrix, row, place, static_cast<uint32_t>(row / 256));
          set_scale_code(matrix, row, place, static_cast<uint8_t>(row % 256));
        }
        const auto y = product(kernel, matrix, 1.0f);
        int wrong = 0;
        for (int64_t row = 0; row < 16 * 256; ++row) {
          const float scale = row % 256 == 0 ? 0.0f : decode_e8m0(static_cast<uint8_t>(row % 256));
          const float value = decode_e2m1(static_cast<uint8_t>(row / 256)) * scale;
          const bool denormal = std::fpclassify(value) == FP_SUBNORMAL;  // 0.5 * 2^-126
          if (!same(y[static_cast<size_t>(row)], denormal ? 0.0f : expected_sum(value))) ++wrong;
        }
        CHECK(wrong == 0);
      }
    });
  }

  TEST_CASE("decode_row of mxfp4 keeps the scale 2^-127") {
    OwnedMatrix matrix = zero_matrix(FormatId::kMxfp4, 1, 32);
    for (int64_t col = 0; col < 16; ++col) set_code(matrix, 0, col, static_cast<uint32_t>(col));
    set_scale_code(matrix, 0, 0, 0);
    const Packed packed(matrix);
    float row[32];
    format_info(FormatId::kMxfp4).decode_row(packed.layout(), packed.data(), 0, row);
    CHECK(same(row[1], 0x1p-128f));
    CHECK(same(row[2], 0x1p-127f));
    CHECK(same(row[15], -0x1.8p-125f));
  }

  TEST_CASE("all 65536 bf16 weights, denormals as zero") {
    each_matvec(FormatId::kBf16, [](const KernelDesc& kernel) {
      OwnedMatrix matrix = zero_matrix(FormatId::kBf16, 65536, 16);
      for (uint32_t code = 0; code < 65536; ++code) set_code(matrix, code, code % 16, code);
      const auto y = product(kernel, matrix, 1.0f);
      int wrong = 0;
      for (uint32_t code = 0; code < 65536; ++code) {
        const auto value = std::bit_cast<float>(code << 16);
        const bool denormal = (code & 0x7f80u) == 0;
        if (!same(y[code], denormal ? 0.0f : value)) ++wrong;
      }
      CHECK(wrong == 0);
    });
  }

  TEST_CASE("a scale is applied to a lane's sum, not to its products") {
    // 2^-120 * 2^-10 is flushed before a scale of 2^8 could save it; canonical order says so.
    for (const FormatId format : {FormatId::kFp8Block, FormatId::kFp8Channel}) {
      each_matvec(format, [format](const KernelDesc& kernel) {
        OwnedMatrix matrix = zero_matrix(format, 1, 128);
        set_code(matrix, 0, 0, 1);  // 2^-9
        set_scale(matrix, 0, 0, 256.0f);
        CHECK(same(product(kernel, matrix, 0x1p-120f)[0], 0.0f));
        CHECK(same(product(kernel, matrix, 0x1p-117f)[0], 0x1p-118f));
      });
    }
  }

  TEST_CASE("gate_up against silu(gate x) * (up x) in long double") {
    for (const FormatInfo& info : all_formats()) {
      CAPTURE(std::string(info.name));
      constexpr int64_t kHidden = 288, kIntermediate = 64;
      Random random(21);
      const OwnedMatrix gate = random_matrix(info.id, kIntermediate, kHidden, {-4, -1, 0}, random);
      const OwnedMatrix up = random_matrix(info.id, kIntermediate, kHidden, {-4, -1, 0}, random);
      const OwnedMatrix down = zero_matrix(info.id, kHidden, kIntermediate);
      const ExpertLayout layout = expert_layout(info.id, kHidden, kIntermediate);
      Guarded<std::byte> blob(layout.bytes);
      pack_expert(gate.raw(), up.raw(), down.raw(), layout, blob.data());
      std::vector<float> x(kHidden);
      for (float& value : x) {
        value = std::bit_cast<float>(std::bit_cast<uint32_t>(random_with(random, {-12, -10, 0})) & 0xffff0000u);
      }
      const auto words = packed_row(x);
      std::vector<uint32_t> a(static_cast<size_t>(activation_words(kIntermediate)));
      const uint32_t* x_pointer = words.data();
      uint32_t* a_pointer = a.data();
      std::get<GateUpFn>(reference_of(OpId::kGateUp, static_cast<int>(info.id)).fn)(
          {&layout, blob.data(), &x_pointer, 1, 0, layout.gate.row_tiles, &a_pointer});
      for (int64_t row = 0; row < kIntermediate; ++row) {
        long double g = 0, u = 0;
        for (int64_t k = 0; k < kHidden; ++k) {
          g += static_cast<long double>(raw_value(gate, row, k)) * x[static_cast<size_t>(k)];
          u += static_cast<long double>(raw_value(up, row, k)) * x[static_cast<size_t>(k)];
        }
        g *= gate.global;
        u *= up.global;
        const long double expected = g / (1 + std::exp(-g)) * u;
        const uint32_t word = a[static_cast<size_t>(row % 16 / 2 * 16 + row / 16)];
        const auto got = std::bit_cast<float>(row % 2 == 0 ? word << 16 : word & 0xffff0000u);
        // bf16's half last place, and cancellation in the sums.
        CHECK(std::fabs(static_cast<long double>(got) - expected) <= 0x1p-8L * std::fabs(expected) + 1e-5L);
      }
    }
  }
}

}  // namespace
}  // namespace ft::test
