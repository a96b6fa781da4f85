// Checked against: the profile that was written (round trip), and files broken in every way a disk or an editor can.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/error.h"
#include "profiles/build_info.h"
#include "profiles/samples.h"
#include "tests/profiles/sample_profile.h"

namespace fs = std::filesystem;

namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "ft_profiles_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const char* name) const { return (path_ / name).string(); }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path_), {})); }

 private:
  fs::path path_;
};

void put(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

std::string get(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The message of a refused profile file. Every refusal is a usage error that names the file.
std::string refusal(const std::string& path) {
  try {
    ft::read_profile(path);
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kUsage);
    std::string message = error.what();
    CAPTURE(message);
    CHECK(message.find("profile") == 0);
    CHECK(message.find(fs::path(path).filename()) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  FAIL("accepted");
  return {};
}

}  // namespace

TEST_CASE("a profile survives the disk") {
  const TemporaryFolder folder;
  const ft::Profile written = sample_profile();
  ft::write_profile(folder.file("p.json"), written);
  const ft::Profile read = ft::read_profile(folder.file("p.json"));
  CHECK(ft::profile_to_json(read) == ft::profile_to_json(written));
  CHECK(read.serve.fetch_of_misses == written.serve.fetch_of_misses);
  CHECK(read.identity.host.quota_cores == written.identity.host.quota_cores);
  CHECK(read.measurements[0].at == written.measurements[0].at);
  CHECK(read.serve.synthetic_seed == written.serve.synthetic_seed);
  CHECK(folder.files() == 1);
}

TEST_CASE("values keep every bit and absent stays absent") {
  ft::Profile profile = sample_profile();
  profile.measurements[0].values = {0.1, 1e-300, 999999999999999.875, 5e-324, -0.0, 1.0 / 3.0};
  profile.identity.host.quota_cores = {};
  profile.identity.host.gpu_uuid = profile.identity.host.gpu_name = "";
  profile.serve.model_path = "";
  profile.serve.pinning = {};
  const std::string text = ft::profile_to_json(profile).dump();
  const ft::Profile read = ft::parse_profile(ft::parse_json(text, "p"), "p");
  CHECK(read.measurements[0].values == profile.measurements[0].values);
  CHECK_FALSE(read.identity.host.quota_cores.has_value());
  CHECK(read.identity.host.gpu_uuid.empty());
  CHECK(text.find("gpu_uuid") == std::string::npos);
  CHECK(text.find("model_path") == std::string::npos);
  CHECK(text.find("null") == std::string::npos);
}

TEST_CASE("texts are printable once they are read, but for paths, which are used") {
  const std::string hostile = "a\x1b[2J\r\nb\xc2\x9b";
  const std::string shown = "a\\x1b[2J\\x0d\\x0ab\\xc2\\x9b";
  ft::Profile profile = sample_profile();
  profile.decision.reason = profile.conditions.memory = profile.identity.host.cpu_model = hostile;
  profile.decision.warnings = profile.conditions.forced = {hostile, "plain"};
  profile.measurements[0].name = hostile;
  profile.measurements[0].at = {{hostile, 1}};
  profile.serve.model_path = "/" + hostile;
  const ft::Profile read = ft::parse_profile(ft::parse_json(ft::profile_to_json(profile).dump(), "p"), "p");
  CHECK(read.decision.reason == shown);
  CHECK(read.conditions.memory == shown);
  CHECK(read.identity.host.cpu_model == shown);
  CHECK(read.decision.warnings == std::vector<std::string>{shown, "plain"});
  CHECK(read.conditions.forced == std::vector<std::string>{shown, "plain"});
  CHECK(read.measurements[0].name == shown);
  CHECK(read.measurements[0].at == std::map<std::string, double>{{shown, 1}});
  CHECK(read.serve.model_path == "/" + hostile);
}

TEST_CASE("a file cut anywhere is refused") {
  const std::string text = ft::profile_to_json(sample_profile()).dump();
  for (size_t length = 0; length < text.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(ft::parse_profile(ft::parse_json(text.substr(0, length), "p"), "p"), ft::Error);
  }
  const TemporaryFolder folder;
  for (const size_t length : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 1}) {
    put(folder.file("cut.json"), text.substr(0, length));
    refusal(folder.file("cut.json"));
  }
}

TEST_CASE("files that are no profile are refused with their path") {
  const TemporaryFolder folder;
  refusal(folder.file("missing.json"));
  fs::create_directory(folder.file("folder.json"));
  refusal(folder.file("folder.json"));
  put(folder.file("deep.json"), std::string(100'000, '['));
  refusal(folder.file("deep.json"));
  put(folder.file("utf8.json"), "{\"version\": \"\xff\"}");
  refusal(folder.file("utf8.json"));
  put(folder.file("twice.json"), "{\"version\": \"1.0.0\", \"version\": \"1.0.0\"}");
  refusal(folder.file("twice.json"));
  put(folder.file("array.json"), "[]");
  CHECK(refusal(folder.file("array.json")).find("a JSON object") != std::string::npos);
  std::string text = ft::profile_to_json(sample_profile()).dump();
  put(folder.file("nan.json"), text.replace(text.find("21.5"), 4, "NaN"));
  refusal(folder.file("nan.json"));
}

TEST_CASE("a file over the size limit is refused before it is parsed") {
  const TemporaryFolder folder;
  put(folder.file("large.json"), ft::profile_to_json(sample_profile()).dump());
  fs::resize_file(folder.file("large.json"), ft::kMaxProfileBytes + 1);
  CHECK(refusal(folder.file("large.json")).find(std::to_string(ft::kMaxProfileBytes)) != std::string::npos);
}

TEST_CASE("a profile that would be refused is not written, and what is there stays") {
  const TemporaryFolder folder;
  put(folder.file("p.json"), "old");
  ft::Profile profile = sample_profile();
  profile.serve.threads = 0;
  CHECK_THROWS_WITH_AS(ft::write_profile(folder.file("p.json"), profile), doctest::Contains("$.serve.threads is '0'"),
                       ft::Error);
  profile = sample_profile();
  profile.decision.margin = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH_AS(ft::write_profile(folder.file("p.json"), profile), doctest::Contains("$.decision.margin"),
                       ft::Error);
  profile = sample_profile();
  profile.conditions.memory = "\xff";
  CHECK_THROWS_AS(ft::write_profile(folder.file("p.json"), profile), ft::Error);
  CHECK(get(folder.file("p.json")) == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("an output that cannot be written is an error and leaves nothing behind") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(ft::write_profile(folder.file("no/such/folder/p.json"), sample_profile()), ft::Error);
  fs::create_directory(folder.file("taken"));
  CHECK_THROWS_AS(ft::write_profile(folder.file("taken"), sample_profile()), ft::Error);
  CHECK(folder.files() == 1);
}

TEST_CASE("samples survive the disk and are checked like a profile") {
  const TemporaryFolder folder;
  const ft::Profile profile = sample_profile();
  ft::SampleRecord record;
  record.identity = profile.identity;
  record.conditions = profile.conditions;
  record.measurements = profile.measurements;
  record.skipped = profile.skipped;
  ft::write_samples(folder.file("s.json"), record);
  const ft::SampleRecord read = ft::read_samples(folder.file("s.json"));
  CHECK(read.measurements[0].values == record.measurements[0].values);
  CHECK(read.skipped[0].reason == record.skipped[0].reason);
  CHECK(read.conditions.contexts == record.conditions.contexts);
  record.measurements[0].name = "";
  CHECK_THROWS_WITH_AS(ft::write_samples(folder.file("s.json"), record), doctest::Contains("$.measurements[0].name"),
                       ft::Error);
  CHECK_THROWS_WITH_AS(ft::read_samples(folder.file("none.json")), doctest::Contains("samples file refused"),
                       ft::Error);
}

TEST_CASE("the seeds of the fuzz target are what their names say") {
  const char* data = std::getenv("FT_TEST_DATA");
  REQUIRE(data != nullptr);
  const std::string corpus = std::string(data) + "/../fuzz/corpus/profile/";
  CHECK_NOTHROW(ft::read_profile(corpus + "profile.json"));
  CHECK(ft::read_profile(corpus + "profile_watched.json").serve.fallback.has_value());
  CHECK_NOTHROW(ft::read_samples(corpus + "samples.json"));
  for (const char* name : {"machine", "routing_trace"}) {
    CHECK_NOTHROW(ft::validate_schema(ft::read_json_file(corpus + name + ".json"), name, name));
  }
}

TEST_CASE("the recorded reference profiles are read, and name no folder of the machine they come from") {
  const char* data = std::getenv("FT_TEST_DATA");
  REQUIRE(data != nullptr);
  int profiles = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(data) + "/../../profiles/reference")) {
    if (entry.path().extension() != ".json") continue;  // raw results of scripts/regret
    CAPTURE(entry.path().string());
    CHECK(ft::read_profile(entry.path().string()).serve.model_path.empty());
    ++profiles;
  }
  CHECK(profiles >= 1);
}

TEST_CASE("the build knows itself") {
  const ft::BuildInfo build = ft::build_info();
  CHECK(build.version == "0.1.0");
  CHECK(build.code_hash.size() == 32);
  CHECK(build.compiler.find(' ') != std::string_view::npos);
  CHECK(ft::build_text().find(build.code_hash) != std::string::npos);
}
