#include "tuner/commands/commands.h"

namespace ft {
namespace {

const Command kCommands[] = {
    {&kCheckCommand, run_check},     {&kCompareCommand, run_compare}, {&kDoctorCommand, run_doctor},
    {&kExplainCommand, run_explain}, {&kReportCommand, run_report},
};

}  // namespace

std::span<const Command> tune_commands() { return kCommands; }

}  // namespace ft
