// gpu-bench: one table from one command. Exit code: 0 when everything ran, whatever the goals say; 1 when something
// failed or logits differ; 2 for a command line that is refused.
#include <cstdio>
#include <filesystem>

#include "kernels/base/error.h"
#include "kernels/base/json.h"
#include "profiles/build_info.h"
#include "tests/bench/options.h"
#include "tests/bench/run.h"

namespace ft::bench {
namespace {

// A folder of its own, gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "gpu-bench-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) {
      throw Error(ErrorKind::kFailed, {.what = "cannot make a temporary folder", .value = {}, .path = path_});
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void print_line(std::FILE* to, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), to);
  std::fputc('\n', to);
  std::fflush(to);
}

int run(const ParsedOptions& parsed) {
  BenchOptions options = bench_options(parsed);
  const std::optional<std::string> json = parsed.optional_text("--json");
  if (json) check_output("--json", *json);
  install_interrupt_handler();
  const TemporaryFolder folder;
  options.folder = folder.path();
  Report report([](std::string_view text) { print_line(stdout, text); });
  bool stopped = false;
  try {
    run_all(options, report, [](std::string_view text) { print_line(stderr, text); });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInterrupted) throw;
    stopped = true;  // what was measured is kept
    report.not_run("run", "all that was still to come", "interrupted");
  }
  report.summary();
  if (json) write_file_atomically(*json, report.json());
  return stopped ? kExitInterrupted : report.failed() ? kExitFailed : kExitDone;
}

}  // namespace
}  // namespace ft::bench

int main(int argc, char** argv) {
  const ft::HelpLine lines[] = {{"--part", "Parts: " + ft::bench::part_names() + "."},
                                {"--geometry", "Models: " + ft::bench::geometry_case_names() + "."},
                                {"--preset", "Presets: " + ft::routing_preset_names() + "."}};
  ft::ProgramSpec program = ft::bench::kBenchProgram;
  program.more_help = lines;
  return ft::run_program(program, ft::build_text(), argc, argv, ft::bench::run);
}
