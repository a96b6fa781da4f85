#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "kernels/base/error.h"
#include "schemas/command_line.h"

namespace ft {
namespace {

// A signal handler can reach nothing but static storage; the one mutable global of the project.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<bool> interrupt_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "read and written in a signal handler");

extern "C" void on_interrupt(int) {
  interrupt_flag.store(true);
  std::signal(SIGINT, SIG_DFL);  // whoever asks twice does not want to wait
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGHUP, SIG_DFL);
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return kExitUsage;
    case ErrorKind::kInterrupted:
      return kExitInterrupted;
    case ErrorKind::kNotWritten:
      return kExitNotWritten;
    case ErrorKind::kFailed:
    case ErrorKind::kRequest:
    case ErrorKind::kCapacity:
      break;
  }
  return kExitFailed;
}

int report(const ProgramSpec& program, const std::string& message, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: error: %s\n", std::string(program.name).c_str(), message.c_str());
  return code;
}

// A file that is opened while stdout is closed would get its number, and our output. The other way round the output
// goes nowhere and says so: what is opened here cannot be written.
void keep_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    if (::open("/dev/null", O_RDONLY) != fd) return;  // the lowest that is free
  }
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;  // system calls of libraries go on; loops ask interrupted()
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);  // the terminal is gone: keep what was measured
}

bool interrupted() { return interrupt_flag.load(std::memory_order_relaxed); }

int run_program(const ProgramSpec& program, std::string_view build, int argc, const char* const* argv,
                int (*body)(const ParsedOptions&)) {
  return run_program(program, build, argc, argv, body, {});
}

int run_program(const ProgramSpec& program, std::string_view build, int argc, const char* const* argv,
                int (*body)(const ParsedOptions&), std::span<const Command> commands) {
  if (!commands.empty() && argc > 1 && argv[1][0] != '-') {
    std::string known;
    for (const Command& command : commands) {
      const std::string_view word = command_word(*command.program);
      if (word == argv[1]) return run_program(*command.program, build, argc - 1, argv + 1, command.body);
      known += (known.empty() ? "" : ", ") + std::string(word);
    }
    return report(program,
                  "unknown command: '" + printable(argv[1]) + "'; allowed: " + known + ", or options only; see " +
                      std::string(program.name) + " --help",
                  kExitUsage);
  }
  std::vector<const ProgramSpec*> listed;
  for (const Command& command : commands) listed.push_back(command.program);
  keep_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit is an error to report, not a death
  int code = kExitFailed;
  try {
    const ParseResult parsed = parse_command_line(program, build, argc, argv, listed);
    code = parsed.options ? body(*parsed.options) : kExitDone;
  } catch (const Error& error) {
    return report(program, error.what(), exit_code(error.kind()));
  } catch (const std::bad_alloc&) {
    return report(program, "out of memory", kExitFailed);
  } catch (const std::exception& error) {
    return report(program, error.what(), kExitFailed);
  } catch (...) {
    return report(program, "unknown exception", kExitFailed);
  }
  // A full disk or a closed pipe behind stdout would otherwise pass for success, or for a verdict that nobody read.
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  return lost ? report(program, "cannot write to stdout", kExitNotWritten) : code;
}

}  // namespace ft
