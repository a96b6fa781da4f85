// The expert banks on the nodes whose workers compute them (kernels/host/numa.h).
#pragma once

#include <string>

#include "engine/model/weights.h"
#include "kernels/host/numa.h"

namespace ft {

// Moves the bank's pages to the plan's nodes; before they are registered with a device, since registered pages cannot
// move. Values do not change. What was done, for a log: "18.2 GB on node 0, 18.2 GB on node 1"; empty with one node,
// where nothing is done.
std::string place_bank(const ExpertBank& bank, const NumaPlan& plan);

}  // namespace ft
