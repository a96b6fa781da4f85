// route_and_plan of one token by a cluster (route_token.cu).
#pragma once

#include "kernels/cuda/moe.h"

namespace ft::cuda {

// False where the device has no clusters of that size, the layer does not fit, or its rows are not normed.
bool route_token_takes(const RouteArgs& args, const PlanArgs& plan, int most_distinct);
// REQUIRES route_token_takes().
void route_token(const RouteArgs& args, const PlanArgs& plan, int most_distinct, StreamHandle stream);

}  // namespace ft::cuda
