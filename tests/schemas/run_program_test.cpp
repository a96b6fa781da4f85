// Checked against: the exit codes that --help and the README promise; each program run is a child process.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>

#include "kernels/base/error.h"
#include "schemas/command_line.h"

namespace {

struct Outcome {
  int code = -1;
  int signal = 0;
  std::string out, err;
};

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(fd, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(n));
  ::close(fd);
  return text;
}

constexpr const char* kClosed = "";  // as a path of stdout: there is none

// Runs run_program in a child with its own stdout and stderr. Output must fit a pipe's buffer (64 KiB).
Outcome run(std::vector<const char*> words, int (*body)(const ft::ParsedOptions&), const char* stdout_path = nullptr,
            std::span<const ft::Command> commands = {}) {
  words.insert(words.begin(), "ft-engine");
  int out[2], err[2];
  REQUIRE(::pipe(out) == 0);
  REQUIRE(::pipe(err) == 0);
  std::cout.flush();
  std::fflush(nullptr);  // what is buffered here must not be written by the child
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(err[1], 2);
    ::dup2(stdout_path == nullptr || *stdout_path == '\0' ? out[1] : ::open(stdout_path, O_WRONLY), 1);
    if (stdout_path == kClosed) ::close(1);
    const int code = ft::run_program(ft::kEngineProgram, "1.2.3 (build)", static_cast<int>(words.size()), words.data(),
                                     body, commands);
    std::fflush(nullptr);
    ::_exit(code);
  }
  ::close(out[1]);
  ::close(err[1]);
  Outcome outcome{.out = read_all(out[0]), .err = read_all(err[0])};
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

int done(const ft::ParsedOptions&) { return ft::kExitDone; }

template <ft::ErrorKind kind>
int throw_error(const ft::ParsedOptions&) {
  throw ft::Error(kind, {.what = "it broke", .value = "7"});
}

int print_and_finish(const ft::ParsedOptions&) {
  std::printf("answer\n");
  return ft::kExitDone;
}

}  // namespace

TEST_CASE("exit codes are 0, 1, 2 and 130, and an error is one line on stderr") {
  CHECK(run({}, done).code == 0);
  const Outcome failed = run({}, throw_error<ft::ErrorKind::kFailed>);
  CHECK(failed.code == 1);
  CHECK(failed.out.empty());
  CHECK(failed.err == "ft-engine: error: it broke: '7'\n");
  CHECK(run({}, throw_error<ft::ErrorKind::kUsage>).code == 2);
  CHECK(run({}, throw_error<ft::ErrorKind::kRequest>).code == 1);
  CHECK(run({}, throw_error<ft::ErrorKind::kCapacity>).code == 1);
  CHECK(run({}, throw_error<ft::ErrorKind::kInterrupted>).code == 130);
  CHECK(run({}, [](const ft::ParsedOptions&) { return 1; }).code == 1);
}

TEST_CASE("the option parser's own exit codes never show") {
  CHECK(run({"--port", "0"}, done).code == 2);
  CHECK(run({"--port"}, done).code == 2);
  CHECK(run({"--bogus"}, done).code == 2);
  CHECK(run({"stray"}, done).code == 2);
}

TEST_CASE("foreign exceptions become failures, not crashes") {
  CHECK(run({}, [](const ft::ParsedOptions&) -> int { throw std::runtime_error("odd"); }).err ==
        "ft-engine: error: odd\n");
  CHECK(run({}, [](const ft::ParsedOptions&) -> int { throw std::bad_alloc(); }).err ==
        "ft-engine: error: out of memory\n");
  CHECK(run({}, [](const ft::ParsedOptions&) -> int { throw 5; }).code == 1);
}

TEST_CASE("--help and --version print to stdout and win over other mistakes") {
  const Outcome help = run({"--bogus", "--help"}, throw_error<ft::ErrorKind::kFailed>);
  CHECK(help.code == 0);
  CHECK(help.out == ft::help_text(ft::kEngineProgram));
  CHECK(help.err.empty());
  CHECK(run({"-h"}, throw_error<ft::ErrorKind::kFailed>).out == help.out);
  const Outcome version = run({"--version"}, throw_error<ft::ErrorKind::kFailed>);
  CHECK(version.code == 0);
  CHECK(version.out == "ft-engine 1.2.3 (build)\n");
}

TEST_CASE("output that cannot be written has a code of its own, whatever the program had to say") {
  if (::access("/dev/full", W_OK) != 0) {
    MESSAGE("skipped: no /dev/full here");
    return;
  }
  const Outcome outcome = run({}, print_and_finish, "/dev/full");
  CHECK(outcome.code == ft::kExitNotWritten);
  CHECK(outcome.err == "ft-engine: error: cannot write to stdout\n");
  CHECK(run({"--help"}, done, "/dev/full").code == ft::kExitNotWritten);
  // A verdict, as of compare and check: nobody has read it.
  const auto verdict = [](const ft::ParsedOptions&) {
    std::printf("regression\n");
    return 1;
  };
  CHECK(run({}, verdict, "/dev/full").code == ft::kExitNotWritten);
  CHECK(run({}, verdict).code == 1);
  CHECK(run({}, throw_error<ft::ErrorKind::kNotWritten>).code == ft::kExitNotWritten);
}

