#include "tuner/commands/commands.h"

namespace ft {
namespace {

const Command kCommands[] = {
    {&kCompareCommand, run_compare},
};

}  // namespace

std::span<const Command> tune_commands() { return kCommands; }

}  // namespace ft
