#include "kernels/host/isa.h"

#include <cpuid.h>

#include <cstdlib>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr std::string_view kNames[kIsaCount] = {"scalar", "avx2", "avx512", "avx512_bf16"};

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};  // leaf not there: no bits
  return r;
}

// Register states that the operating system saves. As assembly: the intrinsic wants -mxsave, which this file lacks.
uint64_t read_xcr0() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

constexpr bool has_all(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }
constexpr uint64_t bit(int i) { return uint64_t{1} << i; }

}  // namespace

std::string_view isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

std::optional<Isa> isa_by_name(std::string_view name) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (kNames[i] == name) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

// Bits: Intel SDM vol. 2A, CPUID leaves 1 and 7; vol. 1, 13.3 for XCR0.
Isa detect_isa() {
  const CpuidLeaf one = cpuid(1, 0);
  constexpr uint64_t kOsxsave = bit(27);
  if (!has_all(one.ecx, kOsxsave)) return Isa::kScalar;
  const uint64_t xcr0 = read_xcr0();
  const CpuidLeaf seven = cpuid(7, 0);
  constexpr uint64_t kYmmState = bit(1) | bit(2);
  constexpr uint64_t kFmaF16cAvx = bit(12) | bit(29) | bit(28);
  constexpr uint64_t kAvx2 = bit(5);
  if (!has_all(xcr0, kYmmState) || !has_all(one.ecx, kFmaF16cAvx) || !has_all(seven.ebx, kAvx2)) return Isa::kScalar;
  constexpr uint64_t kZmmState = bit(5) | bit(6) | bit(7);
  constexpr uint64_t kAvx512FDqBwVl = bit(16) | bit(17) | bit(30) | bit(31);
  if (!has_all(xcr0, kZmmState) || !has_all(seven.ebx, kAvx512FDqBwVl)) return Isa::kAvx2;
  constexpr uint64_t kAvx512Bf16 = bit(5);
  return has_all(cpuid(7, 1).eax, kAvx512Bf16) ? Isa::kAvx512Bf16 : Isa::kAvx512;
}

Isa active_isa() {
  const Isa detected = detect_isa();
  const char* override_name = std::getenv("FT_ISA");
  if (override_name == nullptr || *override_name == '\0') return detected;
  std::string allowed;
  for (int i = 0; i <= static_cast<int>(detected); ++i) allowed += (i == 0 ? "" : ", ") + std::string(kNames[i]);
  const std::optional<Isa> wanted = isa_by_name(override_name);
  if (!wanted.has_value() || *wanted > detected) {
    throw Error(ErrorKind::kUsage, {.what = wanted.has_value() ? "this CPU lacks the instruction set of FT_ISA"
                                                               : "unknown instruction set in FT_ISA",
                                    .value = override_name,
                                    .allowed = allowed});
  }
  return *wanted;
}

}  // namespace ft
