// Embeddings of n-grams on the host, the same in both numerics: rows of the table as they are, in fp32.
#pragma once

#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/backend_parts.h"
#include "engine/runtime/state_cache.h"

namespace ft {

// A step's rows, asked for together before the first is read; then remembers each sequence's last tokens.
void embed_ngrams(const NgramEmbedSpec& spec, const BackendParts& parts, const StepTokens& tokens, StateCache& states,
                  const RowBuffer<float>& to);

}  // namespace ft
