// The index of attention to blocks of tokens on the host, written once for both numerics: when entries of blocks close,
// which blocks a token attends to, and which tokens these are (BlockIndexSpec). The arithmetic is `Math`'s.
//
// A step reads index rows before its runs from the cache, and those of its runs from its own rows; it puts the last of
// these into the ring when all is done. An entry is made by the step that holds the last token of its block. What a
// token attends to is therefore the same however a text is cut into steps.
//
// Math: Element; store(float) -> Element; round_query(x, count); average(rows, count, dim, out);
//   norm_rotate(x, dim, weight, eps, cos, sin, half) in place; score(q, weight, heads, dim, keys, count, scores).
// Thread rule: start() on one thread, then all threads of the pool with barriers between the calls. No allocation after
// the constructor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/backend_parts.h"
#include "engine/runtime/compressed_cache.h"
#include "engine/runtime/entry_choice.h"

namespace ft {

template <class Math>
class BlockIndex {
 public:
  using Element = typename Math::Element;

  // Allocates nothing for a model without such layers.
  BlockIndex(const BackendParts& parts, Math math) : parts_(parts), math_(std::move(math)) {
    const std::vector<CompressedLayer>& layers = parts.family.geometry().compressed;
    if (layers.empty() || !layers.front().blocks) return;
    cache_ = CompressedCache<Element>(layers, parts.sequences, parts.max_context, &parts.pool);
    group_ = std::min<int64_t>(parts.pool.threads(), parts.max_tokens);
    int64_t dim = 0, entries = 0, heads = 0, ratio = 0;
    for (const CompressedLayer& layer : layers) {
      dim = std::max(dim, layer.index_dim);
      heads = std::max(heads, layer.index_heads);
      ratio = std::max(ratio, layer.ratio);
      const int64_t all = layer.entries(parts.max_context);
      if (layer.index_top_k >= all) continue;
      entries = std::max(entries, all);
      attended_ = std::max(attended_, layer.attended(parts.max_context));
    }
    choice_ = EntryChoice(group_, entries, &parts.pool);
    entry_ = RowBuffer<float>(parts.pool.threads(), dim);
    block_rows_ = RowBuffer<const float*>(parts.pool.threads(), ratio);
    weights_.resize(static_cast<size_t>(heads));
    run_of_.resize(static_cast<size_t>(parts.max_tokens));
  }

  int64_t group() const { return group_; }        // tokens that choose at a time
  int64_t attended() const { return attended_; }  // tokens that one that chooses attends to, at most

  // Before anything else of a layer.
  void start(const AttentionSpec& spec, const StepTokens& tokens, const ActivationBuffers& buffers,
             const RopeTable& rope) {
    spec_ = &spec.index, eps_ = spec.norm_eps, tokens_ = &tokens, buffers_ = &buffers, rope_ = &rope;
    layer_ = &cache_.layer(spec_->layer);
    std::fill(weights_.begin(), weights_.end(),
              static_cast<float>(1.0 / std::sqrt(static_cast<double>(layer_->index_dim))));
    longest_ = closing_ = 0;
    any_chosen_ = false;
    for (size_t run = 0; run < tokens.runs.size(); ++run) {
      const StepTokens::Run& at = tokens.runs[run];
      std::fill_n(run_of_.begin() + at.first, at.count, static_cast<int32_t>(run));
      const int64_t last = at.first + at.count - 1;
      longest_ = std::max(longest_, position(last) + 1);
      any_chosen_ = any_chosen_ || chooses(last);
      closing_ += closing(at);
    }
  }

  int64_t heads() const { return layer_->index_heads; }
  bool any_chosen() const { return any_chosen_; }
  bool chooses(int64_t token) const { return whole_blocks(token) > layer_->index_top_k; }

  void prepare_query(int64_t token, int64_t head) {
    float* q = row(token) + head * layer_->index_dim;
    norm_rotate(q, spec_->query_norm, position(token));
    math_.round_query(q, layer_->index_dim);
  }

  // Entries whose last token is in this step.
  void close(int worker, int workers) {
    const Range part = split_range(closing_, worker, workers);
    int64_t base = 0;
    for (const StepTokens::Run& run : tokens_->runs) {
      const int64_t count = closing(run), first = position(run.first) / layer_->ratio;
      for (int64_t task = std::max(part.begin, base); task < std::min(part.end, base + count); ++task) {
        close_entry(run, first + task - base, worker);
      }
      base += count;
    }
  }

