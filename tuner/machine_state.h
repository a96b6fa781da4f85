// Facts about the machine while measuring that can spoil numbers: for the profile's conditions.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/host/host_memory.h"
#include "kernels/host/topology.h"

namespace ft {

int64_t throttled_usec();     // of this process's cgroup, since its start; 0 where unknown
std::string memory_text();    // "transparent huge pages: madvise; granted 100 % of a probe buffer"
PageReport try_huge_pages();  // a buffer of 64 MiB that is asked to have huge pages, and what it got
std::string likwid_text(const LikwidStatus& status);  // "used: topology" or why not
std::string utc_now();                                // "2026-01-31T12:00:00Z"

}  // namespace ft
