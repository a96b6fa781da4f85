// Launchers of attention to blocks of tokens that an index chooses, the bits of the host device: what is beside the
// attention itself (engine/runtime/block_index.h says when entries close and which tokens are attended to).
//
// A step calls attention_prepare (ops.h), blocks_prepare, then for groups of its tokens compressed_choose
// (compressed.h), blocks_gather and attention over what was gathered, and with runs blocks_keep at last. Positions are
// read on the device.
#pragma once

#include "kernels/cuda/compressed.h"

namespace ft::cuda {

struct BlocksArgs {
  // Of it: layer, tokens, runs or sequences and positions, max_positions, norm_eps, rotation, index_q (index_heads
  // queries, then the token's index row), index_weight and index_norm, the norm of entries.
  CompressedArgs step;
  const float* query_norm = nullptr;  // (index_dim)
  KvView kv;                          // without a ring
  int64_t row_elements = 0;           // of a position in the cache
};
// Norms, rotates and rounds the index queries in place, and makes the entries of blocks whose last token is in this
// step. Without runs also keeps the index rows.
void blocks_prepare(const BlocksArgs& args, StreamHandle stream);
// The last index rows of every run go where the next step finds them.
void blocks_keep(const BlocksArgs& args, StreamHandle stream);
// What each token of the group attends to: the blocks that it chose and the tokens after the last whole one, or all
// tokens where it does not choose.
void blocks_gather(const BlocksArgs& args, const CompressedGroup& group, StreamHandle stream);

}  // namespace ft::cuda