  // Of tokens [first, first + count), no more than a group.
  void score(int64_t first, int64_t count, int worker, int workers) {
    choice_.score(
        count, longest_ / layer_->ratio, worker, workers, [&](int64_t place) { return competing(first + place); },
        [&](int64_t place, int64_t begin, int64_t end, float* to) {
          math_.score(row(first + place), weights_.data(), layer_->index_heads, layer_->index_dim,
                      cache_.index_entry(spec_->layer, run_of(first + place).sequence, begin), end - begin, to);
        });
  }
  void choose(int64_t first, int64_t count, int worker, int workers) {
    choice_.choose(count, layer_->index_top_k, worker, workers,
                   [&](int64_t place) { return competing(first + place); });
  }

  // Of a token that chooses: how many tokens it attends to, and the position of the index-th of them, ascending.
  int64_t count(int64_t token) const {
    return layer_->index_top_k * layer_->ratio + (position(token) + 1) % layer_->ratio;
  }
  int64_t attended_position(int64_t token, int64_t place, int64_t index) const {
    const int64_t ratio = layer_->ratio, in_blocks = layer_->index_top_k * ratio;
    if (index < in_blocks) return choice_.chosen(place, index / ratio) * ratio + index % ratio;
    return whole_blocks(token) * ratio + index - in_blocks;
  }

  // The last index rows of every run go where the next step finds them.
  void keep(int worker, int workers) {
    const Range part = split_range(tokens_->count(), worker, workers);
    for (int64_t token = part.begin; token < part.end; ++token) {
      const StepTokens::Run& run = run_of(token);
      if (run.first + run.count - token > layer_->open_ring()) continue;
      std::copy_n(index_row(token), layer_->index_dim, cache_.open_row(spec_->layer, run.sequence, position(token)));
    }
  }

  void copy_sequence(int sequence, const BlockIndex& from, int from_sequence, int64_t length) {
    if (group_ > 0) cache_.copy_sequence(sequence, from.cache_, from_sequence, length);
  }

 private:
  const StepTokens::Run& run_of(int64_t token) const {
    return tokens_->runs[static_cast<size_t>(run_of_[static_cast<size_t>(token)])];
  }
  int64_t position(int64_t token) const { return tokens_->position[static_cast<size_t>(token)]; }
  int64_t whole_blocks(int64_t token) const { return (position(token) + 1) / layer_->ratio; }
  int64_t competing(int64_t token) const { return chooses(token) ? whole_blocks(token) : 0; }
  int64_t closing(const StepTokens::Run& run) const {
    const int64_t begin = position(run.first);
    return (begin + run.count) / layer_->ratio - begin / layer_->ratio;
  }
  float* row(int64_t token) const { return (*buffers_)[Slot::kIndexQuery].row(token); }
  const float* index_row(int64_t token) const { return row(token) + layer_->index_heads * layer_->index_dim; }

  void norm_rotate(float* x, VectorId weight, int64_t at) {
    math_.norm_rotate(x, layer_->index_dim, parts_.weights[weight].data(), eps_, rope_->cos.data() + at * rope_->half,
                      rope_->sin.data() + at * rope_->half, rope_->half);
  }

  void close_entry(const StepTokens::Run& run, int64_t entry, int worker) {
    const int64_t ratio = layer_->ratio, begin = position(run.first);
    const float** rows = block_rows_.row(worker);
    for (int64_t i = 0; i < ratio; ++i) {
      const int64_t t = entry * ratio + i;
      rows[i] = t >= begin ? index_row(run.first + t - begin) : cache_.open_row(spec_->layer, run.sequence, t);
    }
    float* x = entry_.row(worker);
    math_.average(rows, ratio, layer_->index_dim, x);
    norm_rotate(x, spec_->entry_norm, entry * ratio);
    Element* to = cache_.index_entry(spec_->layer, run.sequence, entry);
    for (int64_t i = 0; i < layer_->index_dim; ++i) to[i] = math_.store(x[i]);
  }

  BackendParts parts_;
  Math math_;
  CompressedCache<Element> cache_;
  int64_t group_ = 0, attended_ = 0;
  EntryChoice choice_;
  RowBuffer<float> entry_;              // (threads) the entry at work
  RowBuffer<const float*> block_rows_;  // (threads) its tokens' rows
  std::vector<float> weights_;          // (index heads) all of the same weight
  std::vector<int32_t> run_of_;         // (max_tokens)

  // Of the layer at work.
  const BlockIndexSpec* spec_ = nullptr;
  float eps_ = 0;
  const CompressedLayer* layer_ = nullptr;
  const StepTokens* tokens_ = nullptr;
  const ActivationBuffers* buffers_ = nullptr;
  const RopeTable* rope_ = nullptr;
  int64_t longest_ = 0;  // positions of the longest sequence after the step
  int64_t closing_ = 0;  // entries that close in this step
  bool any_chosen_ = false;
};

}  // namespace ft
