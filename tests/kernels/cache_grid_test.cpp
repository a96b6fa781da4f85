// Checked against: the values of E4M3 and E2M1 in kernels/base/fp_codes.h, the nearest one found by trying all of them;
// the Hadamard matrix by its definition, (-1)^popcount(i & j).
#include "kernels/ops/cache_grid.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/base/fp_codes.h"
#include "kernels/base/random.h"

namespace ft {
namespace {

// Of the code nearest to x, halfway the even code.
double nearest(const CacheGrid& grid, double x) {
  const bool fp8 = grid.mantissa == 3;
  double best = 0;
  int best_code = 0;
  for (int code = 0; code < (fp8 ? 0x7f : 8); ++code) {
    const auto value =
        static_cast<double>(fp8 ? decode_e4m3(static_cast<uint8_t>(code)) : decode_e2m1(static_cast<uint8_t>(code)));
    const double gap = std::abs(value - std::abs(x)), best_gap = std::abs(best - std::abs(x));
    if (gap < best_gap || (gap == best_gap && code % 2 == 0 && best_code % 2 == 1)) best = value, best_code = code;
  }
  return std::copysign(best, x);
}

double scale_of(const CacheGrid& grid, double amax) {
  return std::exp2(
      std::ceil(std::log2(std::max(amax, static_cast<double>(grid.least)) / static_cast<double>(grid.largest))));
}

}  // namespace

TEST_CASE("a group on a grid: the nearest codes times a power of two, over many magnitudes and shorter last groups") {
  Random random(5);
  for (const CacheGrid& grid : {kFp8Grid, kFp4Grid}) {
    CAPTURE(grid.mantissa);
    for (const int64_t count : {1, 31, 32, 33, 64, 65, 448}) {
      for (int magnitude = -40; magnitude <= 40; ++magnitude) {
        std::vector<float> x(static_cast<size_t>(count));
        for (float& value : x) value = round_to_bf16(std::ldexp(static_cast<float>(random.normal()), magnitude));
        std::vector<float> got = x;
        round_to_grid(grid, got.data(), count);
        int wrong = 0;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t first = i / grid.group * grid.group, end = std::min<int64_t>(first + grid.group, count);
          double amax = 0;
          for (int64_t k = first; k < end; ++k)
            amax = std::max(amax, std::abs(static_cast<double>(x[static_cast<size_t>(k)])));
          const double scale = scale_of(grid, amax);
          const double expected = nearest(grid, static_cast<double>(x[static_cast<size_t>(i)]) / scale) * scale;
          wrong += static_cast<double>(got[static_cast<size_t>(i)]) != expected ? 1 : 0;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("ties go to the even code, what is too large to the largest, zeros are +0") {
  for (const auto& [x, expected] : {std::pair{0.25f, 0.0f},
                                    {0.75f, 1.0f},
                                    {1.25f, 1.0f},
                                    {1.75f, 2.0f},
                                    {2.5f, 2.0f},
                                    {3.5f, 4.0f},
                                    {5.0f, 4.0f},
                                    {-5.0f, -4.0f},
                                    {6.0f, 6.0f},
                                    {7.0f, 6.0f}}) {
    CHECK(on_grid(kFp4Grid, x, 1.0f) == expected);
  }
  CHECK(on_grid(kFp8Grid, 17.0f, 1.0f) == 16.0f);
  CHECK(on_grid(kFp8Grid, 19.0f, 1.0f) == 20.0f);
  CHECK(on_grid(kFp8Grid, 0x1p-10f, 1.0f) == 0.0f);
  CHECK(on_grid(kFp8Grid, 0x3p-10f, 1.0f) == 0x1p-8f);
  CHECK(on_grid(kFp8Grid, -500.0f, 1.0f) == -448.0f);
  CHECK_FALSE(std::signbit(on_grid(kFp8Grid, -0x1p-12f, 1.0f)));
  CHECK(std::isnan(on_grid(kFp8Grid, std::nanf(""), 1.0f)));
}

TEST_CASE("scales are exact at the edges between powers of two") {
  for (int exponent = -10; exponent <= 20; ++exponent) {
    CHECK(grid_scale(kFp8Grid, std::ldexp(448.0f, exponent)) == std::ldexp(1.0f, exponent));
    CHECK(grid_scale(kFp8Grid, std::ldexp(450.0f, exponent)) == std::ldexp(1.0f, exponent + 1));
    CHECK(grid_scale(kFp4Grid, std::ldexp(6.0f, exponent)) == std::ldexp(1.0f, exponent));
    CHECK(grid_scale(kFp4Grid, std::ldexp(6.03125f, exponent)) == std::ldexp(1.0f, exponent + 1));
  }
  CHECK(grid_scale(kFp8Grid, 0.0f) == 0x1p-22f);  // of 1e-4 / 448
}

TEST_CASE("the turn is the Hadamard matrix in natural order, and its own inverse") {
  Random random(6);
  for (const int64_t dim : {1, 2, 16, 128}) {
    CAPTURE(dim);
    std::vector<float> x(static_cast<size_t>(dim));
    for (float& value : x) value = static_cast<float>(random.normal());
    std::vector<float> turned = x;
    turn_by_hadamard(turned.data(), dim, hadamard_scale(dim));
    for (int64_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < dim; ++k) {
        const int sign = std::popcount(static_cast<uint64_t>(i & k)) % 2 == 0 ? 1 : -1;
        sum += sign * static_cast<double>(x[static_cast<size_t>(k)]);
      }
      CHECK(turned[static_cast<size_t>(i)] == doctest::Approx(sum / std::sqrt(static_cast<double>(dim))).epsilon(1e-5));
    }
    turn_by_hadamard(turned.data(), dim, hadamard_scale(dim));
    for (size_t i = 0; i < x.size(); ++i) CHECK(turned[i] == doctest::Approx(x[i]).epsilon(1e-5));
  }
}

TEST_CASE("rows keep their rotated end, index vectors of other sizes than powers of two stay as they are") {
  Random random(7);
  std::vector<float> row(80);
  for (float& value : row) value = static_cast<float>(random.normal());
  std::vector<float> kept = row;
  round_cached_row(kept.data(), 80, 16);
  CHECK(std::equal(kept.begin() + 64, kept.end(), row.begin() + 64));
  CHECK_FALSE(std::equal(kept.begin(), kept.begin() + 64, row.begin()));
  std::vector<float> index(row.begin(), row.begin() + 24);
  round_index_vector(index.data(), 24);
  CHECK(std::equal(index.begin(), index.end(), row.begin()));
}

}  // namespace ft
