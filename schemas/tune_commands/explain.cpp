#include "schemas/options.h"

namespace ft {
namespace {

constexpr OptionSpec kOptions[] = {
    {.name = "--format",
     .kind = OptionKind::kChoice,
     .value_name = "FORMAT",
     .default_text = "text",
     .choices = "text|json",
     .help = "Text for people, or JSON for programs."},
};

}  // namespace

constinit const ProgramSpec kExplainCommand = {
    .name = "ft-tune explain",
    .summary = "Why this strategy, and what would have to change for the runner-up to win.",
    .examples =
        "  ft-tune explain profile.json\n"
        "  ft-tune explain profiles/reference/tiny-moe.host-2-cores.json\n"
        "  ft-tune explain profile.json --format json\n",
    .options = kOptions,
    .positional =
        {"PROFILE", 1, 1,
         "A profile that ft-tune wrote. All comes from it alone: prediction and confirmation, where a token's time "
         "goes, why every other candidate was not chosen, and which cost would have to change, by how much."},
    .exit_codes = "0 done, 1 failed, 2 usage or a file that is no profile, 4 output not written",
};

}  // namespace ft
