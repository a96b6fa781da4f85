// ft-tune report: one self-contained page about one profile or several.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "kernels/base/json.h"
#include "tuner/commands/commands.h"
#include "tuner/report/page.h"

namespace ft {

int run_report(const ParsedOptions& options) {
  const std::string output = options.text("--output");
  check_writable(output);  // before the profiles are read: a page of many takes its time
  std::vector<ReportedProfile> profiles;
  for (const std::string& path : options.positionals) {
    profiles.push_back({std::filesystem::path(path).filename().string(), read_profile(path)});
  }
  write_file_atomically(output, report_page(profiles));
  std::printf("report: %s\n", output.c_str());
  return kExitDone;
}

}  // namespace ft
