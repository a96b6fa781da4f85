// Attention to a window and to compressed entries on the host, written once for both numerics: which rows a token
// attends to, when entries close, and how the work is shared. The arithmetic is `Math`'s.
//
// A step reads positions before its runs from the cache, and those of its runs from its own rows; it puts the last of
// these into the rings when all is done. An entry is made by the step that holds the last token of its window. What a
// token sees is therefore the same however a text is cut into steps.
// Tokens take turns in groups of one a thread: their rows are gathered beside each other, window first, then entries in
// order, and the attention walks over them as over any context. Its splits are places in that list, which depends on
// the token's position alone.
//
// Math: Element; Guard, held while a thread works; store(float) -> Element; round_query(x, count);
//   norm(x, rows, dim, eps) without a weight, in place; norm_entry(x, weight, dim, eps) in place;
//   rotate(RotatePairsArgs); compress(CompressArgs);
//   round_row(x, dim, rotated) and round_index(x, dim), what a cache of few bits makes of a row, entry or index vector;
//   score(q, weight, heads, dim, keys, count, scores); attend(Attended, worker).
// Thread rule: one thread calls. No allocation after the constructor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/runtime/activation_buffers.h"
#include "engine/runtime/backend_parts.h"
#include "engine/runtime/compressed_cache.h"
#include "engine/runtime/entry_choice.h"
#include "kernels/ops/compressed.h"

namespace ft {

// Heads of one token over gathered rows that are keys and values.
template <class Element>
struct Attended {
  const float* q = nullptr;  // (heads, dim)
  const Element* rows = nullptr;
  int64_t count = 0;
  int64_t dim = 0;
  float scale = 0;
  const float* sinks = nullptr;  // (heads)
  int64_t heads = 0;
  float* out = nullptr;  // (heads, dim)
};

template <class Math>
class CompressedAttention {
 public:
  using Element = typename Math::Element;

  // Allocates nothing for a model without such layers.
  CompressedAttention(const BackendParts& parts, Math math) : parts_(parts), math_(std::move(math)) {
    const std::vector<CompressedLayer>& layers = parts.family.geometry().compressed;
    if (layers.empty() || layers.front().blocks) return;
    cache_ = CompressedCache<Element>(layers, parts.sequences, parts.max_context, &parts.pool);
    group_ = std::min<int64_t>(parts.pool.threads(), parts.max_tokens);
    int64_t dim = 0, attended = 0, indexed = 0, slots = 0;
    for (const CompressedLayer& layer : layers) {
      dim = std::max({dim, layer.head_dim, layer.index_dim});
      attended = std::max(attended, layer.attended(parts.max_context) * layer.head_dim);
      if (layer.index_dim > 0) indexed = std::max(indexed, layer.entries(parts.max_context));
      slots = std::max(slots, layer.open_rows());
    }
    fresh_ = RowBuffer<Element>(parts.max_tokens, dim, &parts.pool);
    gathered_ = RowBuffer<Element>(group_, attended, &parts.pool);
    choice_ = EntryChoice(group_, indexed, &parts.pool);
    entry_ = RowBuffer<float>(parts.pool.threads(), dim);
    slot_rows_ = RowBuffer<const float*>(parts.pool.threads(), 3 * slots);
    run_of_.resize(static_cast<size_t>(parts.max_tokens));
  }

  void run(const CompressedAttentionSpec& spec, const StepTokens& tokens, const ActivationBuffers& buffers,
           const RopeTable& rope) {
    spec_ = &spec, tokens_ = &tokens, buffers_ = &buffers, rope_ = &rope;
    layer_ = &cache_.layer(spec.layer);
    start();
    parts_.pool.run([this](int worker, int workers) {
      const typename Math::Guard guard;
      prepare(worker, workers);
      parts_.pool.barrier();
      close_entries(worker, workers);
      for (int64_t first = 0; first < tokens_->count(); first += group_) {
        parts_.pool.barrier();
        const int64_t count = std::min(group_, tokens_->count() - first);
        if (any_chosen_) {
          score(first, count, worker, workers);
          parts_.pool.barrier();
          choose(first, count, worker, workers);
          parts_.pool.barrier();
        }
        gather(first, count, worker, workers);
        parts_.pool.barrier();
        attend(first, count, worker, workers);
      }
      parts_.pool.barrier();
      keep(worker, workers);
    });
  }

