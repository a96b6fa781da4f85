// Every option of every program, declared once: name, kind, default, range, help. The command line, --help, the
// README's table (checked by a test) and the errors come from these tables.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ft {

enum class OptionKind : uint8_t {
  kFlag,  // no value
  kText,
  kInteger,         // within [low, high]
  kNumber,          // within [low, high]
  kChoice,          // one of `choices`, separated by |
  kIntegers,        // comma-separated integers within [low, high]
  kBytes,           // integer with optional KiB, MiB, GiB (K, M, G); within [low, high]
  kCountOrPercent,  // N or P%
};

struct OptionSpec {
  std::string_view name;        // "--model"; positional arguments have no dashes
  std::string_view short_name;  // "-o" or empty
  OptionKind kind{};
  std::string_view value_name;    // shown in help: "DIR"
  std::string_view default_text;  // empty: no default
  std::string_view choices;       // kChoice
  double low = 0, high = 0;       // inclusive; both 0: no range
  bool required = false;
  std::string_view help;  // one or two sentences
};

struct ProgramSpec {
  std::string_view name;  // "ft-tune"
  std::string_view summary;
  std::string_view examples;  // printed after the options
  std::span<const OptionSpec> options;
};

extern const ProgramSpec kTuneProgram;
extern const ProgramSpec kEngineProgram;

}  // namespace ft
