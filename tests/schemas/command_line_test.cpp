// Checked against: command lines and the values or messages that a reader of the option table expects, written by hand.
#include "schemas/command_line.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace {

ft::ParsedOptions parse(const ft::ProgramSpec& program, std::vector<const char*> words) {
  words.insert(words.begin(), "program");
  const auto result = ft::parse_command_line(program, "build", static_cast<int>(words.size()), words.data());
  REQUIRE(result.options.has_value());
  return *result.options;
}

ft::ParsedOptions tune(std::vector<const char*> words) {
  words.insert(words.begin(), {"--model", "dir"});
  return parse(ft::kTuneProgram, words);
}

// The message of the refusal; fails the test when there is none, or when it is not a usage error.
std::string refusal(const ft::ProgramSpec& program, const std::vector<const char*>& words) {
  try {
    parse(program, words);
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kUsage);
    return error.what();
  }
  FAIL("accepted");
  return {};
}

std::string tune_refusal(std::vector<const char*> words) {
  words.insert(words.begin(), {"--model", "dir"});
  return refusal(ft::kTuneProgram, words);
}

}  // namespace

TEST_CASE("defaults hold where nothing is given") {
  const ft::ParsedOptions options = tune({});
  CHECK(options.text("--model") == "dir");
  CHECK(options.text("--output") == "profile.json");
  CHECK(options.text("--device") == "auto");
  CHECK(options.number("--budget") == 120);
  CHECK_FALSE(options.has("--budget"));
  CHECK_FALSE(options.flag("--dry-run"));
  CHECK_FALSE(options.optional_text("--strategy").has_value());
  CHECK_FALSE(options.optional_integer("--threads").has_value());
  CHECK_FALSE(options.count_or_percent("--slots").has_value());
  CHECK_FALSE(options.synthetic_seed("--weights").has_value());
  CHECK(options.integers("--context").empty());
}

TEST_CASE("every kind of value") {
  const ft::ParsedOptions options =
      tune({"-o", "p.json", "--device=host", "--budget", "2.5", "--vram-limit", "16GiB", "--context", "4096,128",
            "--slots", "25%", "--threads", "7", "--weights", "synthetic:9", "--dry-run"});
  CHECK(options.text("--output") == "p.json");
  CHECK(options.text("--device") == "host");
  CHECK(options.number("--budget") == 2.5);
  CHECK(options.integer("--vram-limit") == int64_t{16} << 30);
  CHECK(options.integers("--context") == std::vector<int64_t>{4096, 128});
  REQUIRE(options.count_or_percent("--slots").has_value());
  CHECK(options.count_or_percent("--slots")->percent == 25.0);
  CHECK_FALSE(options.count_or_percent("--slots")->count.has_value());
  CHECK(options.integer("--threads") == 7);
  CHECK(options.synthetic_seed("--weights") == uint64_t{9});
  CHECK(options.flag("--dry-run"));
  CHECK(tune({"--slots", "48"}).count_or_percent("--slots")->count == int64_t{48});
  CHECK(tune({"--weights", "synthetic"}).synthetic_seed("--weights") == ft::kDefaultSyntheticSeed);
  CHECK_FALSE(tune({"--weights", "checkpoint"}).synthetic_seed("--weights").has_value());
}

TEST_CASE("units of bytes") {
  const auto bytes = [](const char* text) { return tune({"--vram-limit", text}).integer("--vram-limit"); };
  CHECK(bytes("1048576") == 1048576);
  CHECK(bytes("1048576B") == 1048576);
  CHECK(bytes("2048K") == 2097152);
  CHECK(bytes("2048KiB") == 2097152);
  CHECK(bytes("3M") == 3145728);
  CHECK(bytes("3MiB") == 3145728);
  CHECK(bytes("4G") == 4294967296);
  CHECK(bytes("1024T") == 1125899906842624);
  for (const char* text : {"", "1048575", "1025T", "16GB", "16 GiB", "-1", "1.5GiB", "GiB", "9223372036854775807T"}) {
    CAPTURE(text);
    CHECK(tune_refusal({"--vram-limit", text}).find("--vram-limit is '") != std::string::npos);
  }
}