  void copy_sequence(int sequence, const CompressedAttention& from, int from_sequence, int64_t length) {
    if (group_ > 0) cache_.copy_sequence(sequence, from.cache_, from_sequence, length);
  }

 private:
  static constexpr int64_t kBlock = 64;  // rows of one task

  const StepTokens::Run& run_of(int64_t token) const {
    return tokens_->runs[static_cast<size_t>(run_of_[static_cast<size_t>(token)])];
  }
  int64_t position(int64_t token) const { return tokens_->position[static_cast<size_t>(token)]; }
  int64_t visible_entries(int64_t token) const { return layer_->ratio > 0 ? (position(token) + 1) / layer_->ratio : 0; }
  bool chooses(int64_t token) const { return layer_->index_dim > 0 && visible_entries(token) > layer_->index_top_k; }
  int64_t window_rows(int64_t token) const { return std::min(layer_->window, position(token) + 1); }
  int64_t attended_entries(int64_t token) const {
    return chooses(token) ? layer_->index_top_k : visible_entries(token);
  }

  void start() {
    longest_ = 0;
    any_chosen_ = false;
    closing_ = 0;
    for (size_t run = 0; run < tokens_->runs.size(); ++run) {
      const StepTokens::Run& at = tokens_->runs[run];
      std::fill_n(run_of_.begin() + at.first, at.count, static_cast<int32_t>(run));
      const int64_t last = at.first + at.count - 1;
      longest_ = std::max(longest_, position(last) + 1);
      any_chosen_ = any_chosen_ || chooses(last);
      closing_ += closing(at);
    }
  }

  // Entries of a run: those whose windows end in it.
  int64_t first_closing(const StepTokens::Run& run) const { return position(run.first) / layer_->ratio; }
  int64_t closing(const StepTokens::Run& run) const {
    if (layer_->ratio == 0) return 0;
    return (position(run.first) + run.count) / layer_->ratio - first_closing(run);
  }

  void rotate(float* x, int64_t rows, int64_t dim, int64_t at, bool inverse) {
    math_.rotate({x, rows, dim, rope_->cos.data() + at * rope_->half, rope_->sin.data() + at * rope_->half, rope_->half,
                  inverse});
  }

