// Checked against: the tables themselves (every default and every help line must obey the table's own rules).
#include "schemas/options.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "kernels/base/error.h"
#include "schemas/command_line.h"
#include "schemas/option_values.h"

namespace {

constexpr const ft::ProgramSpec* kPrograms[] = {&ft::kTuneProgram,  &ft::kEngineProgram,  &ft::kProbeProgram,
                                                &ft::kCheckCommand, &ft::kExplainCommand, &ft::kReportCommand};

}  // namespace

TEST_CASE("names are unique, well formed and helped") {
  for (const ft::ProgramSpec* program : kPrograms) {
    std::set<std::string_view> names{"--help", "-h", "--version"};
    for (const ft::OptionSpec& spec : program->options) {
      CAPTURE(std::string(spec.name));
      CHECK(spec.name.starts_with("--"));
      CHECK(names.insert(spec.name).second);
      if (!spec.short_name.empty()) CHECK(names.insert(spec.short_name).second);
      CHECK(spec.help.ends_with("."));
      CHECK((spec.kind == ft::OptionKind::kFlag) == spec.value_name.empty());
      CHECK((spec.kind == ft::OptionKind::kChoice) == !spec.choices.empty());
      CHECK_FALSE((spec.required && !spec.default_text.empty()));
    }
  }
}

TEST_CASE("every default is a value the option accepts") {
  int checked = 0;
  for (const ft::ProgramSpec* program : kPrograms) {
    for (const ft::OptionSpec& spec : program->options) {
      if (spec.default_text.empty()) continue;
      CHECK_NOTHROW(ft::check_option_value(spec, spec.default_text));
      ++checked;
    }
  }
  CHECK(checked >= 8);
}

TEST_CASE("help shows every option, its range, its default and the examples, in lines that fit") {
  for (const ft::ProgramSpec* program : kPrograms) {
    const std::string help = ft::help_text(*program);
    std::string unwrapped;
    for (const char c : help) {
      if (!unwrapped.ends_with(' ') || (c != ' ' && c != '\n')) unwrapped += c == '\n' ? ' ' : c;
    }
    for (const ft::OptionSpec& spec : program->options) {
      CHECK(help.find("  " + std::string(spec.name)) != std::string::npos);
      if (!spec.default_text.empty())
        CHECK(unwrapped.find("default " + std::string(spec.default_text)) != std::string::npos);
    }
    CHECK(help.find(std::string(program->examples)) != std::string::npos);
    size_t begin = 0;
    for (size_t end = help.find('\n'); end != std::string::npos; begin = end + 1, end = help.find('\n', begin)) {
      CAPTURE(help.substr(begin, end - begin));
      CHECK(end - begin <= 120);
    }
  }
}

TEST_CASE("the examples in the help parse") {
  // Quotes in the examples surround one word; splitting at spaces outside of them is all a shell would do here.
  for (const ft::ProgramSpec* program : kPrograms) {
    int examples = 0;
    std::string line;
    for (const char c : program->examples) {
      if (c != '\n') {
        line += c;
        continue;
      }
      std::vector<std::string> words;
      bool quoted = false, open = false;
      for (const char d : line) {
        if (d == '\'') {
          quoted = !quoted;
        } else if (d == ' ' && !quoted) {
          open = false;
        } else {
          if (!open) words.emplace_back();
          open = true;
          words.back() += d;
        }
      }
      CAPTURE(line);
      if (program->name.find(' ') != std::string_view::npos) {  // of a command: its own table parses what follows it
        REQUIRE(words.size() > 2);
        words[0] += " " + words[1];
        words.erase(words.begin() + 1);
      }
      std::vector<const char*> argv;
      for (const std::string& word : words) argv.push_back(word.c_str());
      REQUIRE(words.size() > 1);
      CHECK(words[0] == program->name);
      CHECK_NOTHROW(ft::parse_command_line(*program, "", static_cast<int>(argv.size()), argv.data()));
      line.clear();
      ++examples;
    }
    CHECK(examples >= 3);
  }
}
