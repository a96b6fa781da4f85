// The table of kernels. Tests, benches, tuner and engine all walk this one table: a kernel that is not in it cannot be
// called, and one without a reference variant does not pass the registry test.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "kernels/formats/format.h"
#include "kernels/host/isa.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/compressed.h"
#include "kernels/ops/delta_net.h"
#include "kernels/ops/matvec.h"
#include "kernels/ops/memory.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/streams.h"

namespace ft {

enum class OpId : uint8_t {
  kPackActivations,
  kMatvec,
  kGateUp,
  kRmsnorm,
  kHeadNormRope,
  kGlu,
  kAdd,
  kSoftcap,
  kMerge,
  kRouterTopK,
  kAttention,
  kGate,
  kCausalConv,
  kL2Norm,
  kDeltaGates,
  kDeltaRule,
  kDotRows,
  kStreamFactors,
  kSquash,
  kStreamGates,
  kRotatePairs,
  kCompress,
  kIndexScores,
  kRouterScores,
  kStreamCopy,
  kStreamScale,
  kStreamAdd,
  kStreamTriad,
  kMemRead,
};
inline constexpr int kOpCount = static_cast<int>(OpId::kMemRead) + 1;
std::string_view op_name(OpId op);  // "matvec"

using KernelFn = std::variant<PackActivationsFn, MatvecFn, GateUpFn, RmsnormFn, HeadNormRopeFn, GluFn, AddFn, SoftcapFn,
                              MergeFn, RouterTopKFn, AttentionFn, GateFn, CausalConvFn, L2NormFn, DeltaGatesFn,
                              DeltaRuleFn, DotRowsFn, StreamFactorsFn, SquashFn, StreamGatesFn, RotatePairsFn,
                              CompressFn, IndexScoresFn, RouterScoresFn, StreamFn, MemReadFn>;

inline constexpr int kNoFormat = -1;

struct KernelDesc {
  OpId op{};
  int format = kNoFormat;  // FormatId, or kNoFormat for ops without weights
  Isa isa{};               // what it needs; Isa::kScalar is the reference
  std::string_view name;   // "matvec.nvfp4.avx512_bf16"; unique, and a key in profiles
  KernelFn fn;
  bool needs_fast_dpbf16 = false;  // passed over where CpuQuirks::slow_dpbf16
};

std::span<const KernelDesc> kernel_registry();

// What makes a variant that this CPU can run a bad choice on it.
struct CpuQuirks {
  // vdpbf16ps is so slow that products of packed weights with several tokens are faster with fma (numbers, one token
  // too, in kernels/cpu/pairs_dpbf16.inc.h). Set for every Intel CPU on the strength of one, a Sapphire Rapids; other
  // vendors' were not measured and keep the widest ISA.
  bool slow_dpbf16 = false;
};
CpuQuirks detect_quirks();

// The best variant at or below `isa`, or null. The engine resolves once at start.
const KernelDesc* find_kernel(OpId op, int format, Isa isa, const CpuQuirks& quirks = {});

// The functions one engine calls, resolved once for an ISA. Indexed by FormatId where weights are read.
struct KernelTable {
  Isa isa{};
  PackActivationsFn pack_activations = nullptr;
  MatvecFn matvec[kFormatCount] = {};
  GateUpFn gate_up[kFormatCount] = {};
  RmsnormFn rmsnorm = nullptr;
  HeadNormRopeFn head_norm_rope = nullptr;
  GluFn glu = nullptr;
  AddFn add = nullptr;
  SoftcapFn softcap = nullptr;
  MergeFn merge = nullptr;
  RouterTopKFn router_top_k = nullptr;
  AttentionFn attention = nullptr;
  GateFn gate = nullptr;
  CausalConvFn causal_conv = nullptr;
  L2NormFn l2_norm = nullptr;
  DeltaGatesFn delta_gates = nullptr;
  DeltaRuleFn delta_rule = nullptr;
  DotRowsFn dot_rows = nullptr;
  StreamFactorsFn stream_factors = nullptr;
  SquashFn squash = nullptr;
  StreamGatesFn stream_gates = nullptr;
  RotatePairsFn rotate_pairs = nullptr;
  CompressFn compress = nullptr;
  IndexScoresFn index_scores = nullptr;
  RouterScoresFn router_scores = nullptr;
  StreamFn stream_copy = nullptr, stream_scale = nullptr, stream_add = nullptr, stream_triad = nullptr;
  MemReadFn mem_read = nullptr;
};
// For this CPU's quirks. Every op is resolved: one without a variant at or below `isa` is a bug in the lists and
// aborts.
KernelTable resolve_kernels(Isa isa);

}  // namespace ft
