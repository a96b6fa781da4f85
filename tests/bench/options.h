// Command line of gpu-bench.
#pragma once

#include "schemas/command_line.h"
#include "tests/bench/bench.h"

namespace ft::bench {

extern const ProgramSpec kBenchProgram;
std::string part_names();  // "ceilings, cells, dense, ..."
// Throws Error(kUsage) naming the option, the value and what is allowed. `folder` is left to the caller.
BenchOptions bench_options(const ParsedOptions& options);

}  // namespace ft::bench
