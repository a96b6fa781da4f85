#include "schemas/options.h"

namespace ft {
namespace {

constexpr OptionSpec kOptions[] = {
    {.name = "--model",
     .kind = OptionKind::kText,
     .value_name = "DIR",
     .help = "Checkpoint folder, in place of the path that the profile recorded."},
    {.name = "--format",
     .kind = OptionKind::kChoice,
     .value_name = "FORMAT",
     .default_text = "text",
     .choices = "text|json",
     .help = "A table for people, or JSON for programs."},
};

}  // namespace

constinit const ProgramSpec kCheckCommand = {
    .name = "ft-tune check",
    .summary = "Does a profile fit this host, build and model?",
    .examples =
        "  ft-tune check profile.json\n"
        "  ft-tune check profile.json --model ~/models/Qwen3-30B-A3B\n"
        "  ft-tune check profile.json --format json\n",
    .options = kOptions,
    .positional =
        {"PROFILE", 1, 1,
         "A profile that ft-tune wrote. One line per field shows its value and the machine's, with what a start of "
         "ft-engine would refuse of threads, lengths, slots and memory."},
    .exit_codes =
        "0 it fits, 1 it does not or the check failed, 2 usage or a file that is no profile, 4 output not written",
};

}  // namespace ft
