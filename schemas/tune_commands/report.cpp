#include "schemas/options.h"

namespace ft {
namespace {

constexpr OptionSpec kOptions[] = {
    {.name = "--output",
     .short_name = "-o",
     .kind = OptionKind::kText,
     .value_name = "FILE",
     .default_text = "report.html",
     .help = "Where to write the page."},
};

}  // namespace

constinit const ProgramSpec kReportCommand = {
    .name = "ft-tune report",
    .summary = "Writes one self-contained HTML page about one profile, or several side by side.",
    .examples =
        "  ft-tune report profile.json\n"
        "  ft-tune report profile.json -o report.html\n"
        "  ft-tune report before.json after.json -o report.html\n",
    .options = kOptions,
    .positional =
        {"PROFILE", 1, kMaxReportedProfiles,
         "Profiles that ft-tune wrote. The page shows ceilings and what was achieved, the sweep with the fitted "
         "lines, predicted against measured, where a token's time goes, hits against slots, the decision and its "
         "conditions. It opens offline and loads nothing."},
    .exit_codes = "0 done, 1 failed, 2 usage or a file that is no profile, 4 output not written",
};

}  // namespace ft
