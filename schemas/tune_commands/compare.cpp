#include "schemas/options.h"

namespace ft {
namespace {

constexpr double kMaxFloorPercent = 50;  // more says nothing any more (profiles/compare.h)

constexpr OptionSpec kOptions[] = {
    {.name = "--format",
     .kind = OptionKind::kChoice,
     .value_name = "FORMAT",
     .default_text = "text",
     .choices = "text|markdown|json|junit",
     .help = "text for a terminal, markdown for a comment on GitHub, json with every number, junit for CI."},
    {.name = "--output",
     .short_name = "-o",
     .kind = OptionKind::kText,
     .value_name = "FILE",
     .help = "Where to write the report. Without it: the terminal."},
    {.name = "--metric",
     .kind = OptionKind::kTexts,
     .value_name = "PREFIX,..",
     .help = "Compares only metrics whose name begins so: expert_single/, decode/, served/. Without it: all."},
    {.name = "--floor",
     .kind = OptionKind::kNumber,
     .value_name = "PERCENT",
     .low = 0,
     .high = kMaxFloorPercent,
     .help = "Takes the place of the stated floors: what two tunings of one build on a quiet machine may differ by. "
             "What a metric moved within a tuning and what the machine did meanwhile are added to it. Without it: 6 "
             "for single kernels, 5 for decode rates, 8 for the others."},
};

}  // namespace

const ProgramSpec kCompareCommand = {
    .name = "ft-tune compare",
    .summary =
        "Compares two profiles of one machine and model, metric by metric from their raw samples: did NEW become "
        "slower than BASE?",
    .examples =
        "  ft-tune compare before.json after.json\n"
        "  ft-tune compare before.json after.json --format markdown -o comment.md\n"
        "  ft-tune compare before.json after.json --metric expert_single/,decode/ --floor 10\n",
    .options = kOptions,
    .positional = {.value_name = "PROFILE", .low = 2, .high = 2, .help = "BASE, then NEW."},
    .exit_codes =
        "0 no regression, 1 regression, 2 usage or a profile refused, 3 incomparable (another host, model or "
        "device, or no metric could be compared), 4 output not written",
};

}  // namespace ft
