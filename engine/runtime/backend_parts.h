// What a backend is made of, and what the engine asks of one beside the family's operations.
#pragma once

#include <cstdint>

#include "engine/model/family.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/routing_hooks.h"
#include "engine/runtime/step_tokens.h"
#include "kernels/host/worker_pool.h"

namespace ft {

struct BackendParts {
  const Family& family;
  const ModelWeights& weights;
  WorkerPool& pool;
  RoutingHooks& hooks;
  int64_t max_tokens = 0;  // of one step
  int sequences = 0;
  int64_t max_context = 0;
};

class StepBackend : public Backend {
 public:
  // The tokens that the following operations work on; must outlive them.
  virtual void begin_step(const StepTokens& tokens) = 0;
  // (logits rows of the step, vocab), valid until the next step.
  virtual const float* logits_rows() const = 0;
};

}  // namespace ft
