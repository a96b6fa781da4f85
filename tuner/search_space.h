// What the search tries: every dimension of a candidate on its own, as far as device, memory plan, cores and trace
// allow it. Pure. How few combinations of them are enough is search_prune.h's part.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tuner/search.h"

namespace ft {

// Per layer and step. More than two experts would hold the link for the next layer; a fraction where a whole one,
// copied beside the layer, costs more than what it brings to the cache.
inline constexpr PromotionRate kPromotionRates[] = {PromotionRate::one_in(16), PromotionRate::one_in(4), 1, 2};
inline constexpr double kFetchedShares[] = {0.25, 0.5, 0.75};
inline constexpr int kFetchCaps[] = {1, 2, 3};
inline constexpr int kFetchFloors[] = {1, 2};
inline constexpr int kPrefetchCounts[] = {1, 2, 4};

// ceil(share m) of m misses, m = 0 .. size; share 1: all, 0: none.
SplitTable constant_share(int size, double share);
// All of m misses, at most `cap`.
SplitTable capped(int size, int cap);
// `split`, but of m misses at least min(m, floor): what is fetched stays for later steps, of which a split that is the
// fastest for one layer knows nothing.
SplitTable raised(SplitTable split, int floor);

// The model's own split: for misses that one sequence can have from the smallest batch, beyond from the largest.
SplitTable model_split(const SearchInput& input, const CostParameters& engaged, int size);
// For hybrid: the models' own splits as they are and raised, shares and caps, without what fetches all or nothing at
// every number of misses.
std::set<SplitTable> hybrid_splits(const SearchInput& input, const ThreadModel& model, int size);

// On the host device the pool computes what is in slots; on a GPU it has work only with a CPU arm.
bool pool_works(const SearchInput& input, Strategy strategy);
// Of the engine: a GPU's resident and offload keep one thread, the one that feeds it, or the pinned count.
int engine_threads(const SearchInput& input, Strategy strategy, const ThreadModel& model);

// Who may fetch: kSm always; the copy engine on a GPU whose link terms for it are known, at the link's full speed, when
// the cores leave one to its proxy thread beside the engine's own.
std::vector<FetchMechanism> mechanisms(const SearchInput& input, Strategy strategy, const ThreadModel& model);

// Prefetches per layer: the pinned count; else 0, and with a trace that predicts (on a GPU: a forced one, of synthetic
// weights) kPrefetchCounts where slots leave room beside a layer's experts.
std::vector<int> prefetch_counts(const SearchInput& input, Strategy strategy, int64_t slots, int size);

// Strategies differ in what they need beside slots (offload's staging buffers).
SlotBounds bounds_of(const SearchInput& input, Strategy strategy);

}  // namespace ft
