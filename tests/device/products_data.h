// Random packed matrices and activations of every kind of value, for any format: a matrix is packed bytes, so what the
// bytes mean is the format's business and both sides read the same ones.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/formats/expert_blob.h"
#include "tests/device/harness.h"

namespace ft::device_test {

enum class Weights {
  kOrdinary,  // the format's synthetic weights
  kStrewn,    // the same, with one word in 200 of codes and scales any word at all: zeros, denormals, NaN
  kAny,       // any bytes: every code in every place
};

enum class Activations {
  kNormal,
  kSparseSpecial,  // normal, one in 200 zero, denormal, infinite, NaN or huge
  kTiny,           // around the smallest normal number, where products and sums are flushed
  kEdge,           // exponents -126 .. -117: products on both sides of the smallest normal number
  kHuge,           // exponents 100 .. 127: sums overflow
  kWide,           // any exponent
};

struct Mix {
  std::string_view name;
  Weights weights;
  Activations activations;
};
inline constexpr Mix kMixes[] = {
    {"ordinary", Weights::kOrdinary, Activations::kNormal},
    {"special", Weights::kStrewn, Activations::kSparseSpecial},
    {"denormal", Weights::kOrdinary, Activations::kTiny},
    {"edge", Weights::kStrewn, Activations::kEdge},
    {"huge", Weights::kOrdinary, Activations::kHuge},
    {"any code", Weights::kAny, Activations::kNormal},
    {"any code, any exponent", Weights::kAny, Activations::kWide},
};

// Fills one packed matrix at `data`.
void fill_matrix(const PackedLayout& layout, Weights kind, Random& random, std::byte* data);
// One expert with random globals in its trailer, and biases where the layout has them.
void fill_expert(const ExpertLayout& layout, Weights kind, Random& random, std::byte* blob);
float random_global(Random& random);

float random_activation(Activations kind, Random& random);
// (tokens) packed rows of cols, rounded and packed by the CPU.
HostArray<uint32_t> random_rows(Context& context, int64_t tokens, int64_t cols, Activations kind, Random& random);

// Whether the format takes matrices with so many cols.
bool takes_cols(const FormatInfo& format, int64_t cols);

}  // namespace ft::device_test