TEST_CASE("texts may start with a dash, look like lists, and be listed in parts") {
  CHECK(parse(ft::kEngineProgram, {"--prompt", "-5 degrees"}).text("--prompt") == "-5 degrees");
  CHECK(parse(ft::kEngineProgram, {"--prompt", "[a,b]"}).text("--prompt") == "[a,b]");
  CHECK(parse(ft::kEngineProgram, {"--prompt=a=b"}).text("--prompt") == "a=b");
  CHECK(parse(ft::kEngineProgram, {"--accept-mismatch", "a,b", "--accept-mismatch", "c"}).texts("--accept-mismatch") ==
        std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("numeric values are accepted at their bounds and refused one past") {
  const auto accepted = [](const char* name, const char* value) { CHECK_NOTHROW(tune({name, value})); };
  const auto refused = [](const char* name, const char* value) {
    CAPTURE(name);
    CAPTURE(value);
    const std::string message = tune_refusal({name, value});
    CHECK(message.find(std::string(name) + " is '" + value + "'; allowed: ") != std::string::npos);
  };
  accepted("--threads", "1"), accepted("--threads", "1024"), refused("--threads", "0"), refused("--threads", "1025");
  accepted("--batch", "1,64"), refused("--batch", "0"), refused("--batch", "1,65");
  accepted("--budget", "1"), accepted("--budget", "86400");
  refused("--budget", "0.999"), refused("--budget", "86400.1"), refused("--budget", "nan"), refused("--budget", "inf");
  accepted("--slots", "0"), accepted("--slots", "4194304"), accepted("--slots", "0%"), accepted("--slots", "100%");
  refused("--slots", "-1"), refused("--slots", "4194305"), refused("--slots", "100.5%"), refused("--slots", "-1%");
  refused("--slots", "nan%"), refused("--slots", "%");
  accepted("--weights", "synthetic:0"), accepted("--weights", "synthetic:9007199254740991");
  refused("--weights", "synthetic:9007199254740992"), refused("--weights", "synthetic:"),
      refused("--weights", "random");
  refused("--weights", "synthetic7"), refused("--weights", "synthetic:-1");
  accepted("--context", "16777216"), refused("--context", "16777217"), refused("--context", "8,8");
  refused("--context", "8,,9"), refused("--context", "8,"), refused("--context", "0x10"), refused("--context", "+8");
  refused("--threads", "two"), refused("--threads", "2.0"), refused("--threads", "99999999999999999999");
}

TEST_CASE("a list holds at most kMaxListItems values") {
  std::string at_limit = "1";
  for (size_t i = 2; i <= ft::kMaxListItems; ++i) at_limit += "," + std::to_string(i);
  CHECK(tune({"--context", at_limit.c_str()}).integers("--context").size() == ft::kMaxListItems);
  tune_refusal({"--context", (at_limit + ",1000").c_str()});
}

TEST_CASE("refusals name the option, its value and what is allowed") {
  CHECK(tune_refusal({"--device", "tpu"}) == "option refused: --device is 'tpu'; allowed: one of auto, cuda, host");
  CHECK(tune_refusal({"--threads", "0"}) == "option refused: --threads is '0'; allowed: integer, 1 to 1024");
  CHECK(refusal(ft::kTuneProgram, {}) == "required option missing: --model; give --model DIR, see ft-tune --help");
  CHECK(tune_refusal({"--vram-limit", "1"}) ==
        "option refused: --vram-limit is '1'; allowed: bytes with optional KiB, MiB, GiB or TiB, 1 MiB to 1 PiB");
  CHECK(tune_refusal({"--threads", "1", "--threads", "2"}).starts_with("option given more than once: --threads"));
  CHECK(tune_refusal({"--threads"}).starts_with("option without a value: --threads"));
  CHECK(tune_refusal({"--threads", "--budget", "5"}).starts_with("option without a value: --threads"));
  CHECK(tune_refusal({"--threads=", "--budget", "5"}).starts_with("option without a value: --threads"));
  CHECK(tune_refusal({"--output", ""}).starts_with("option refused: --output is '(empty)'"));
  CHECK(tune_refusal({"stray"}) == "unexpected argument: 'stray'; allowed: options only; see ft-tune --help");
  CHECK(tune_refusal({"--", "stray"}).find("stray") != std::string::npos);
  CHECK(tune_refusal({"--dry-run=false"}).starts_with("option with a value that it does not take: --dry-run"));
}

TEST_CASE("an unknown option names the nearest one") {
  CHECK(tune_refusal({"--thread", "2"}) == "unknown option: '--thread'; the nearest is --threads, see ft-tune --help");
  CHECK(tune_refusal({"--buget=5"}).find("the nearest is --budget") != std::string::npos);
  CHECK(tune_refusal({"--vram_limit", "1G"}).find("the nearest is --vram-limit") != std::string::npos);
  CHECK(refusal(ft::kEngineProgram, {"--prot", "80"}).find("the nearest is --port") != std::string::npos);
  CHECK(tune_refusal({"-z"}).starts_with("unknown option: '-z'"));
}
