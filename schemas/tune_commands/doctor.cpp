#include "schemas/options.h"

namespace ft {
namespace {

constexpr OptionSpec kDoctorOptions[] = {
    {.name = "--device",
     .kind = OptionKind::kChoice,
     .value_name = "DEVICE",
     .default_text = "auto",
     .choices = "auto|cuda|host",
     .help = "What will serve: auto looks at the GPU when there is one, host at CPU and memory only."},
    {.name = "--format",
     .kind = OptionKind::kChoice,
     .value_name = "FORMAT",
     .default_text = "text",
     .choices = "text|json",
     .help = "How to print the checks."},
    {.name = "--seconds",
     .kind = OptionKind::kNumber,
     .value_name = "N",
     .default_text = "2",
     .low = kMinDoctorSeconds,
     .high = kMaxDoctorSeconds,
     .help = "Time to watch: half of it idle, half of it with all usable cores busy, since quotas, heat and the "
             "hypervisor show only then."},
};

}  // namespace

constinit const ProgramSpec kDoctorCommand = {
    .name = "ft-tune doctor",
    .summary = "Looks for what would spoil measurements on this machine, and names the command that changes it.",
    .examples =
        "  ft-tune doctor\n"
        "  ft-tune doctor --device host --seconds 10\n"
        "  ft-tune doctor --format json | jq '.checks[] | select(.state == \"warning\")'\n",
    .options = kDoctorOptions,
    .exit_codes =
        "0 no warnings (there may be notes), 1 warnings, or it failed, 2 usage, 4 not written, 130 "
        "interrupted",
};

}  // namespace ft
