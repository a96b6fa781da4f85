// Embeddings of n-grams on the host, the same in both numerics: rows of the table as they are, in fp32.
#pragma once

#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/state_cache.h"
#include "engine/runtime/step_tokens.h"
#include "kernels/host/worker_pool.h"

namespace ft {

// Of all heads of a token, `stride` floats from one token to the next.
struct NgramRowsTo {
  float* data = nullptr;
  int64_t stride = 0;
};

// The tables that a forward pass of the family reads, in order. Runs one, silently.
std::vector<NgramEmbedSpec> ngram_tables(const Family& family, const ModelWeights& weights);

// A step's rows, asked for together before the first is read; then remembers each sequence's last tokens.
void embed_ngrams(const NgramEmbedSpec& spec, const ModelWeights& weights, WorkerPool& pool, const StepTokens& tokens,
                  StateCache& states, const NgramRowsTo& to);

}  // namespace ft
