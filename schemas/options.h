// Every option of every program, declared once: name, kind, default, range, help. The command line, --help and the
// errors come from these tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ft {

enum class OptionKind : uint8_t {
  kFlag,            // no value
  kText,            // any text that is not empty
  kTexts,           // comma-separated texts; may be given more than once
  kInteger,         // within [low, high]
  kNumber,          // within [low, high]
  kChoice,          // one of `choices`, separated by |
  kIntegers,        // comma-separated integers within [low, high], no duplicates
  kBytes,           // integer with optional KiB, MiB, GiB, TiB (or K, M, G, T, powers of 1024); within [low, high]
  kCountOrPercent,  // N within [low, high], or P% with P in [0, 100]
  kWeights,         // "checkpoint", "synthetic" or "synthetic:SEED"
};

struct OptionSpec {
  std::string_view name;             // "--model"
  std::string_view short_name = {};  // "-o" or empty
  OptionKind kind{};
  std::string_view value_name = {};    // shown in help: "DIR"
  std::string_view default_text = {};  // empty: no default
  std::string_view choices = {};       // kChoice
  double low = 0, high = 0;            // inclusive; both 0: no range
  bool required = false;
  std::string_view help = {};  // one or two sentences
};

// A line of help about one option whose content lives in code that these tables cannot see: the names it takes.
struct HelpLine {
  std::string_view option;
  std::string text;
};

// Words that are no options: files, mostly.
struct PositionalSpec {
  std::string_view value_name = {};  // "PROFILE"; empty: the program takes none
  size_t low = 0, high = 0;          // how many
  std::string_view help = {};
};

struct ProgramSpec {
  std::string_view name;  // "ft-tune", of a command "ft-tune explain"
  std::string_view summary;
  std::string_view examples;  // printed after the options
  std::span<const OptionSpec> options;
  PositionalSpec positional = {};
  std::string_view exit_codes = "0 done, 1 failed, 2 usage or a profile refused, 4 output not written, 130 interrupted";
  std::span<const HelpLine> more_help = {};  // set by a main
};

extern const ProgramSpec kTuneProgram;
extern const ProgramSpec kEngineProgram;
extern const ProgramSpec kProbeProgram;

// Commands of ft-tune: schemas/tune_commands/.
extern const ProgramSpec kCheckCommand;
extern const ProgramSpec kCompareCommand;
extern const ProgramSpec kDoctorCommand;
extern const ProgramSpec kExplainCommand;
extern const ProgramSpec kReportCommand;

// Limits of values that only the command line takes. Those that a profile holds too equal the schema's (a test).
inline constexpr double kMaxBudgetSeconds = 86'400;
inline constexpr double kMinDoctorSeconds = 1;  // half of it has 50 ticks of every CPU, as many as a share needs
inline constexpr double kMaxDoctorSeconds = 3600;
inline constexpr double kMaxListedContext = 16'777'216;
inline constexpr double kMinMemoryLimitBytes = 1'048'576;
inline constexpr double kMaxMemoryLimitBytes = 1'125'899'906'842'624;  // 1 PiB
inline constexpr size_t kMaxListItems = 64;
inline constexpr size_t kMaxReportedProfiles = 8;  // of one page: more are no longer seen side by side
// 2^53 - 1: a seed goes through JSON, whose numbers many readers keep as doubles.
inline constexpr uint64_t kMaxSyntheticSeed = 9'007'199'254'740'991;
inline constexpr uint64_t kDefaultSyntheticSeed = 1;

}  // namespace ft
