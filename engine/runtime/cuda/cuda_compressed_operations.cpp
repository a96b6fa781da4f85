// Residual streams (gated ones: cuda_gated_operations.cpp), attention to compressed entries and grouped products on a
// CUDA device: the same launches in decode steps and in prompts, but for the attention of prompts to entries.
#include <algorithm>

#include "engine/runtime/cuda/cuda_backend_impl.h"
#include "kernels/base/error.h"
#include "kernels/cuda/streams.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/cache_grid.h"

namespace ft {

void CudaBackend::streams_read(const StreamsSpec& spec, Slot to) {
  if (spec.kind == StreamsKind::kGated) return read_gated_streams(spec, to);
  const Rows x = rows(Slot::kResidual), logits = rows(Slot::kStreamLogits), factors = rows(Slot::kStreamFactors);
  FT_CHECK(x.width % spec.streams == 0);
  cuda::StreamsReadArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  args.tokens = count_;
  args.streams = spec.streams;
  args.width = x.width / spec.streams;
  args.fn = (*weights_)[spec.fn];
  args.scale = (*weights_)[spec.scale];
  args.base = (*weights_)[spec.base];
  args.writes = spec.writes;
  args.rounds = spec.rounds;
  args.eps = spec.eps;
  args.norm_eps = spec.norm_eps;
  args.logits = logits.data;
  args.logits_stride = logits.width;
  args.factors = factors.data;
  args.factors_stride = factors.width;
  args.to = rows(to).data;
  args.to_stride = rows(to).width;
  cuda::streams_read(args, main_.handle());
}

void CudaBackend::streams_write(const StreamsSpec& spec, Slot from) {
  const Rows x = rows(Slot::kResidual), factors = rows(Slot::kStreamFactors);
  cuda::StreamsWriteArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  args.tokens = count_;
  args.streams = spec.streams;
  args.width = x.width / spec.streams;
  args.factors = factors.data;
  args.factors_stride = factors.width;
  args.from = rows(from).data;
  args.from_stride = rows(from).width;
  if (spec.kind == StreamsKind::kGated) return cuda::gated_streams_write(args, main_.handle());
  cuda::streams_write(args, main_.handle());
}

// Of a layer: the step's tokens, and the index where there is one.
cuda::CompressedArgs CudaBackend::compressed_step(int layer, int rope, float norm_eps) const {
  const SequenceMemory::Rotation& rotation = sequences_.rotation(rope);
  cuda::CompressedArgs args;
  args.layer = compressed_.layer(layer);
  args.tokens = count_;
  args.sequence = input<int32_t>(inputs().sequence);
  args.position = input<int64_t>(inputs().position);
  args.max_positions = parts_.max_context;  // of a graph: whatever the positions will be
  if (!decode_) {
    args.runs = prefill_.runs();
    args.run_count = static_cast<int>(tokens_->runs.size());
    args.max_positions = 0;
    for (const StepTokens::Run& run : tokens_->runs) {
      args.max_run_tokens = std::max(args.max_run_tokens, static_cast<int>(run.count));
      args.max_positions = std::max(args.max_positions, tokens_->position[static_cast<size_t>(run.first)] + run.count);
    }
  }
  args.norm_eps = norm_eps;
  args.cos = rotation.cos;
  args.sin = rotation.sin;
  args.half = static_cast<int>(rotation.half);
  args.index_q = {rows(Slot::kIndexQuery).data, rows(Slot::kIndexQuery).width};
  return args;
}

cuda::CompressedArgs CudaBackend::compressed_args(const CompressedAttentionSpec& spec) const {
  const auto rows_of = [&](Slot slot) { return cuda::CompressedArgs::Rows{rows(slot).data, rows(slot).width}; };
  cuda::CompressedArgs args = compressed_step(spec.layer, spec.rope, spec.norm_eps);
  args.heads = spec.heads;
  args.on_grids = parts_.deepseek_arithmetic == DeepseekArithmetic::kAuthors;
  if (rounds_index(args.layer.index_dim)) args.hadamard_scale = hadamard_scale(args.layer.index_dim);
  args.q = rows(Slot::kQuery).data;
  args.q_stride = rows(Slot::kQuery).width;
  args.key = rows(Slot::kKey).data;
  args.key_stride = rows(Slot::kKey).width;
  args.fresh = compressed_.fresh();
  args.entry_value = rows_of(Slot::kEntryValue);
  args.entry_logit = rows_of(Slot::kEntryLogit);
  args.index_value = rows_of(Slot::kIndexValue);
  args.index_logit = rows_of(Slot::kIndexLogit);
  args.index_weight = rows_of(Slot::kIndexWeight);
  args.entry_bias = vector_or_null(spec.entry_bias);
  args.entry_norm = vector_or_null(spec.entry_norm);
  args.index_bias = vector_or_null(spec.index_bias);
  args.index_norm = vector_or_null(spec.index_norm);
  args.out = rows(Slot::kAttention).data;
  args.out_stride = rows(Slot::kAttention).width;
  return args;
}

// Of a group's tokens to what was gathered for them.
cuda::AttentionArgs CudaBackend::attention_of(const cuda::CompressedGroup& group) const {
  const Rows q = rows(Slot::kQuery), out = rows(Slot::kAttention);
  cuda::AttentionArgs attend;
  attend.q = q.data + group.first * q.width;
  attend.q_stride = q.width;
  attend.tokens = group.count;
  attend.sequence = group.sequence;
  attend.position = group.position;
  attend.kv = {group.gathered, group.gathered_rows, 0};
  attend.out = out.data + group.first * out.width;
  attend.out_stride = out.width;
  return attend;
}

void CudaBackend::compressed_attention(const CompressedAttentionSpec& spec) {
  const cuda::CompressedArgs args = compressed_args(spec);
  cuda::compressed_prepare(args, main_.handle());
  cuda::compressed_close(args, main_.handle());
  if (!decode_ && cuda::compressed_attend_takes(args)) {
    for (int64_t first = 0; first < count_; first += compressed_.choosing_tokens()) {
      const int64_t count = std::min(compressed_.choosing_tokens(), count_ - first);
      const cuda::CompressedGroup group = compressed_.choosing_group(first, count);
      cuda::compressed_choose(args, group, main_.handle());
      cuda::compressed_attend(args, group, {spec.scale, vector_or_null(spec.sinks)}, main_.handle());
    }
    return cuda::compressed_keep(args, main_.handle());
  }
  for (int64_t first = 0; first < count_; first += compressed_.group_tokens()) {
    const cuda::CompressedGroup group = compressed_.group(first, std::min(compressed_.group_tokens(), count_ - first));
    cuda::compressed_choose(args, group, main_.handle());
    cuda::compressed_gather(args, group, main_.handle());
    cuda::AttentionArgs attend = attention_of(group);
    attend.heads = spec.heads;
    attend.kv_heads = 1;
    attend.head_dim = args.layer.head_dim;
    attend.scale = spec.scale;
    attend.sinks = vector_or_null(spec.sinks);
    cuda::attention(attend, main_.handle());
    cuda::compressed_turn_back(args, group, main_.handle());
  }
  cuda::compressed_keep(args, main_.handle());
}

// A group is a product of its own: its rows of the matrix are whole tiles. Of a prompt all are one launch, where groups
// are whole tiles of that too.
void CudaBackend::grouped_linear(Slot from, MatrixId weight, int groups, Slot to) {
  const Rows source = rows(from), target = rows(to);
  const PackedMatrix& matrix = (*weights_)[weight];
  const PackedLayout& layout = matrix.layout;
  const int64_t cols = layout.cols, tiles = layout.row_tiles / groups;
  FT_CHECK(layout.rows == tiles * groups * kRowsPerTile);
  if (!decode_ && cuda::prefill_groups_take(layout, groups)) {
    auto* words = packed_.as<uint32_t>();
    prefill_pack(source.data, source.width, count_, groups * cols, {});
    cuda::prefill_linear({matrix, words, count_, nullptr, target.data, target.width, false, groups}, main_.handle());
    return;
  }
  for (int group = 0; group < groups; ++group) {
    const int64_t before = group * tiles;
    PackedMatrix part = matrix;
    part.data += before * layout.code_bytes_per_tile;
    part.layout.scales_offset += before * (layout.scale_bytes_per_tile - layout.code_bytes_per_tile);
    part.layout.rows = tiles * kRowsPerTile;
    part.layout.row_tiles = tiles;
    const cuda::MatvecOutput output{part, nullptr, target.data + before * kRowsPerTile, target.width, false};
    const float* x = source.data + group * cols;
    if (!decode_) {
      prefill_pack(x, source.width, count_, cols, {});
      prefill_product(packed_.as<uint32_t>(), output, count_);
      continue;
    }
    cuda::MatvecArgs args;
    args.input.x = x;
    args.input.x_stride = source.width;
    args.input.scratch = packed_.as<uint32_t>();
    args.tokens = count_;
    args.outputs[args.output_count++] = output;
    cuda::matvec(args, main_.handle());
  }
}

}  // namespace ft
