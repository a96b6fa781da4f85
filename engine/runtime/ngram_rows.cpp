#include "engine/runtime/ngram_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "engine/model/family.h"
#include "engine/model/ngram_hash.h"
#include "engine/runtime/silent_backend.h"

namespace ft {
namespace {

using Window = std::array<int32_t, kMaxNgramSize>;

// The state of a sequence: its tokens before the step, the last one first. Ids stand in floats bit by bit.
int32_t id_of(float kept) { return std::bit_cast<int32_t>(kept); }

class NgramRows {
 public:
  NgramRows(const NgramEmbedSpec& spec, const ModelWeights& weights, const StepTokens& tokens, StateCache& states,
            const NgramRowsTo& to)
      : hash_(*spec.hash),
        table_(weights[spec.table]),
        begin_(spec.state_begin),
        tokens_(tokens),
        states_(states),
        to_(to) {}

  int64_t tasks() const { return tokens_.count() * hash_.heads(); }

  // use(task, row) for each task, a token and a head of it.
  template <class Use>
  void for_rows(Range part, Use&& use) {
    const int64_t heads = hash_.heads();
    for (const StepTokens::Run& run : tokens_.runs) {
      const int64_t end = std::min(part.end, (run.first + run.count) * heads);
      Window window{};
      for (int64_t task = std::max(part.begin, run.first * heads), last = -1; task < end; ++task) {
        const int64_t token = task / heads;
        if (token != last) fill(run, last = token, window);
        use(task, hash_.row(std::span(window).first(size()), task % heads));
      }
    }
  }
  void ask(Range part) {
    for_rows(part, [&](int64_t, int64_t row) { table_.will_read(row); });
  }
  void read(Range part) {
    for_rows(part, [&](int64_t task, int64_t row) {
      table_.read(row, to_.data + task / hash_.heads() * to_.stride + task % hash_.heads() * table_.width());
    });
  }

  void remember() {
    for (const StepTokens::Run& run : tokens_.runs) {
      float* kept = kept_of(run);
      for (int64_t back = hash_.size() - 2; back >= 0; --back) {
        kept[back] =
            back < run.count ? std::bit_cast<float>(id(run.first + run.count - 1 - back)) : kept[back - run.count];
      }
    }
  }

 private:
  size_t size() const { return static_cast<size_t>(hash_.size()); }
  int32_t id(int64_t token) const { return tokens_.ids[static_cast<size_t>(token)]; }
  float* kept_of(const StepTokens::Run& run) const {
    return states_.part(run.sequence, begin_, ngram_state_floats(hash_.size()));
  }
  void fill(const StepTokens::Run& run, int64_t token, Window& window) const {
    const float* kept = kept_of(run);
    const int64_t in_run = token - run.first;
    for (int64_t s = 0; s < hash_.size(); ++s) {
      window[static_cast<size_t>(s)] = s <= in_run ? id(token - s) : id_of(kept[s - in_run - 1]);
    }
    hash_.separate(std::span(window).first(size()), tokens_.position[static_cast<size_t>(token)]);
  }

  const NgramHash& hash_;
  const RowTable& table_;
  int64_t begin_ = 0;
  const StepTokens& tokens_;
  StateCache& states_;
  NgramRowsTo to_;
};

class TableSites final : public SilentBackend {
 public:
  void embed_ngrams(const NgramEmbedSpec& spec) override { tables.push_back(spec); }
  std::vector<NgramEmbedSpec> tables;
};

}  // namespace

std::vector<NgramEmbedSpec> ngram_tables(const Family& family, const ModelWeights& weights) {
  TableSites sites;
  family.forward(sites, weights, StepBatch{});
  return std::move(sites.tables);
}

void embed_ngrams(const NgramEmbedSpec& spec, const ModelWeights& weights, WorkerPool& pool, const StepTokens& tokens,
                  StateCache& states, const NgramRowsTo& to) {
  NgramRows rows(spec, weights, tokens, states, to);
  pool.run([&](int worker, int workers) {
    const Range part = split_range(rows.tasks(), worker, workers);
    rows.ask(part);
    rows.read(part);
  });
  rows.remember();
}

}  // namespace ft
