// Parses a command line against a ProgramSpec (CLI11 inside), and the frame around every main().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schemas/options.h"

namespace ft {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotWritten = 4;  // stdout or a report: whoever reads the code as a verdict must not be misled
inline constexpr int kExitInterrupted = 130;

struct CountOrPercent {
  std::optional<int64_t> count;
  std::optional<double> percent;
};

// Values by option name as in the table ("--model"). Asking for a name that the table lacks, or for a value that is
// neither given nor has a default, is a bug (FT_CHECK): use has() or the optional_ forms. Values were checked when the
// command line was parsed, so nothing here throws.
class ParsedOptions {
 public:
  bool has(std::string_view name) const;  // given by the user
  bool flag(std::string_view name) const;
  std::string text(std::string_view name) const;  // kText, kChoice: given or default
  std::optional<std::string> optional_text(std::string_view name) const;
  int64_t integer(std::string_view name) const;  // kInteger, kBytes
  std::optional<int64_t> optional_integer(std::string_view name) const;
  double number(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;   // kIntegers, as given; empty without a default
  std::vector<std::string> texts(std::string_view name) const;  // kTexts; empty without a default
  std::optional<CountOrPercent> count_or_percent(std::string_view name) const;
  std::optional<uint64_t> synthetic_seed(std::string_view name) const;  // kWeights; empty: checkpoint, or not given

  std::map<std::string, std::string, std::less<>> given;  // text as typed; repeated kTexts joined by commas
  std::vector<std::string> positionals;                   // as many as the program's PositionalSpec allows
  const ProgramSpec* program = nullptr;

 private:
  const OptionSpec& spec(std::string_view name, std::initializer_list<OptionKind> kinds) const;
  std::optional<std::string> value(const OptionSpec& spec) const;
};

struct ParseResult {
  std::optional<ParsedOptions> options;  // empty: --help or --version was printed, exit with 0
};
// Throws Error(kUsage) naming the option, its value, what is allowed, and the nearest option for an unknown name.
// After "--" every word is a positional, whatever it begins with.
// --help (-h) and --version print to stdout; `build` is what --version shows after the program's name.
ParseResult parse_command_line(const ProgramSpec& program, std::string_view build, int argc, const char* const* argv,
                               std::span<const ProgramSpec* const> commands = {});

// "explain" of "ft-tune explain".
std::string_view command_word(const ProgramSpec& command);

// The text of --help.
std::string help_text(const ProgramSpec& program, std::span<const ProgramSpec* const> commands = {});

// The body of every main(): runs `body`, prints an Error or any exception as one line on stderr, maps it to an exit
// code: what `body` returned, or 1 failed, 2 usage or refused, 4 not written, 130 interrupted. Never lets an exception
// escape. Output that could not be written to stdout is 4 whatever `body` returned; a descriptor of stdin, stdout or
// stderr that is closed at the start is kept from the files that are opened later.
int run_program(const ProgramSpec& program, std::string_view build, int argc, const char* const* argv,
                int (*body)(const ParsedOptions&));

// A program with commands: `ft-tune explain p.json`. The first word chooses when it is no option; without one `body`
// runs. Words of a command are parsed by its own table.
struct Command {
  const ProgramSpec* program = nullptr;  // its name is the program's, a space and the command's
  int (*body)(const ParsedOptions&) = nullptr;
};
int run_program(const ProgramSpec& program, std::string_view build, int argc, const char* const* argv,
                int (*body)(const ParsedOptions&), std::span<const Command> commands);

// SIGINT/SIGTERM set a flag; long loops ask it. Second signal: default action.
void install_interrupt_handler();
bool interrupted();

}  // namespace ft
