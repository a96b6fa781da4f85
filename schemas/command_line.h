// Parses a command line against a ProgramSpec (CLI11 inside).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schemas/options.h"

namespace ft {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

struct CountOrPercent {
  std::optional<int64_t> count;
  std::optional<double> percent;
};

class ParsedOptions {
 public:
  bool has(std::string_view name) const;  // given by the user
  bool flag(std::string_view name) const;
  std::string text(std::string_view name) const;  // given or default
  std::optional<std::string> optional_text(std::string_view name) const;
  int64_t integer(std::string_view name) const;  // kInteger, kBytes
  std::optional<int64_t> optional_integer(std::string_view name) const;
  double number(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;
  std::optional<CountOrPercent> count_or_percent(std::string_view name) const;

  std::map<std::string, std::string, std::less<>> given;
  const ProgramSpec* program = nullptr;
};

struct ParseResult {
  std::optional<ParsedOptions> options;  // empty: --help or --version was printed, exit with 0
};
// Throws Error(kUsage) naming the option, its value, what is allowed, and the nearest option for an unknown name.
// --help and --version print to stdout.
ParseResult parse_command_line(const ProgramSpec& program, int argc, const char* const* argv);

// The body of every main(): runs `body`, prints an Error or any exception as one line on stderr, maps it to an exit
// code. Never lets an exception escape.
int run_program(const ProgramSpec& program, int argc, const char* const* argv, int (*body)(const ParsedOptions&));

// SIGINT/SIGTERM set a flag; long loops ask it. Second signal: default action.
void install_interrupt_handler();
bool interrupted();

}  // namespace ft
