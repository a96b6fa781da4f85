#include "engine/runtime/cuda/cpu_arm.h"

#include "kernels/ops/activations.h"

namespace ft {

CpuArm::CpuArm(const ExpertBank& bank, int top_k, int64_t max_tokens, const KernelTable& kernels, WorkerPool& pool,
               WorkerMarks& marks, const CpuArmMemory& memory)
    : bank_(bank),
      top_k_(top_k),
      pool_(pool),
      memory_(memory),
      hidden_(bank.layout(0).hidden),
      x_words_(activation_words(hidden_)),
      pairs_(bank.experts(), top_k, max_tokens),
      work_(kernels, max_tokens * top_k, bank.layout(0).intermediate, marks, &pool) {
  items_.reserve(static_cast<size_t>(bank.experts()));
}

void CpuArm::serve(int layer, int64_t tokens) {
  pairs_.group(memory_.ids, tokens);
  const auto order = pairs_.order();
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t pair = order[i];
    work_.set_row(static_cast<int64_t>(i), memory_.x + pair / top_k_ * x_words_, pair, memory_.out + pair * hidden_);
  }
  items_.clear();
  for (const int expert : pairs_.distinct()) {
    items_.push_back(make_expert_item(expert, bank_.blob(layer, expert), pairs_.begin(expert),
                                      static_cast<int64_t>(pairs_.of(expert).size())));
  }
  const ExpertLayout& layout = bank_.layout(layer);
  pool_.run([&](int worker, int) { work_.compute(layout, items_, worker, pool_); });
}

}  // namespace ft
