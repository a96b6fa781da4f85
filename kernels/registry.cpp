#include "kernels/registry.h"

#include "kernels/base/error.h"

// Declarations of every variant, then the table: both from the same lists.
#define FT_KERNEL(op, format, isa, space, function, Args) \
  namespace ft::space {                                   \
  void function(Args&);                                   \
  }
#include "kernels/variants_rows.def"
#include "kernels/variants_weights.def"
#undef FT_KERNEL

namespace ft {
namespace {

constexpr int kBf16 = static_cast<int>(FormatId::kBf16);
constexpr int kNvfp4 = static_cast<int>(FormatId::kNvfp4);
constexpr int kFp8Block = static_cast<int>(FormatId::kFp8Block);

#define FT_KERNEL(op, format, isa, space, function, Args) \
  KernelDesc{OpId::op, format, Isa::isa, #function "." #space, &space::function},
const KernelDesc kTable[] = {
#include "kernels/variants_rows.def"
#include "kernels/variants_weights.def"
    KernelDesc{}};
#undef FT_KERNEL

[[maybe_unused]] constexpr int kFormatsUsed[] = {kBf16, kNvfp4, kFp8Block};

}  // namespace

std::span<const KernelDesc> kernel_registry() { return {kTable, std::size(kTable) - 1}; }

const KernelDesc* find_kernel(OpId op, int format, Isa isa) {
  const KernelDesc* best = nullptr;
  for (const KernelDesc& kernel : kernel_registry()) {
    if (kernel.op != op || kernel.format != format || kernel.isa > isa) continue;
    if (best == nullptr || kernel.isa > best->isa) best = &kernel;
  }
  return best;
}

}  // namespace ft
