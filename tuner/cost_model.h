// Time of a decode step from a few parameters: what DESIGN section 7 decides with. Pure arithmetic.
//
// Every arm has a fixed cost a (paid when it has work) and slopes per expert and per further token of an expert: n
// experts with p picks take s n + e (p - n).
//
// Device::kCuda: the CPU works beside the device.
//   t_layer = base + max(t_cpu, t_link(f) + t_slot(hits + f)),  t_arm = a[n > 0] + s n + e (p - n)
// Device::kHost: the engine computes hits and CPU experts together as one group of work (two barriers: one fixed cost),
// then the fetched ones in groups as they arrive; only the copies run beside that. With W = max(a_g[hits], a_c[c]) +
// their slopes, F the slopes of all fetched ones and t_link(n) = a_f + s_f n, + a_w where nothing else is to compute
// (the threads fall asleep until the first copy is there, and waking takes its time):
//   t_layer = base + W                                                           f = 0
//   t_layer = base + a_g + max(W + F,  t_link(f) + F / f,  t_link(1) + F + a_g[f > 1])
// (every copy is there in time; the last copy is waited for; the first is, then computing is slower than the link and
// all the others make one more group).
// base is router, merge and hand-over: fixed and per token. While copies and W run together, W takes 1 +
// contention_compute and the link 1 + contention_link of its time alone; what is left of one when the other has ended
// runs at full speed (measured on two cores: one expert to fetch and 1, 2, 3 on the CPU take 26 + 8, 16, 25 us, three
// to fetch and one on the CPU 49 + 6, where a link slowed to its end would take 49 + 18).
// On the host a promotion costs per_promotion. On a GPU promotions take the link while no fetch does, over the whole
// step, and the step ends when all are there: they slow CPU experts as fetches do, and
//   t_step = max(t_dense + a_q + sum of t_layer,  sum of the link's time for fetches and promotions)
// a_q is the kernel that copies them: it holds multiprocessors during the whole step. Promotions that do not fit beside
// a layer's arms, at the link's speed beside the CPU, add their time to the layer, at most twice what its base and the
// dense part take (measured: 30 to 55 us a layer that promotes in a hybrid, none where the CPU's experts take longer
// than the copy). Look-ahead: a_r + e_r
// tokens a layer for the predicting router, and the link carries prefetched experts too, behind the layer's own
// fetches: they slow what runs beside them like fetches, and where link time of a layer (fetches, then s_f for each
// prefetched one) is longer than the layer and what follows it before the next one, the next layer waits for the rest.
// What a prefetch saves shows in the replay: hits in place of misses. The copy engine has a fixed cost and a slope of
// the link of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/engine_config.h"
#include "tuner/replay.h"

namespace ft {

// Seconds; the contentions are ratios. One set per thread count.
enum class CostTerm : uint8_t {
  kBase,
  kBasePerToken,
  kSlotFixed,
  kSlotPerExpert,
  kSlotPerPick,
  kCpuFixed,
  kCpuPerExpert,
  kCpuPerPick,
  kLinkFixed,
  kLinkPerExpert,
  kPerPromotion,
  kLinkIdle,
  kContentionCompute,
  kContentionLink,
  kCopyEngineFixed,  // a_f and s_f of FetchMechanism::kCopyEngine: see engaged_cost
  kCopyEnginePerExpert,
  kLookAhead,  // per layer with look-ahead
  kLookAheadPerToken,
  kCopier,  // per step, on a GPU: what promotions or prefetches cost before one is copied
};
inline constexpr int kCostTermCount = 19;
inline constexpr int kLinearTermCount = 11;  // the ones that cells with one arm tell: before kLinkIdle

struct CostTermInfo {
  CostTerm term{};
  std::string_view name;      // "s_c": as in the profile
  std::string_view unit;      // "s" or "1"
  bool fixed = false;         // paid per layer (or token of a layer), whatever the number of experts
  bool engaged_only = false;  // of a mechanism or look-ahead: see engaged_cost; not in the sweep's fit
};
std::span<const CostTermInfo> cost_terms();  // indexed by CostTerm

struct CostParameters {
  int threads = 1;
  double value[kCostTermCount] = {};

  double operator[](CostTerm term) const { return value[static_cast<int>(term)]; }
  double& operator[](CostTerm term) { return value[static_cast<int>(term)]; }
};

// The parameters of an engine with this mechanism and look-ahead: link terms of the copy engine take the place of a_f
// and s_f, a_r and e_r are added to the base. All other functions take these.
CostParameters engaged_cost(const CostParameters& cost, FetchMechanism mechanism, LookAhead look_ahead);

// between: seconds from the end of this layer to the next one, in which prefetched experts may still come.
double layer_seconds(const CostParameters& cost, Device device, const LayerCounts& counts, double between = 0);
// The same in pieces, which sum to it.
struct LayerPieces {
  double base = 0, arms = 0;
  double rest = 0;        // of prefetches and promotions: what the next layer waits for
  double link = 0;        // cuda: of fetches, prefetches and promotions, one after the other
  bool cpu_last = false;  // cuda: of the arms the CPU's ends last
};
// What a step waits for promotions at its end: they have `available` seconds of it.
inline double promotion_wait(double link_seconds, double available) {
  return link_seconds > available ? link_seconds - available : 0;
}
LayerPieces layer_pieces(const CostParameters& cost, Device device, const LayerCounts& counts, double between = 0);

// The step without its MoE layers: t = fixed + per_token tokens + (per_position + per_further_position (tokens - 1))
// context. The first sequence has a slope of its own, because caches hold the keys and values of one sequence where
// they do not hold a batch's (measured on one core: 0.18 us a position for one sequence, 0.21 to 0.33 us for eight).
struct DenseCost {
  int threads = 1;
  double fixed = 0, per_token = 0, per_position = 0, per_further_position = 0;

  double attention_seconds(int tokens, int64_t context) const {  // what grows with the context
    return (per_position + per_further_position * (tokens - 1)) * static_cast<double>(context);
  }
  double seconds(int tokens, int64_t context) const {
    return fixed + per_token * tokens + attention_seconds(tokens, context);
  }
};
// Seconds between two MoE layers: an even share of the dense part, the head counted as one more layer.
double between_layers(const DenseCost& dense, int tokens, int64_t context, int layers);

inline constexpr double kLeastStepSeconds = 1e-12;  // so that rates of a model of zeros are numbers
// One decode step: dense part plus all layers, expected over the replay's distribution.
double step_seconds(const CostParameters& cost, const DenseCost& dense, Device device, int64_t context,
                    const ReplayResult& replay);

// The split of m misses that finishes a layer first, for m = 0 .. max_distinct; hits are what is left of `distinct`
// experts, picks are shared out evenly. Ties fetch fewer. This is the best for one layer; what it does to later hits
// shows in the replay.
SplitTable best_split(const CostParameters& cost, Device device, int tokens, int picks, int distinct, int max_distinct);

}  // namespace ft
