// The CPU's part of a step on a device: experts whose weights stay in the bank, computed when the device posts them.
//
// The mailbox (kernels/cuda/moe.h) says which pairs of which layer; rows of activations come in and rows of outputs go
// back through pinned memory. Same kernels, same blobs, same bits as on the device.
// Thread rule: one thread, which is the pool's caller. serve() allocates, locks and logs nothing beyond the pool's
// waits.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/weights.h"
#include "engine/runtime/expert_pairs.h"
#include "engine/runtime/expert_work.h"
#include "kernels/cuda/moe.h"
#include "kernels/host/worker_pool.h"

namespace ft {

struct CpuArmMemory {
  const int32_t* ids = nullptr;  // (max_tokens, top_k): the expert of a pair that the CPU computes, else -1
  const uint32_t* x = nullptr;   // (max_tokens) packed rows of hidden
  float* out = nullptr;  // (max_tokens * top_k) rows of hidden; rows of pairs that are not its own stay as they are
};

class CpuArm {
 public:
  CpuArm(const ExpertBank& bank, int top_k, int64_t max_tokens, const KernelTable& kernels, WorkerPool& pool,
         WorkerMarks& marks, const CpuArmMemory& memory);

  // Computes the posted pairs of MoE layer `layer`; out is written when it returns.
  void serve(int layer, int64_t tokens);

 private:
  const ExpertBank& bank_;
  int top_k_ = 0;
  WorkerPool& pool_;
  CpuArmMemory memory_;
  int64_t hidden_ = 0, x_words_ = 0;
  ExpertPairs pairs_;
  ExpertWork work_;
  std::vector<ExpertItem> items_;
};

}  // namespace ft
