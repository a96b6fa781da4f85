// Weight formats against the definitions of checkpoints, decoded here from kernels/base/fp_codes.h (raw_matrix.cpp),
// and the reference products against long double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/fp_codes.h"
#include "kernels/formats/expert_blob.h"
#include "tests/kernels/raw_matrix.h"

namespace ft::test {
namespace {

std::vector<int64_t> some_cols(FormatId format) {
  return cols_of(format, {1, 2, 15, 16, 17, 32, 127, 128, 129, 160, 240, 255, 256, 257, 272, 400, 480, 512, 544, 640});
}

float floor_to_bf16(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u); }

TEST_SUITE("baseline") {
  TEST_CASE("names and ids of formats agree both ways") {
    CHECK(all_formats().size() == kFormatCount);
    for (const FormatInfo& info : all_formats()) {
      CHECK(&format_info(info.id) == &info);
      CHECK(format_by_name(info.name) == info.id);
      CHECK(info.group == (info.id == FormatId::kMxfp4 ? 32 : 16));
    }
    CHECK_FALSE(format_by_name("nvfp5").has_value());
    CHECK_FALSE(format_by_name("").has_value());
  }

  TEST_CASE("pack then decode_row gives the checkpoint's values, for all codes and ragged shapes") {
    for (const FormatInfo& info : all_formats()) {
      for (const int64_t cols : some_cols(info.id)) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 130}) {
          INFO(std::string(info.name), " rows ", rows, " cols ", cols);
          Random random(static_cast<uint64_t>(rows * 1000 + cols));
          const OwnedMatrix matrix = random_matrix(info.id, rows, cols, {-7, 8, 20}, random);
          const Packed packed(matrix);
          std::vector<float> decoded(static_cast<size_t>(cols));
          int64_t wrong = 0;
          for (int64_t row = 0; row < rows; ++row) {
            info.decode_row(packed.layout(), packed.data(), row, decoded.data());
            for (int64_t col = 0; col < cols; ++col) {
              if (!same(decoded[static_cast<size_t>(col)], raw_value(matrix, row, col))) ++wrong;
            }
          }
          CHECK(wrong == 0);
        }
      }
    }
  }

  TEST_CASE("bytes worked out by hand: the low nibble is the even column") {
    const auto decoded = [](FormatId format, uint8_t byte, uint8_t scale, float global) {
      OwnedMatrix matrix = zero_matrix(format, 1, 32);
      matrix.codes[15] = static_cast<std::byte>(byte);  // columns 30 and 31
      matrix.scales.back() = static_cast<std::byte>(scale);
      const Packed packed(matrix);
      std::vector<float> row(32);
      format_info(format).decode_row(packed.layout(), packed.data(), 0, row.data());
      return std::pair{row[30] * global, row[31] * global};
    };
    CHECK(decoded(FormatId::kMxfp4, 0xa7, 0x7c, 1.0f) == std::pair{0.75f, -0.125f});  // 6 and -1 times 2^-3
    CHECK(decoded(FormatId::kNvfp4, 0x2b, 0x48, 0x1p-10f) == std::pair{-0.005859375f, 0.00390625f});
  }

  TEST_CASE("packing tiles in parts gives the same bytes, and touches no other tile") {
    for (const FormatInfo& info : all_formats()) {
      Random random(11);
      const OwnedMatrix matrix = random_matrix(info.id, 19, 288, {}, random);
      const PackedLayout layout = info.layout(19, 288);
      Guarded<std::byte> whole(layout.bytes), parts(layout.bytes);
      info.pack(matrix.raw(), layout, 0, layout.row_tiles, whole.data());
      info.pack(matrix.raw(), layout, 3, 5, parts.data());
      const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
      CHECK(std::all_of(parts.data(), parts.data() + 3 * layout.code_bytes_per_tile, is_zero));
      info.pack(matrix.raw(), layout, 0, 1, parts.data());
      info.pack(matrix.raw(), layout, 1, 3, parts.data());
      CHECK(std::equal(whole.data(), whole.data() + layout.bytes, parts.data()));
      CHECK((whole.intact() && parts.intact()));
    }
  }

  TEST_CASE("layouts are tight and aligned") {
    for (const FormatInfo& info : all_formats()) {
      const PackedLayout layout = info.layout(4096, 2560);
      CHECK(layout.row_tiles == 1024);
      CHECK(layout.blocks == 2560 / (16 * info.group));
      CHECK(layout.last_lanes == 16);
      CHECK(layout.scales_offset % kPackedAlign == 0);
      CHECK(layout.bytes % kPackedAlign == 0);
      const double row_bytes = info.id == FormatId::kFp8Channel ? 4 : 0;
      CHECK(static_cast<double>(layout.bytes) ==
            doctest::Approx(4096.0 * (2560.0 * info.bytes_per_weight + row_bytes)).epsilon(1e-6));
      const PackedLayout ragged = info.layout(5, 160);
      CHECK(ragged.row_tiles == 2);
      CHECK(ragged.blocks == 1);
      CHECK(ragged.last_lanes == 160 / info.group);
    }
  }

  TEST_CASE("shapes out of bounds are refused, at the bound and one past it") {
    for (const FormatInfo& info : all_formats()) {
      CAPTURE(std::string(info.name));
      const int64_t cols = info.cols_multiple;
      CHECK_NOTHROW(info.layout(1, cols));
      if (cols > 1) CHECK_THROWS_AS(info.layout(1, cols + 1), Error);
      CHECK_NOTHROW(info.layout(kMaxMatrixRows, kMaxMatrixCols));
      CHECK_THROWS_AS(info.layout(kMaxMatrixRows + 1, cols), Error);
      CHECK_THROWS_AS(info.layout(4, kMaxMatrixCols + cols), Error);
      CHECK_THROWS_AS(info.layout(0, cols), Error);
      CHECK_THROWS_AS(info.layout(4, 0), Error);
      CHECK_THROWS_AS(info.layout(-4, cols), Error);
      CHECK_THROWS_AS(expert_layout(info.id, 64, 0), Error);
    }
    CHECK_THROWS_WITH_AS(format_info(FormatId::kNvfp4).layout(4, 40), doctest::Contains("multiples of 16"), Error);
    CHECK_THROWS_WITH_AS(format_info(FormatId::kMxfp4).layout(4, 48), doctest::Contains("multiples of 32"), Error);
    CHECK_NOTHROW(format_info(FormatId::kFp8Block).layout(4, 41));
    CHECK_NOTHROW(format_info(FormatId::kFp8Channel).layout(4, 41));
  }

  TEST_CASE("raw spans of another size or shape are refused") {
    for (const FormatInfo& info : all_formats()) {
      CAPTURE(std::string(info.name));
      const OwnedMatrix matrix = zero_matrix(info.id, 8, 32);
      const PackedLayout layout = info.layout(8, 32);
      Guarded<std::byte> dst(layout.bytes);
      const auto pack = [&](const RawMatrix& raw) { info.pack(raw, layout, 0, layout.row_tiles, dst.data()); };
      CHECK_NOTHROW(pack(matrix.raw()));
      RawMatrix raw = matrix.raw();
      raw.codes = raw.codes.first(raw.codes.size() - 1);
      CHECK_THROWS_AS(pack(raw), Error);
      raw = matrix.raw();
      std::vector<std::byte> longer(raw.scales.size() + 1);
      raw.scales = longer;
      CHECK_THROWS_AS(pack(raw), Error);
      raw = matrix.raw();
      raw.rows = 4;
      CHECK_THROWS_AS(pack(raw), Error);
    }
  }

  TEST_CASE("synthetic weights: the same bytes in parts, unit scale, finite, zero where there is no weight") {
    for (const FormatInfo& info : all_formats()) {
      for (const int64_t cols : cols_of(info.id, {48, 64, 160, 2560})) {
        for (const int64_t rows : {33, 64}) {
          INFO(std::string(info.name), " rows ", rows, " cols ", cols);
          const PackedLayout layout = info.layout(rows, cols);
          Guarded<std::byte> whole(layout.bytes), parts(layout.bytes), other(layout.bytes);
          info.synthesize(layout, 42, 0, layout.row_tiles, whole.data());
          for (int64_t tile = layout.row_tiles; tile-- > 0;) info.synthesize(layout, 42, tile, tile + 1, parts.data());
          info.synthesize(layout, 43, 0, layout.row_tiles, other.data());
          CHECK(std::equal(whole.data(), whole.data() + layout.bytes, parts.data()));
          CHECK_FALSE(std::equal(whole.data(), whole.data() + layout.bytes, other.data()));
          CHECK((whole.intact() && parts.intact()));
          const double global = info.synthetic_global(cols);
          std::vector<float> values(static_cast<size_t>(cols));
          double squares = 0;
          for (int64_t row = 0; row < rows; ++row) {
            info.decode_row(layout, whole.data(), row, values.data());
            for (const float value : values) {
              REQUIRE(std::isfinite(value));
              squares += std::pow(value * global, 2);
            }
          }
          const double scale = std::sqrt(squares / static_cast<double>(rows));  // of a row; 1 for 1/sqrt(cols) weights
          CHECK(scale > 1 / 1.5);
          CHECK(scale < 1.5);
        }
      }
      // Absent rows and cols: as packing zeros would leave them.
      const int64_t cols = info.cols_multiple == 1 ? 37 : 3 * info.cols_multiple;
      const PackedLayout layout = info.layout(5, cols);
      Guarded<std::byte> made(layout.bytes);
      info.synthesize(layout, 1, 0, layout.row_tiles, made.data());
      std::vector<float> ones(static_cast<size_t>(activation_words(cols) * 2), 1.0f);  // padding too
      const auto x = packed_row(ones);
      const PackedLayout full = [&] {
        PackedLayout wider = layout;  // the same bytes read as if the last tile were full
        wider.rows = 8;
        return wider;
      }();
      const PackedMatrix as_full{full, made.data(), 1.0f};
      Guarded<float> y(8);
      const uint32_t* x_pointer = x.data();
      float* y_pointer = y.data();
      std::get<MatvecFn>(reference_of(OpId::kMatvec, static_cast<int>(info.id)).fn)(
          {&as_full, &x_pointer, 1, 0, 2, &y_pointer});
      std::vector<float> values(static_cast<size_t>(cols));
      for (int64_t row = 0; row < 8; ++row) {
        if (row >= 5) {
          CHECK(same(y[row], 0.0f));
          continue;
        }
        info.decode_row(layout, made.data(), row, values.data());
        double sum = 0;
        for (const float value : values) sum += value;
        CHECK(y[row] == doctest::Approx(sum).epsilon(1e-4));
      }
    }
  }

  TEST_CASE("the reference product against long double") {
    for (const FormatInfo& info : all_formats()) {
      for (const int64_t cols : some_cols(info.id)) {
        INFO(std::string(info.name), " cols ", cols);
        Random random(static_cast<uint64_t>(cols));
        const OwnedMatrix matrix = random_matrix(info.id, 5, cols, {-3, 3, 0}, random);
        const Packed packed(matrix);
        std::vector<float> x(static_cast<size_t>(cols));
        for (float& value : x) value = floor_to_bf16(random_with(random, {-3, 3, 0}));
        const auto words = packed_row(x);
        const PackedMatrix view = packed.view();
        Guarded<float> y(5);
        const uint32_t* x_pointer = words.data();
        float* y_pointer = y.data();
        std::get<MatvecFn>(reference_of(OpId::kMatvec, static_cast<int>(info.id)).fn)(
            {&view, &x_pointer, 1, 0, 2, &y_pointer});
        for (int64_t row = 0; row < 5; ++row) {
          long double sum = 0;
          long double absolute = 0;
          for (int64_t k = 0; k < cols; ++k) {
            const long double product = static_cast<long double>(raw_value(matrix, row, k)) * x[static_cast<size_t>(k)];
            sum += product;
            absolute += std::fabs(product);
          }
          // Roundings on the way of one term: 16 or 32 in its lane, one a block, 4 in the tree, the global.
          const int64_t blocks = (cols + 255) / 256;
          const auto roundings = static_cast<long double>(info.group + blocks + 4 + 1);
          const long double bound = roundings * 0x1p-24L * absolute * std::fabs(matrix.global);
          CHECK(std::fabs(static_cast<long double>(y[row]) - sum * matrix.global) <= bound);
        }
      }
    }
  }

  TEST_CASE("an expert is one aligned range: gate, up, down, trailer") {
    for (const FormatInfo& info : all_formats()) {
      CAPTURE(std::string(info.name));
      const ExpertLayout layout = expert_layout(info.id, 288, 64);
      CHECK(layout.gate.rows == 64);
      CHECK(layout.gate.cols == 288);
      CHECK(layout.down.rows == 288);
      CHECK(layout.down.cols == 64);
      CHECK(layout.up_offset == layout.gate.bytes);
      CHECK(layout.down_offset == 2 * layout.gate.bytes);
      CHECK(layout.trailer_offset == layout.down_offset + layout.down.bytes);
      CHECK(layout.payload_bytes == layout.trailer_offset + 16);
      CHECK(layout.bytes % kBlobAlign == 0);
      CHECK(layout.bytes - layout.payload_bytes < kBlobAlign);
      Random random(5);
      const OwnedMatrix gate = random_matrix(info.id, 64, 288, {}, random);
      const OwnedMatrix up = random_matrix(info.id, 64, 288, {}, random);
      const OwnedMatrix down = random_matrix(info.id, 288, 64, {}, random);
      Guarded<std::byte> blob(layout.bytes), again(layout.bytes);
      std::fill_n(again.data(), again.size(), std::byte{0xff});
      pack_expert(gate.raw(), up.raw(), down.raw(), layout, blob.data());
      pack_expert(gate.raw(), up.raw(), down.raw(), layout, again.data());
      CHECK(std::equal(blob.data(), blob.data() + blob.size(), again.data()));  // padding too
      CHECK((blob.intact() && again.intact()));
      const auto check_part = [&](const PackedMatrix& part, const OwnedMatrix& matrix) {
        CHECK(part.global == matrix.global);
        std::vector<float> row(static_cast<size_t>(matrix.cols));
        info.decode_row(part.layout, part.data, matrix.rows - 1, row.data());
        for (int64_t col = 0; col < matrix.cols; ++col) {
          REQUIRE(same(row[static_cast<size_t>(col)], raw_value(matrix, matrix.rows - 1, col)));
        }
      };
      check_part(expert_gate(layout, blob.data()), gate);
      check_part(expert_up(layout, blob.data()), up);
      check_part(expert_down(layout, blob.data()), down);

      synthesize_expert(layout, 3, blob.data());
      std::fill_n(again.data(), again.size(), std::byte{0xff});
      synthesize_expert(layout, 3, again.data());
      CHECK(std::equal(blob.data(), blob.data() + blob.size(), again.data()));
      CHECK(expert_gate(layout, blob.data()).global == info.synthetic_global(288));
      CHECK(expert_down(layout, blob.data()).global == info.synthetic_global(64));
      CHECK_FALSE(std::equal(blob.data(), blob.data() + layout.gate.bytes, blob.data() + layout.up_offset));
    }
  }
}

}  // namespace
}  // namespace ft::test
