// ft-tune: measures this machine with a model's real geometry, chooses, confirms, writes a profile.
#include <spdlog/fmt/fmt.h>

#include <cstdio>

#include "engine/experts/routing_trace.h"
#include "engine/program/log.h"
#include "kernels/base/error.h"
#include "profiles/build_info.h"
#include "schemas/command_line.h"
#include "tuner/commands/commands.h"
#include "tuner/preflight.h"
#include "tuner/report.h"
#include "tuner/session.h"

namespace ft {
namespace {

int run(const ParsedOptions& options) {
  install_interrupt_handler();
  start_log(options.text("--log-level"));
  const TuneRequest request = parse_tune_request(options);
  if (!request.device_reason.empty()) {
    log_info(fmt::format("device {}: {}", device_name(request.device), request.device_reason));
  }
  if (request.dry_run) {
    if (!request.not_writable.empty()) log_warning("without --dry-run: " + request.not_writable);
    std::fputs(tune_dry_run(request).c_str(), stdout);
    return kExitDone;
  }
  const Profile profile = tune(request);
  std::fputs(decision_table(profile).c_str(), stdout);
  std::printf("profile: %s\n", printable(request.output).c_str());
  return kExitDone;
}

}  // namespace
}  // namespace ft

int main(int argc, char** argv) {
  const ft::HelpLine lines[] = {{"--routing", "Presets: " + ft::routing_preset_names() + "."}};
  ft::ProgramSpec program = ft::kTuneProgram;
  program.more_help = lines;
  return ft::run_program(program, ft::build_text(), argc, argv, ft::run, ft::tune_commands());
}
