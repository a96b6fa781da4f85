#include "kernels/registry.h"

#include <cpuid.h>

#include <cstring>

#include "kernels/base/error.h"

// Declarations of every variant, then the table: both from the same lists.
// NOLINTBEGIN(bugprone-macro-parentheses): types and names
#define FT_KERNEL(op, format, isa, space, function, Args) \
  namespace ft::space {                                   \
  void function(Args&);                                   \
  }
#define FT_WEIGHT_KERNELS(id, name, isa, space) \
  namespace ft::space {                         \
  void matvec_##name(const MatvecArgs&);        \
  void gate_up_##name(const GateUpArgs&);       \
  }
// NOLINTEND(bugprone-macro-parentheses)
#include "kernels/variants_rows.def"
#include "kernels/variants_weights.def"
#undef FT_KERNEL
#undef FT_WEIGHT_KERNELS

namespace ft {
namespace {

constexpr std::string_view kOpNames[] = {
    "pack_activations",
    "matvec",
    "gate_up",
    "rmsnorm",
    "head_norm_rope",
    "glu",
    "add",
    "softcap",
    "merge",
    "router_top_k",
    "attention",
    "gate",
    "causal_conv",
    "l2_norm",
    "delta_gates",
    "delta_rule",
    "dot_rows",
    "stream_factors",
    "squash",
    "stream_gates",
    "rotate_pairs",
    "compress",
    "index_scores",
    "router_scores",
    "stream_copy",
    "stream_scale",
    "stream_add",
    "stream_triad",
    "mem_read",
};
static_assert(std::size(kOpNames) == kOpCount);

#define FT_KERNEL(op, format, isa, space, function, Args) \
  KernelDesc{OpId::op, format, Isa::isa, #function "." #space, &space::function, false},
#define FT_WEIGHT_KERNELS(id, name, isa, space)                                                                 \
  KernelDesc{OpId::kMatvec,         static_cast<int>(FormatId::id), Isa::isa, "matvec." #name "." #space,       \
             &space::matvec_##name, Isa::isa == Isa::kAvx512Bf16},                                              \
      KernelDesc{OpId::kGateUp,          static_cast<int>(FormatId::id), Isa::isa, "gate_up." #name "." #space, \
                 &space::gate_up_##name, Isa::isa == Isa::kAvx512Bf16},
const KernelDesc kTable[] = {
#include "kernels/variants_rows.def"
#include "kernels/variants_weights.def"
};
#undef FT_KERNEL
#undef FT_WEIGHT_KERNELS

// The best variant's function at or below `isa`. Every op has a scalar variant, so a null is a bug in the lists.
template <class Fn>
void resolve(OpId op, int format, Isa isa, Fn& fn) {
  const KernelDesc* kernel = find_kernel(op, format, isa, detect_quirks());
  FT_CHECK(kernel != nullptr);
  FT_CHECK(std::holds_alternative<Fn>(kernel->fn));
  fn = std::get<Fn>(kernel->fn);
}

}  // namespace

std::string_view op_name(OpId op) {
  const auto index = static_cast<size_t>(op);
  FT_CHECK(index < std::size(kOpNames));
  return kOpNames[index];
}

std::span<const KernelDesc> kernel_registry() { return kTable; }

CpuQuirks detect_quirks() {
  unsigned highest = 0;
  char vendor[12] = {};
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(0, &highest, &ebx, &ecx, &edx) == 0) return {};
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  return {.slow_dpbf16 = std::string_view(vendor, sizeof vendor) == "GenuineIntel"};
}

const KernelDesc* find_kernel(OpId op, int format, Isa isa, const CpuQuirks& quirks) {
  const KernelDesc* best = nullptr;
  for (const KernelDesc& kernel : kernel_registry()) {
    if (kernel.op != op || kernel.format != format || kernel.isa > isa) continue;
    if (kernel.needs_fast_dpbf16 && quirks.slow_dpbf16) continue;
    if (best == nullptr || kernel.isa > best->isa) best = &kernel;
  }
  return best;
}

KernelTable resolve_kernels(Isa isa) {
  KernelTable table;
  table.isa = isa;
  resolve(OpId::kPackActivations, kNoFormat, isa, table.pack_activations);
  for (int format = 0; format < kFormatCount; ++format) {
    resolve(OpId::kMatvec, format, isa, table.matvec[format]);
    resolve(OpId::kGateUp, format, isa, table.gate_up[format]);
  }
  resolve(OpId::kRmsnorm, kNoFormat, isa, table.rmsnorm);
  resolve(OpId::kHeadNormRope, kNoFormat, isa, table.head_norm_rope);
  resolve(OpId::kGlu, kNoFormat, isa, table.glu);
  resolve(OpId::kAdd, kNoFormat, isa, table.add);
  resolve(OpId::kSoftcap, kNoFormat, isa, table.softcap);
  resolve(OpId::kMerge, kNoFormat, isa, table.merge);
  resolve(OpId::kRouterTopK, kNoFormat, isa, table.router_top_k);
  resolve(OpId::kAttention, kNoFormat, isa, table.attention);
  resolve(OpId::kGate, kNoFormat, isa, table.gate);
  resolve(OpId::kCausalConv, kNoFormat, isa, table.causal_conv);
  resolve(OpId::kL2Norm, kNoFormat, isa, table.l2_norm);
  resolve(OpId::kDeltaGates, kNoFormat, isa, table.delta_gates);
  resolve(OpId::kDeltaRule, kNoFormat, isa, table.delta_rule);
  resolve(OpId::kDotRows, kNoFormat, isa, table.dot_rows);
  resolve(OpId::kStreamFactors, kNoFormat, isa, table.stream_factors);
  resolve(OpId::kSquash, kNoFormat, isa, table.squash);
  resolve(OpId::kStreamGates, kNoFormat, isa, table.stream_gates);
  resolve(OpId::kRotatePairs, kNoFormat, isa, table.rotate_pairs);
  resolve(OpId::kCompress, kNoFormat, isa, table.compress);
  resolve(OpId::kIndexScores, kNoFormat, isa, table.index_scores);
  resolve(OpId::kRouterScores, kNoFormat, isa, table.router_scores);
  resolve(OpId::kStreamCopy, kNoFormat, isa, table.stream_copy);
  resolve(OpId::kStreamScale, kNoFormat, isa, table.stream_scale);
  resolve(OpId::kStreamAdd, kNoFormat, isa, table.stream_add);
  resolve(OpId::kStreamTriad, kNoFormat, isa, table.stream_triad);
  resolve(OpId::kMemRead, kNoFormat, isa, table.mem_read);
  return table;
}

}  // namespace ft
