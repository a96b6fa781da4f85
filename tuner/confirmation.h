// Which predictions are worth a decode run, and what the runs say beside rates: refusals, and candidates that turned
// out to be the same. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profiles/profile.h"
#include "tuner/search.h"

namespace ft {

// Candidates that are run together: each takes memory for its slots and a share of the time.
inline constexpr size_t kMaxConfirmed = 8;
// Predictions this near to the best are run too, when they differ in more than slots: no better than the error that a
// good model has.
inline constexpr double kNearFraction = 0.08;
// The same for another split or promotion budget of a strategy that is run: promotions come from a cache's history,
// which the probes do not have.
inline constexpr double kNearPolicyFraction = 0.15;

// Of `ranked`: the best of each strategy in order of prediction, the prediction's choice first and plain offload (no
// copy engine, no look-ahead) last; between them, while there are fewer than kMaxConfirmed, others that the model does
// not tell from the choice (nearer than kNearFraction, or inside the interval) and that differ from every one taken in
// strategy, threads, mechanism, look-ahead, split or promotions (kNearPolicyFraction where only these two differ). The
// baseline comes last, so that warm caches favour it and not the choice.
std::vector<size_t> candidates_to_confirm(const SearchResult& search);

// Why the samples of candidate `index` of `decode` were dropped at some point, as the probe says it; empty: they were
// not.
std::string refusal_of(std::span<const Measurement> measurements, size_t index);

// Both did the same at every point: as many steps, hits, fetches, CPU experts, promotions and prefetches, slots,
// threads and the same mechanism. Series without these counts (older samples) are never the same. Points in the same
// order.
bool engaged_the_same(std::span<const Measurement* const> a, std::span<const Measurement* const> b);

}  // namespace ft
