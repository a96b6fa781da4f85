// The whole of gpu-bench: ceilings, then geometry by geometry every part that is wanted.
#pragma once

#include <functional>
#include <string_view>

#include "tests/bench/bench.h"

namespace ft::bench {

// A model that cannot be loaded is reported as not run; an error inside a part fails the report. Throws
// Error(kInterrupted).
void run_all(const BenchOptions& options, Report& report, const std::function<void(std::string_view)>& progress);

}  // namespace ft::bench
