#include "profiles/compare.h"

#include <cstdio>

#include "kernels/base/error.h"
#include "kernels/base/inputs.h"
#include "kernels/base/json.h"
#include "profiles/compare_report.h"
#include "tuner/commands/commands.h"

namespace ft {
namespace {

// Its own exit code: that of a failure is a regression's.
void write_report(const std::string& path, const std::string& text) {
  try {
    write_file_atomically(path, text);
  } catch (const Error& error) {
    throw Error(ErrorKind::kNotWritten, error.parts());
  }
}

}  // namespace

int run_compare(const ParsedOptions& options) {
  const auto output = options.optional_text("--output");
  if (output) {
    const InputPath inputs[] = {{"BASE", options.positionals[0]}, {"NEW", options.positionals[1]}};
    check_no_input("--output", *output, inputs);
    check_output("--output", *output);
  }
  const Profile base = read_profile(options.positionals[0]);
  const Profile next = read_profile(options.positionals[1]);
  CompareOptions asked;
  asked.metrics = options.texts("--metric");
  if (options.has("--floor")) asked.floor = options.number("--floor") / 100;
  const ProfileComparison comparison = compare_profiles(base, next, asked);
  if (!asked.metrics.empty() && comparison.metrics.empty() && comparison.incomparable.empty()) {
    throw Error(ErrorKind::kUsage, {.what = "no metric of either profile begins so",
                                    .value = options.given.at("--metric"),
                                    .allowed = "names as --format json lists them, expert_single/ or decode/",
                                    .path = "--metric"});
  }
  const std::string report = compare_report(comparison, options.text("--format"));
  if (output) {
    write_report(*output, report);
  } else {
    std::fputs(report.c_str(), stdout);
  }
  return comparison.exit_code();
}

}  // namespace ft
