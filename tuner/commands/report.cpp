// ft-tune report: one self-contained page about one profile or several.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/inputs.h"
#include "kernels/base/json.h"
#include "tuner/commands/commands.h"
#include "tuner/report/page.h"

namespace ft {

int run_report(const ParsedOptions& options) {
  const std::string output = options.text("--output");
  std::vector<InputPath> inputs;
  for (const std::string& path : options.positionals) inputs.push_back({"PROFILE", path});
  check_no_input("--output", output, inputs);
  check_output("--output", output);  // before the profiles are read: a page of many takes its time
  std::vector<ReportedProfile> profiles;
  for (const std::string& path : options.positionals) {
    profiles.push_back({std::filesystem::path(path).filename().string(), read_profile(path)});
  }
  write_file_atomically(output, report_page(profiles));
  std::printf("report: %s\n", printable(output).c_str());
  return kExitDone;
}

}  // namespace ft
