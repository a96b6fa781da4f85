// Instruction sets the CPU kernels are written for, in increasing order: each includes the ones before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ft {

enum class Isa : uint8_t {
  kScalar,      // any x86-64
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // F, BW, DQ, VL
  kAvx512Bf16,  // and AVX512_BF16
};
inline constexpr int kIsaCount = 4;

std::string_view isa_name(Isa isa);  // "scalar", "avx2", "avx512", "avx512_bf16"
std::optional<Isa> isa_by_name(std::string_view name);

// Highest ISA that CPUID reports and the operating system has enabled (XCR0).
Isa detect_isa();

// detect_isa(), capped by the FT_ISA environment variable (a test override). Throws Error(kUsage) when FT_ISA names no
// known ISA or one that this CPU lacks.
Isa active_isa();

}  // namespace ft
