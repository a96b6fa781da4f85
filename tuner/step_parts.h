// Where the time of a predicted step goes. Pure arithmetic beside cost_model.h; the parts of a step sum to
// step_seconds.
//
// Work that runs beside other work costs nothing: a layer's time is the one of its arm that ends last.
//   dense            the step without MoE layers at no context: products, norms, head (its fixed cost and per token)
//   attention        what grows with the context
//   experts          computing experts from slots, hits and fetched ones
//   fetch            host: what copies add to a layer in waiting, slowed computing and further groups; cuda: the link's
//                    slope where the link arm ends last. Promotions and the rest of prefetches that did not fit between
//                    two layers are here too
//   cpu              computing experts from the bank; cuda: where the CPU arm ends last, slowed by copies
//   synchronization  what a layer costs however many experts it has (a_layer), the hand-over to the arms that are
//                    waited for (a_g, a_c, a_f) and the predicting router's fixed cost
//   merge            what every token of a layer costs beside its experts: router, merge, predicting router
//   idle             host: threads that fell asleep before the first copy (a_w)
// The measurements do not tell a router from a merge, or a head from the dense layers: those stay together as above.
// "sampling" of profile.h is never given: what decodes here is given its tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "profiles/profile.h"
#include "tuner/cost_model.h"

namespace ft {

enum class StepPart : uint8_t { kDense, kAttention, kExperts, kFetch, kCpu, kSynchronization, kMerge, kIdle };
inline constexpr int kStepPartCount = 8;
std::string_view step_part_name(StepPart part);  // as CostPart::name

struct StepParts {
  double seconds[kStepPartCount] = {};

  double operator[](StepPart part) const { return seconds[static_cast<int>(part)]; }
  double& operator[](StepPart part) { return seconds[static_cast<int>(part)]; }
  double total() const;
};

// Arguments as those of layer_seconds and step_seconds, whose values they sum to.
StepParts layer_parts(const CostParameters& cost, Device device, const LayerCounts& counts, double between = 0);
StepParts step_parts(const CostParameters& cost, const DenseCost& dense, Device device, int64_t context,
                     const ReplayResult& replay);

// As a profile has them: `points` per (context, batch). Parts that are zero at every point are left out.
std::vector<CostPart> cost_parts(const std::vector<StepParts>& points);

}  // namespace ft
