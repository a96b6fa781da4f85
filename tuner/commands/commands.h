// The commands of ft-tune beside tuning itself: one file each.
//
// A body returns the exit code that its table states; errors are thrown (run_program maps them).
#pragma once

#include <span>

#include "schemas/command_line.h"

namespace ft {

int run_check(const ParsedOptions& options);
int run_compare(const ParsedOptions& options);
int run_doctor(const ParsedOptions& options);
int run_explain(const ParsedOptions& options);
int run_report(const ParsedOptions& options);

// All of them, in the order of --help.
std::span<const Command> tune_commands();

}  // namespace ft
