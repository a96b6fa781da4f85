#include "tuner/commands/commands.h"

namespace ft {
namespace {

const Command kCommands[] = {
    {&kDoctorCommand, run_doctor},
};

}  // namespace

std::span<const Command> tune_commands() { return kCommands; }

}  // namespace ft
