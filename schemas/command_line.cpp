#include "schemas/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "kernels/base/error.h"
#include "schemas/option_values.h"

namespace ft {
namespace {

constexpr size_t kHelpWidth = 100;
constexpr size_t kHelpIndent = 6;

const OptionSpec* find_option(const ProgramSpec& program, std::string_view name) {
  for (const OptionSpec& spec : program.options) {
    if (spec.name == name || (!spec.short_name.empty() && spec.short_name == name)) return &spec;
  }
  return nullptr;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string_view nearest_option(const ProgramSpec& program, std::string_view name) {
  std::string_view best;
  size_t best_distance = SIZE_MAX;
  for (const OptionSpec& spec : program.options) {
    const size_t distance = edit_distance(name, spec.name);
    if (distance < best_distance) best_distance = distance, best = spec.name;
  }
  return best;
}

[[noreturn]] void refuse_option(std::string what, const OptionSpec& spec) {
  throw Error(ErrorKind::kUsage,
              {.what = std::move(what), .allowed = allowed_values(spec), .path = std::string(spec.name)});
}

// What somebody meets who starts a program to see what it does.
[[noreturn]] void refuse_missing(const ProgramSpec& program, const OptionSpec& spec) {
  throw Error(ErrorKind::kUsage, {.what = "required option missing",
                                  .action = "give " + std::string(spec.name) + " " + std::string(spec.value_name) +
                                            ", see " + std::string(program.name) + " --help",
                                  .path = std::string(spec.name)});
}

[[noreturn]] void refuse_positional(const ProgramSpec& program, std::string_view argument) {
  throw Error(ErrorKind::kUsage, {.what = "unexpected argument",
                                  .value = std::string(argument),
                                  .allowed = "options only",
                                  .action = "see " + std::string(program.name) + " --help"});
}

[[noreturn]] void refuse_argument(const ProgramSpec& program, std::string_view argument) {
  constexpr size_t kMaxComparedLength = 64;
  const std::string_view name = argument.substr(0, std::min(argument.find('='), kMaxComparedLength));
  throw Error(ErrorKind::kUsage, {.what = "unknown option",
                                  .value = std::string(argument),
                                  .action = "the nearest is " + std::string(nearest_option(program, name)) + ", see " +
                                            std::string(program.name) + " --help"});
}

// CLI11 hands the next word to an option that needs a value even when that word is an option itself, and reads
// "--name=" as if nothing stood there; its message about a flag with a value lacks the option's dashes.
void refuse_missing_values(const ProgramSpec& program, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    const OptionSpec* spec = find_option(program, word.substr(0, equals));
    if (spec == nullptr) continue;
    if (spec->kind == OptionKind::kFlag) {
      if (equals != std::string::npos) refuse_option("option with a value that it does not take", *spec);
      continue;
    }
    if (equals + 1 == word.size()) refuse_option("option without a value", *spec);
    if (equals != std::string::npos) continue;
    if (i + 1 == words.size() || find_option(program, words[i + 1]) != nullptr) {
      refuse_option("option without a value", *spec);
    }
    ++i;
  }
}

void take_results(const ProgramSpec& program, const std::vector<CLI::Option*>& options, ParsedOptions& parsed) {
  for (size_t i = 0; i < options.size(); ++i) {
    const OptionSpec& spec = program.options[i];
    const size_t count = options[i]->count();
    if (count == 0) {
      if (spec.required) refuse_missing(program, spec);
      continue;
    }
    if (spec.kind == OptionKind::kFlag) {
      parsed.given.emplace(spec.name, "true");
      continue;
    }
    if (count > 1 && spec.kind != OptionKind::kTexts) refuse_option("option given more than once", spec);
    std::string text;
    for (const std::string& part : options[i]->results()) text += (text.empty() ? "" : ",") + part;
    check_option_value(spec, text);
    parsed.given.emplace(spec.name, std::move(text));
  }
}

// `plain`: what followed "--", no options whatever they begin with.
std::vector<std::string> take_positionals(const ProgramSpec& program, std::vector<std::string> words,
                                          const std::vector<std::string>& plain) {
  const PositionalSpec& spec = program.positional;
  const auto option = std::find_if(words.begin(), words.end(), [](const auto& w) { return w.starts_with('-'); });
  if (option != words.end()) refuse_argument(program, *option);
  words.insert(words.end(), plain.begin(), plain.end());
  if (spec.value_name.empty() && !words.empty()) refuse_positional(program, words.back());
  if (words.size() >= spec.low && words.size() <= spec.high) return words;
  const std::string allowed =
      spec.low == spec.high ? std::to_string(spec.low) : std::to_string(spec.low) + " to " + std::to_string(spec.high);
  throw Error(ErrorKind::kUsage, {.what = "wrong number of arguments " + std::string(spec.value_name),
                                  .value = std::to_string(words.size()),
                                  .allowed = allowed,
                                  .action = "see " + std::string(program.name) + " --help"});
}

// `text` in lines of at most kHelpWidth bytes, broken at spaces.
std::string wrapped(std::string_view text) {
  const std::string indent(kHelpIndent, ' ');
  std::string out;
  while (!text.empty()) {
    size_t length = text.size();
    if (length > kHelpWidth - kHelpIndent) {
      length = text.rfind(' ', kHelpWidth - kHelpIndent);
      if (length == std::string_view::npos) length = std::min(text.find(' '), text.size());
    }
    out += indent + std::string(text.substr(0, length)) + "\n";
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return out;
}

}  // namespace

std::string_view command_word(const ProgramSpec& command) { return command.name.substr(command.name.rfind(' ') + 1); }

std::string help_text(const ProgramSpec& program, std::span<const ProgramSpec* const> commands) {
  const PositionalSpec& words = program.positional;
  std::string text = std::string(program.name) + ": " + std::string(program.summary) +
                     "\n\nUsage: " + std::string(program.name) + " [OPTIONS]";
  if (!words.value_name.empty()) text += " " + std::string(words.value_name) + (words.high > 1 ? " .." : "");
  text += "\n";
  if (!commands.empty()) text += "       " + std::string(program.name) + " COMMAND [OPTIONS] ..\n\nCommands:\n";
  for (const ProgramSpec* command : commands) {
    text += "  " + std::string(command_word(*command)) + "\n" + wrapped(command->summary);
  }
  if (!words.value_name.empty()) text += "\n  " + std::string(words.value_name) + "\n" + wrapped(words.help);
  text += "\nOptions:\n";
  for (const OptionSpec& spec : program.options) {
    text += "  " + std::string(spec.name);
    if (!spec.short_name.empty()) text += ", " + std::string(spec.short_name);
    if (!spec.value_name.empty()) text += " " + std::string(spec.value_name);
    if (spec.required) text += "  (required)";
    text += "\n" + wrapped(spec.help);
    if (spec.kind == OptionKind::kFlag) continue;
    std::string value = "Value: " + allowed_values(spec);
    if (!spec.default_text.empty()) value += "; default " + std::string(spec.default_text);
    text += wrapped(value + ".");
    for (const HelpLine& line : program.more_help) {
      if (line.option == spec.name) text += wrapped(line.text);
    }
  }
  text += "  --help, -h\n" + wrapped("Prints this.") + "  --version\n" + wrapped("Prints version and build.");
  text += "\nExamples:\n" + std::string(program.examples);
  text += "\nExit codes: " + std::string(program.exit_codes) + ".\n";
  return text;
}

ParseResult parse_command_line(const ProgramSpec& program, std::string_view build, int argc, const char* const* argv,
                               std::span<const ProgramSpec* const> commands) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<CLI::Option*> options;
  for (const OptionSpec& spec : program.options) {
    std::string names = std::string(spec.name);
    if (!spec.short_name.empty()) names += "," + std::string(spec.short_name);
    if (spec.kind == OptionKind::kFlag) {
      options.push_back(app.add_flag(names)->disable_flag_override());
    } else {
      options.push_back(app.add_option(names)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
      options.back()->allow_extra_args(false);
    }
  }
  const CLI::Option* help = app.add_flag("--help,-h");
  const CLI::Option* version = app.add_flag("--version");

  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> plain(dashes == words.end() ? dashes : dashes + 1, words.end());
  words.erase(dashes, words.end());
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // CLI11 takes arguments from the back
  std::string parser_message;
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    parser_message = error.what();
  }
  if (help->count() > 0) {
    std::fputs(help_text(program, commands).c_str(), stdout);
    return {};
  }
  if (version->count() > 0) {
    std::printf("%s %s\n", std::string(program.name).c_str(), std::string(build).c_str());
    return {};
  }
  refuse_missing_values(program, words);
  if (!parser_message.empty()) {
    throw Error(ErrorKind::kUsage, {.what = "command line refused: " + parser_message,
                                    .action = "see " + std::string(program.name) + " --help"});
  }
  ParseResult result;
  result.options.emplace();
  result.options->program = &program;
  result.options->positionals = take_positionals(program, app.remaining(), plain);
  take_results(program, options, *result.options);
  return result;
}

const OptionSpec& ParsedOptions::spec(std::string_view name, std::initializer_list<OptionKind> kinds) const {
  FT_CHECK(program != nullptr);
  const OptionSpec* found = find_option(*program, name);
  FT_CHECK(found != nullptr && found->name == name);
  FT_CHECK(kinds.size() == 0 || std::find(kinds.begin(), kinds.end(), found->kind) != kinds.end());
  return *found;
}

std::optional<std::string> ParsedOptions::value(const OptionSpec& spec) const {
  if (const auto at = given.find(spec.name); at != given.end()) return at->second;
  if (spec.default_text.empty()) return std::nullopt;
  return std::string(spec.default_text);
}

bool ParsedOptions::has(std::string_view name) const { return given.contains(spec(name, {}).name); }

bool ParsedOptions::flag(std::string_view name) const { return given.contains(spec(name, {OptionKind::kFlag}).name); }

std::optional<std::string> ParsedOptions::optional_text(std::string_view name) const {
  return value(spec(name, {OptionKind::kText, OptionKind::kChoice}));
}

std::string ParsedOptions::text(std::string_view name) const {
  const auto found = optional_text(name);
  FT_CHECK(found.has_value());
  return *found;
}

std::optional<int64_t> ParsedOptions::optional_integer(std::string_view name) const {
  const OptionSpec& option = spec(name, {OptionKind::kInteger, OptionKind::kBytes});
  const auto found = value(option);
  if (!found) return std::nullopt;
  return option.kind == OptionKind::kBytes ? parse_bytes_value(option, *found) : parse_integer_value(option, *found);
}

int64_t ParsedOptions::integer(std::string_view name) const {
  const auto found = optional_integer(name);
  FT_CHECK(found.has_value());
  return *found;
}

double ParsedOptions::number(std::string_view name) const {
  const OptionSpec& option = spec(name, {OptionKind::kNumber});
  const auto found = value(option);
  FT_CHECK(found.has_value());
  return parse_number_value(option, *found);
}

std::vector<int64_t> ParsedOptions::integers(std::string_view name) const {
  const OptionSpec& option = spec(name, {OptionKind::kIntegers});
  const auto found = value(option);
  return found ? parse_integers_value(option, *found) : std::vector<int64_t>();
}

std::vector<std::string> ParsedOptions::texts(std::string_view name) const {
  const OptionSpec& option = spec(name, {OptionKind::kTexts});
  const auto found = value(option);
  return found ? parse_texts_value(option, *found) : std::vector<std::string>();
}

std::optional<CountOrPercent> ParsedOptions::count_or_percent(std::string_view name) const {
  const OptionSpec& option = spec(name, {OptionKind::kCountOrPercent});
  const auto found = value(option);
  if (!found) return std::nullopt;
  return parse_count_or_percent_value(option, *found);
}

std::optional<uint64_t> ParsedOptions::synthetic_seed(std::string_view name) const {
  const OptionSpec& option = spec(name, {OptionKind::kWeights});
  const auto found = value(option);
  return found ? parse_weights_value(option, *found) : std::nullopt;
}

}  // namespace ft
