// bench_policies [TOKENS [LAYERS]]: misses of the cache policies, of the offline optimum and with look-ahead, on the
// presets of diverse, mixed and agentic text and three geometries. Shares of distinct experts, in percent, after a
// quarter of the tokens. Columns of a CPU arm: half of the misses fetched and no promotions; nothing fetched and one
// promotion a layer.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "tuner/optimum.h"
#include "tuner/replay.h"

namespace {

using namespace ft;

struct Geometry {
  const char* name;
  int layers, experts, top_k;
};

double miss_percent(const RoutingTrace& trace, ReplayOptions options) {
  options.discard_steps = trace.tokens / 4;
  return 100 * (1 - replay(split_trace(trace, 1), options).hit_rate);
}

SplitTable share(int size, int numerator, int denominator) {
  SplitTable table;
  for (int m = 0; m <= size; ++m) table.push_back(m * numerator / denominator);
  return table;
}

void print_cell(const Geometry& g, const char* preset, const RoutingTrace& trace, int percent) {
  const int64_t slots = int64_t{g.layers} * g.experts * percent / 100;
  ReplayOptions options{slots, share(g.top_k, 1, 1)};
  const auto both = [&](double(&rates)[2]) {
    for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLrfu}) {
      options.cache_policy = policy;
      rates[policy == CachePolicy::kLru ? 0 : 1] = miss_percent(trace, options);
    }
  };
  double all[2], half[2], cpu[2];
  both(all);
  const OptimumResult optimum = offline_optimum(split_trace(trace, 1), slots, trace.tokens / 4);
  std::printf("%s %-8s %3d %% %6.1f %6.1f %6.1f ", g.name, preset, percent, all[0], all[1],
              100 * static_cast<double>(optimum.misses) / static_cast<double>(optimum.experts));
  options.fetch_of_misses = share(g.top_k, 1, 2);
  both(half);
  options.fetch_of_misses = share(g.top_k, 0, 1);
  options.promotions = 1;
  both(cpu);
  std::printf(" %6.1f %6.1f  %6.1f %6.1f ", half[0], half[1], cpu[0], cpu[1]);
  options.fetch_of_misses = share(g.top_k, 1, 1);
  options.promotions = 0;
  for (const int prefetches : {1, 2, 4}) {
    options.max_prefetches = prefetches;
    options.discard_steps = trace.tokens / 4;
    const ReplayResult result = replay(split_trace(trace, 1), options);
    const double copies =
        static_cast<double>(result.prefetched) / (static_cast<double>(result.steps) * g.layers * g.top_k);
    const double used =
        static_cast<double>(result.prefetch_useful) / static_cast<double>(std::max<int64_t>(1, result.prefetched));
    std::printf(" %5.1f+%-4.1f (%2.0f)", 100 * (1 - result.hit_rate), 100 * copies, 100 * used);
  }
  std::printf("\n");
  std::fflush(stdout);
}

int64_t number(const char* text, int64_t otherwise) {
  int64_t value = otherwise;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = number(argc > 1 ? argv[1] : nullptr, 400);
  const auto layers = static_cast<int>(number(argc > 2 ? argv[2] : nullptr, 0));
  std::printf("misses, %% of activations; look-ahead 0.8/0.7: misses left + copies ahead (share of them used), LRFU\n");
  std::printf(
      "g preset   slots    LRU   LRFU    MIN   half:LRU LRFU  cpu+1:LRU LRFU   1 ahead         2 ahead         4 "
      "ahead\n");
  for (const Geometry& all : {Geometry{"A", 48, 128, 8}, {"B", 48, 512, 10}, {"C", 28, 256, 6}}) {
    Geometry g = all;
    if (layers > 0) g.layers = layers;
    for (const char* preset : {"diverse", "mixed", "agentic"}) {
      RoutingTrace trace = generate_trace(preset, g.layers, g.experts, g.top_k, tokens, 7);
      draw_predictions(trace, 0.8, 0.7, 7);
      for (const int percent : {10, 25, 50}) print_cell(g, preset, trace, percent);
    }
  }
  return 0;
}