TEST_CASE("with stdout closed the output is lost and says so, and goes into no file that is opened meanwhile") {
  const auto body = [](const ft::ParsedOptions&) {
    const int file = ::open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (file <= STDERR_FILENO) return 10;
    std::printf("answer\n");
    std::fflush(stdout);
    const bool clean = ::lseek(file, 0, SEEK_END) == 0;
    return clean ? 0 : 11;
  };
  const Outcome closed = run({}, body, kClosed);
  CHECK(closed.code == ft::kExitNotWritten);
  CHECK(closed.err == "ft-engine: error: cannot write to stdout\n");
  CHECK(run({}, done, kClosed).code == ft::kExitDone);  // nothing was said
}

TEST_CASE("the first signal sets the flag, the second one ends the program") {
  const auto body = [](const ft::ParsedOptions&) {
    ft::install_interrupt_handler();
    if (ft::interrupted()) return 10;
    ::raise(SIGTERM);
    return ft::interrupted() ? 11 : 12;
  };
  CHECK(run({}, body).code == 11);
  const auto twice = [](const ft::ParsedOptions&) {
    ft::install_interrupt_handler();
    ::raise(SIGINT);
    ::raise(SIGTERM);
    return 12;
  };
  CHECK(run({}, twice).signal == SIGTERM);
}

namespace {

constexpr ft::OptionSpec kCountOptions[] = {
    {.name = "--times", .kind = ft::OptionKind::kInteger, .default_text = "1", .low = 1, .high = 9, .help = "Times."}};
constexpr ft::ProgramSpec kCount = {.name = "ft-engine count",
                                    .summary = "Counts files.",
                                    .examples = "  ft-engine count a b\n",
                                    .options = kCountOptions,
                                    .positional = {.value_name = "FILE", .low = 1, .high = 2, .help = "What to count."},
                                    .exit_codes = "3 always"};

int count(const ft::ParsedOptions& options) {
  std::printf("%zu files, %s, %d times\n", options.positionals.size(), options.positionals.back().c_str(),
              static_cast<int>(options.integer("--times")));
  return 3;
}
int no_command(const ft::ParsedOptions&) { return 4; }

Outcome run_with_commands(const std::vector<const char*>& words) {
  static constexpr ft::Command kCommands[] = {{&kCount, count}};
  return run(words, no_command, nullptr, kCommands);
}

}  // namespace

TEST_CASE("the first word chooses the command, whose own table reads the rest") {
  CHECK(run_with_commands({}).code == 4);
  const Outcome counted = run_with_commands({"count", "a", "--times", "7", "b"});
  CHECK(counted.code == 3);
  CHECK(counted.out == "2 files, b, 7 times\n");
  const auto refused = [](const Outcome& outcome, const char* message) {
    CHECK(outcome.code == ft::kExitUsage);
    CHECK(outcome.err.find(message) != std::string::npos);
  };
  refused(run_with_commands({"cuont"}), "unknown command: 'cuont'; allowed: count, or options only");
  refused(run_with_commands({"count"}), "ft-engine count: error: wrong number of arguments FILE: '0'; allowed: 1 to 2");
  refused(run_with_commands({"count", "a", "b", "c"}), "wrong number of arguments FILE: '3'");
  refused(run_with_commands({"count", "a", "--tims", "2"}), "the nearest is --times, see ft-engine count --help");
  refused(run_with_commands({"--max-tokens", "2", "count"}), "unexpected argument: 'count'");
  const Outcome help = run_with_commands({"count", "--help"});
  // After "--" words are files, whatever they begin with.
  CHECK(run_with_commands({"count", "--", "--times", "-b"}).out == "2 files, -b, 1 times\n");
  CHECK(run_with_commands({"count", "--times", "7", "a", "--", "--help"}).out == "2 files, --help, 7 times\n");
  CHECK(run_with_commands({"count", "--", "a", "--"}).out == "2 files, --, 1 times\n");
  refused(run_with_commands({"count", "--"}), "wrong number of arguments FILE: '0'");
  refused(run_with_commands({"count", "a", "--times", "--", "7"}), "option without a value: --times");
  refused(run_with_commands({"count", "-a"}), "unknown option: '-a'");
  refused(run_with_commands({"--", "--port"}), "unexpected argument: '--port'");
  CHECK(help.code == ft::kExitDone);
  for (const char* part : {"Usage: ft-engine count [OPTIONS] FILE ..", "What to count.", "Exit codes: 3 always."}) {
    CHECK(help.out.find(part) != std::string::npos);
  }
  CHECK(run_with_commands({"--help"}).out.find("Commands:\n  count\n      Counts files.") != std::string::npos);
}
