// The service's numbers for people and machines: JSON for /v1/stats, Prometheus text for /metrics, one line at exit.
#pragma once

#include <string>

#include "engine/server/service.h"

namespace ft {

std::string stats_json(const ServedProfile& profile, const ServiceStats& stats);
std::string prometheus_text(const ServedProfile& profile, const ServiceStats& stats);
// What there is nothing to say about is left out: rates without a decode step, the hash without any step.
// "412 tokens | 58.1 tok/s | 17.2 ms a token | 6.0 GB/s = 31 % of ceiling | hits 83 % | ...": DESIGN section 11.
std::string stats_line(const ServedProfile& profile, const ServiceStats& stats);

}  // namespace ft