  // Units of a token: query heads, index heads, then the row that is cached.
  void prepare(int worker, int workers) {
    const int64_t heads = spec_->heads, all = heads + layer_->index_heads, units = all + 1;
    const Range part = split_range(tokens_->count() * units, worker, workers);
    for (int64_t task = part.begin; task < part.end;) {
      const int64_t token = task / units, first = task % units;
      const int64_t last = std::min(units, first + part.end - task);
      if (first < heads) prepare_queries(token, first, std::min(last, heads));
      if (all > heads && last > heads && first < all)
        prepare_index(token, std::max(first, heads) - heads, std::min(last, all) - heads);
      if (last == units) prepare_row(token);
      task += last - first;
    }
  }
  void prepare_queries(int64_t token, int64_t first, int64_t last) {
    const int64_t dim = layer_->head_dim;
    float* q = (*buffers_)[Slot::kQuery].row(token) + first * dim;
    math_.norm(q, last - first, dim, spec_->norm_eps);
    rotate(q, last - first, dim, position(token), false);
    math_.round_query(q, (last - first) * dim);
  }
  void prepare_index(int64_t token, int64_t first, int64_t last) {
    const int64_t dim = layer_->index_dim;
    float* q = (*buffers_)[Slot::kIndexQuery].row(token) + first * dim;
    rotate(q, last - first, dim, position(token), false);
    for (int64_t h = 0; h < last - first; ++h) math_.round_index(q + h * dim, dim);
    math_.round_query(q, (last - first) * dim);
    float* weight = (*buffers_)[Slot::kIndexWeight].row(token);
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim * layer_->index_heads)));
    for (int64_t h = first; h < last; ++h) weight[h] *= scale;
  }
  void prepare_row(int64_t token) {
    float* x = (*buffers_)[Slot::kKey].row(token);
    rotate(x, 1, layer_->head_dim, position(token), false);
    math_.round_row(x, layer_->head_dim, 2 * rope_->half);
    for (int64_t i = 0; i < layer_->head_dim; ++i) fresh_.row(token)[i] = math_.store(x[i]);
  }

  void close_entries(int worker, int workers) {
    const int64_t kinds = layer_->index_dim > 0 ? 2 : 1;
    const Range part = split_range(closing_ * kinds, worker, workers);
    int64_t base = 0;
    for (const StepTokens::Run& run : tokens_->runs) {
      const int64_t count = closing(run) * kinds;
      for (int64_t task = std::max(part.begin, base); task < std::min(part.end, base + count); ++task) {
        close_entry(run, first_closing(run) + (task - base) / kinds, (task - base) % kinds == 1, worker);
      }
      base += count;
    }
  }

  // A token's channels for an entry, of its own window or of the one before.
  struct OpenRow {
    const float *value = nullptr, *logit = nullptr;
  };
  OpenRow open_row(const StepTokens::Run& run, int64_t t, bool index) {
    if (t >= position(run.first)) {
      const int64_t token = run.first + t - position(run.first);
      return {(*buffers_)[index ? Slot::kIndexValue : Slot::kEntryValue].row(token),
              (*buffers_)[index ? Slot::kIndexLogit : Slot::kEntryLogit].row(token)};
    }
    const int64_t main = layer_->halves() * layer_->head_dim, side = layer_->halves() * layer_->index_dim;
    const float* row = cache_.open_row(spec_->layer, run.sequence, t) + (index ? 2 * main : 0);
    return {row, row + (index ? side : main)};
  }

  void close_entry(const StepTokens::Run& run, int64_t entry, bool index, int worker) {
    const int64_t ratio = layer_->ratio, dim = index ? layer_->index_dim : layer_->head_dim;
    const float* bias = parts_.weights[index ? spec_->index_bias : spec_->entry_bias].data();
    const float** value = slot_rows_.row(worker);
    const float** logit = value + layer_->open_rows();
    const float** biases = logit + layer_->open_rows();
    int64_t slots = 0;
    const int64_t before = layer_->overlap && entry > 0 ? ratio : 0;
    for (int64_t t = entry * ratio - before; t < (entry + 1) * ratio; ++t, ++slots) {
      // Channels for the next window come first.
      const int64_t channel = layer_->overlap && t >= entry * ratio ? dim : 0;
      const OpenRow open = open_row(run, t, index);
      value[slots] = open.value + channel;
      logit[slots] = open.logit + channel;
      biases[slots] = bias + t % ratio * layer_->halves() * dim + channel;
    }
    float* x = entry_.row(worker);
    math_.compress({value, logit, biases, slots, dim, x});
    math_.norm_entry(x, parts_.weights[index ? spec_->index_norm : spec_->entry_norm].data(), dim, spec_->norm_eps);
    rotate(x, 1, dim, entry * ratio, false);
    index ? math_.round_index(x, dim) : math_.round_row(x, dim, 2 * rope_->half);
    Element* to =
        index ? cache_.index_entry(spec_->layer, run.sequence, entry) : cache_.entry(spec_->layer, run.sequence, entry);
    for (int64_t i = 0; i < dim; ++i) to[i] = math_.store(x[i]);
  }

  // Of the token at a place of the group.
  int64_t competing(int64_t token) const { return chooses(token) ? visible_entries(token) : 0; }
  void score(int64_t first, int64_t count, int worker, int workers) {
    choice_.score(
        count, longest_ / layer_->ratio, worker, workers, [&](int64_t place) { return competing(first + place); },
        [&](int64_t place, int64_t begin, int64_t end, float* to) {
          const int64_t token = first + place;
          math_.score((*buffers_)[Slot::kIndexQuery].row(token), (*buffers_)[Slot::kIndexWeight].row(token),
                      layer_->index_heads, layer_->index_dim,
                      cache_.index_entry(spec_->layer, run_of(token).sequence, begin), end - begin, to);
        });
  }
  void choose(int64_t first, int64_t count, int worker, int workers) {
    choice_.choose(count, layer_->index_top_k, worker, workers,
                   [&](int64_t place) { return competing(first + place); });
  }

  void gather(int64_t first, int64_t count, int worker, int workers) {
    const int64_t dim = layer_->head_dim;
    const int64_t blocks = (layer_->attended(longest_) + kBlock - 1) / kBlock;
    const Range part = split_range(count * blocks, worker, workers);
    for (int64_t task = part.begin; task < part.end; ++task) {
      const int64_t place = task / blocks, token = first + place, window = window_rows(token);
      const int64_t rows = window + attended_entries(token), begin = task % blocks * kBlock;
      for (int64_t row = begin; row < std::min(begin + kBlock, rows); ++row) {
        const Element* from = row < window ? window_row(token, position(token) - window + 1 + row)
                                           : attended_entry(token, place, row - window);
        std::copy_n(from, dim, gathered_.row(place) + row * dim);
      }
    }
  }
  const Element* window_row(int64_t token, int64_t t) {
    const StepTokens::Run& run = run_of(token);
    const int64_t begin = position(run.first);
    return t >= begin ? fresh_.row(run.first + t - begin) : cache_.row(spec_->layer, run.sequence, t);
  }
  const Element* attended_entry(int64_t token, int64_t place, int64_t index) {
    const int64_t entry = chooses(token) ? choice_.chosen(place, index) : index;
    return cache_.entry(spec_->layer, run_of(token).sequence, entry);
  }

  void attend(int64_t first, int64_t count, int worker, int workers) {
    const int64_t dim = layer_->head_dim, heads = spec_->heads;
    const Range part = split_range(count * heads, worker, workers);
    for (int64_t task = part.begin; task < part.end;) {
      const int64_t place = task / heads, token = first + place, head = task % heads;
      const int64_t last = std::min(heads, head + part.end - task);
      Attended<Element> args;
      args.q = (*buffers_)[Slot::kQuery].row(token) + head * dim;
      args.rows = gathered_.row(place);
      args.count = window_rows(token) + attended_entries(token);
      args.dim = dim;
      args.scale = spec_->scale;
      args.sinks = parts_.weights[spec_->sinks].data() + head;
      args.heads = last - head;
      args.out = (*buffers_)[Slot::kAttention].row(token) + head * dim;
      math_.attend(args, worker);
      rotate(args.out, args.heads, dim, position(token), true);
      task += last - head;
    }
  }

  // The last rows of every run go where the next step finds them.
  void keep(int worker, int workers) {
    const int64_t ring = cache_.ring_rows(spec_->layer), open = layer_->open_ring();
    const Range part = split_range(tokens_->count(), worker, workers);
    for (int64_t token = part.begin; token < part.end; ++token) {
      const StepTokens::Run& run = run_of(token);
      const int64_t left = run.first + run.count - token;  // itself included
      if (left <= ring) {
        std::copy_n(fresh_.row(token), layer_->head_dim, cache_.row(spec_->layer, run.sequence, position(token)));
      }
      if (left <= open) keep_open(token, cache_.open_row(spec_->layer, run.sequence, position(token)));
    }
  }
  void keep_open(int64_t token, float* to) {
    const int64_t main = layer_->halves() * layer_->head_dim, side = layer_->halves() * layer_->index_dim;
    to = std::copy_n((*buffers_)[Slot::kEntryValue].row(token), main, to);
    to = std::copy_n((*buffers_)[Slot::kEntryLogit].row(token), main, to);
    if (side == 0) return;
    to = std::copy_n((*buffers_)[Slot::kIndexValue].row(token), side, to);
    std::copy_n((*buffers_)[Slot::kIndexLogit].row(token), side, to);
  }

  BackendParts parts_;
  Math math_;
  CompressedCache<Element> cache_;
  int64_t group_ = 0;                  // tokens that attend at a time
  RowBuffer<Element> fresh_;           // (max_tokens) rows of the step
  RowBuffer<Element> gathered_;        // (group) rows of a token
  EntryChoice choice_;                 // (group)
  RowBuffer<float> entry_;             // (threads) the entry at work
  RowBuffer<const float*> slot_rows_;  // (threads) values, logits and biases of the entry at work
  std::vector<int32_t> run_of_;        // (max_tokens)

  // Of the layer at work.
  const CompressedAttentionSpec* spec_ = nullptr;
  const CompressedLayer* layer_ = nullptr;
  const StepTokens* tokens_ = nullptr;
  const ActivationBuffers* buffers_ = nullptr;
  const RopeTable* rope_ = nullptr;
  int64_t longest_ = 0;      // positions of the longest sequence after the step
  bool any_chosen_ = false;  // some token has more entries than it may attend to
  int64_t closing_ = 0;      // entries that close in this step
};

}  // namespace ft
