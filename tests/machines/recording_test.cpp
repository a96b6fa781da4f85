// Recorded machines, and what a recording accepts. Checked against: every folder of tests/machines that holds one,
// whose expected.json was written when the machine was there; the rules of tuner/recording.h; JSON edited by hand.
#include "tuner/recording.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/statistics.h"

namespace ft {
namespace {

namespace fs = std::filesystem;

std::string machines() {
  const char* folder = std::getenv("FT_TEST_MACHINES");
  REQUIRE(folder != nullptr);
  return folder;
}

std::vector<std::string> recorded() {
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(machines())) {
    if (fs::exists(entry.path() / "machine.json")) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "recording-XXXXXX").string()) {
    REQUIRE(mkdtemp(path_.data()) != nullptr);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

const Recording& smallest() {
  static const Recording recording = read_recording(machines() + "/two-cores-tiny");
  return recording;
}

void write(const std::string& path, const Json& json) { write_file_atomically(path, json.dump()); }

size_t entries(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string message(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUsage);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("every recorded machine gives the decision it gave when it was there") {
  const std::vector<std::string> folders = recorded();
  CHECK(folders.size() >= 2);
  std::string table;
  for (const std::string& folder : folders) {
    CAPTURE(folder);
    const Recording recording = read_recording(folder);
    const ReplayedMachine replayed = replay(recording);
    const std::vector<std::string> different = differences(recording.expected, decision_of(recording, replayed));
    for (const std::string& line : different) FAIL_CHECK(line);
    // Not a check of the recording: how well today's model predicts what this machine measured.
    std::vector<double> errors;
    for (const Candidate& candidate : replayed.conclusion.candidates) {
      for (size_t p = 0; p < candidate.measured_tok_s.size(); ++p) {
        errors.push_back(std::abs(candidate.predicted_tok_s[p] / candidate.measured_tok_s[p] - 1));
      }
    }
    REQUIRE(!errors.empty());
    table += fs::path(folder).filename().string() + ": " + recording.about + ": " + recording.expected.strategy +
             ", predicted against measured rates differ by " + std::to_string(100 * median(errors)) +
             " % (median), held-out error " + std::to_string(100 * replayed.conclusion.cost_model.held_out_error) +
             " %\n";
  }
  MESSAGE(table);
}

TEST_CASE("a recorded machine names no folder of the machine it comes from, and is small") {
  for (const std::string& folder : recorded()) {
    CAPTURE(folder);
    size_t bytes = 0;
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      bytes += entry.file_size();
      names.insert(entry.path().filename().string());
      const std::string text = read_text_file(entry.path().string());
      CHECK(text.find("\"/") == std::string::npos);  // no text begins like an absolute path
    }
    CHECK(bytes <= kMaxRecordingBytes);
    CHECK(names ==
          std::set<std::string>{"expected.json", "inputs.json", "machine.json", "routing.json", "samples.json"});
  }
}

TEST_CASE("what is written is read back as it was, over an older recording, without leftovers") {
  const TemporaryFolder folder;
  const Recording& recording = smallest();
  const Analysis analysis = replay(recording).analysis;
  const std::string path = folder.at("machine");
  for (const std::string& name : {path, path + "/"}) {
    write_recording(name, recording, analysis);
    const Recording back = read_recording(name);
    CHECK(back.machine.topology.cpu_model == recording.machine.topology.cpu_model);
    CHECK(back.machine.topology.core_cpus == recording.machine.topology.core_cpus);
    CHECK(back.machine.cpus.pinning == recording.machine.cpus.pinning);
    CHECK(back.machine.memory.available_bytes == recording.machine.memory.available_bytes);
    CHECK(back.samples.measurements.size() == recording.samples.measurements.size());
    CHECK(back.samples.measurements[0].values == recording.samples.measurements[0].values);
    CHECK(back.trace.ids == recording.trace.ids);
    CHECK(back.inputs.geometry.moe_layers == recording.inputs.geometry.moe_layers);
    CHECK(back.inputs.formats.expert_format == recording.inputs.formats.expert_format);
    CHECK(back.inputs.base.max_batch == recording.inputs.base.max_batch);
    CHECK(back.inputs.memory.host_memory_bytes == recording.inputs.memory.host_memory_bytes);
    CHECK(back.values_per_series == 0);
    CHECK(back.tokens_of_routing == recording.trace.tokens);
    CHECK(differences(recording.expected, back.expected).empty());
  }
  CHECK(entries(folder.at("")) == 1);
  CHECK(entries(path) == 5);
  // Pins and limits are no less part of it.
  Recording pinned = recording;
  pinned.inputs.strategy = Strategy::kOffload;
  pinned.inputs.slots = 96;
  pinned.inputs.slots_asked = "96 (50%)";
  pinned.inputs.threads = analysis.models.back().cost.cost.threads;
  pinned.inputs.forced = true;
  pinned.inputs.base.device_memory_limit_bytes = 1 << 30;
  pinned.inputs.base.host_memory_limit_bytes = int64_t{1} << 33;
  pinned.trace.source = "file /srv/someone/trace.json";
  Analysis only = analyze(analysis_input(pinned));
  only.confirmed.resize(1);
  write_recording(path, pinned, only);
  const Recording back = read_recording(path);
  CHECK(back.inputs.strategy == Strategy::kOffload);
  CHECK(back.inputs.slots == 96);
  CHECK(back.inputs.slots_asked == "96 (50%)");
  CHECK(back.inputs.threads == pinned.inputs.threads);
  CHECK(back.inputs.forced);
  CHECK(back.inputs.base.device_memory_limit_bytes == 1 << 30);
  CHECK(back.inputs.base.host_memory_limit_bytes == int64_t{1} << 33);
  CHECK(back.trace.source == "file trace.json");
  CHECK(back.expected.strategy == "offload");
}

TEST_CASE("more than fits: every series keeps its first values, as many as fit, and routing its first tokens") {
  const TemporaryFolder folder;
  Recording large = smallest();
  size_t longest = 0;
  for (Measurement& m : large.samples.measurements) {
    const std::vector<double> values = m.values;
    for (int i = 0; i < 12; ++i) m.values.insert(m.values.end(), values.begin(), values.end());
    longest = std::max(longest, m.values.size());
  }
  REQUIRE(samples_text(large.samples).size() > kMaxSamplesBytes);
  large.trace = generate_trace("mixed", large.trace.layers, large.trace.experts, large.trace.top_k, 4000, 1);
  const Analysis analysis = analyze(analysis_input(large));
  write_recording(folder.at("machine"), large, analysis);
  const Recording back = read_recording(folder.at("machine"));
  CHECK(fs::file_size(folder.at("machine/samples.json")) <= kMaxSamplesBytes);
  CHECK(fs::file_size(folder.at("machine/routing.json")) <= kMaxRoutingBytes);
  CHECK(fs::file_size(folder.at("machine/routing.json")) > kMaxRoutingBytes * 9 / 10);
  CHECK(back.tokens_of_routing == 4000);
  CHECK(back.trace.tokens < 4000);
  CHECK(std::equal(back.trace.ids.begin(), back.trace.ids.end(), large.trace.ids.begin()));
  REQUIRE(back.values_per_series > 0);
  REQUIRE(back.values_per_series < static_cast<int64_t>(longest));
  for (size_t i = 0; i < back.samples.measurements.size(); ++i) {
    const auto &kept = back.samples.measurements[i].values, &all = large.samples.measurements[i].values;
    CHECK(kept.size() == std::min(all.size(), static_cast<size_t>(back.values_per_series)));
    CHECK(std::equal(kept.begin(), kept.end(), all.begin()));
  }
  // One more would not fit.
  Recording more = large;
  for (Measurement& m : more.samples.measurements) {
    m.values.resize(std::min(m.values.size(), static_cast<size_t>(back.values_per_series) + 1));
  }
  CHECK(samples_text(more.samples).size() > kMaxSamplesBytes);
  CHECK(differences(back.expected, decision_of(back, replay(back))).empty());
}

TEST_CASE("differences: another choice, a lost tie, a new tie, another runner-up, a rate beyond the tolerance") {
  RecordedDecision expected{
      "offload", "hybrid", {"offload"}, 0.02, {{"offload", 1, 96, {0, 1}, 0, "sm", 0, {100, 50}}}};
  CHECK(differences(expected, expected).empty());
  RecordedDecision found = expected;
  found.confirmed[0].predicted_tok_s = {101.9, 49.1};
  CHECK(differences(expected, found).empty());
  found.confirmed[0].predicted_tok_s = {102.1, 50};
  CHECK(differences(expected, found) ==
        std::vector<std::string>{"offload.slots=96.threads=1 at point 0: predicted 102.1 tok/s, expected 100"});
  found = expected;
  found.strategy = "cpu";
  found.ties = {"cpu"};
  CHECK(differences(expected, found) ==
        std::vector<std::string>{"chosen is cpu, expected offload", "cpu ties with the choice, expected a clear loss",
                                 "offload is told apart from the choice, expected a tie"});
  found = expected;
  found.runner_up = "cpu";
  CHECK(differences(expected, found) == std::vector<std::string>{"runner-up is 'cpu', expected 'hybrid'"});
  // Of ties any may be chosen, and which comes second is chance.
  expected.ties = {"offload", "cpu"};
  found.strategy = "cpu";
  found.ties = {"cpu", "offload"};
  CHECK(differences(expected, found).empty());
}

TEST_CASE(
    "a recorded candidate that the search does not rank is predicted all the same; one without a model is refused") {
  Recording other = smallest();
  ConfirmedCandidate& candidate = other.expected.confirmed.back();
  candidate.strategy = "offload";
  candidate.slots = 50;
  candidate.fetch_of_misses.assign(33, 0);
  for (size_t m = 0; m < 33; ++m) candidate.fetch_of_misses[m] = static_cast<int>(m);
  candidate.promotions = 0;
  const ReplayedMachine replayed = replay(other);
  const CandidatePrediction& added = replayed.analysis.search.ranked[replayed.analysis.confirmed.back()];
  CHECK(added.config.slots == 50);
  CHECK(added.config.strategy == Strategy::kOffload);
  CHECK(decision_of(other, replayed).confirmed.back().predicted_tok_s[0] > 0);
  candidate.threads = 77;
  CHECK_THROWS_WITH_AS(replay(other), doctest::Contains("offload.slots=50.threads=77"), Error);
}

namespace {

struct Damage {
  const char* file;
  std::function<void(Json&)> apply;
  std::vector<std::string> says;
};

std::vector<Damage> damages() {
  return {
      {"machine.json", [](Json& j) { j["topology"]["isa"] = "sse9"; }, {"machine.json", "$.topology.isa", "sse9"}},
      {"machine.json", [](Json& j) { j.erase("cpu_budget"); }, {"machine.json", "cpu_budget"}},
      {"samples.json", [](Json& j) { j["version"] = "9.0.0"; }, {"samples.json", "$.version", "9.0.0"}},
      {"samples.json",
       [](Json& j) { j["measurements"][3]["values"][0] = "fast"; },
       {"samples.json", "$.measurements[3].values[0]", "fast"}},
      {"routing.json", [](Json& j) { j["ids"][1][0][0] = 77; }, {"routing.json", "$.ids[1][0]", "77"}},
      {"routing.json",
       [](Json& j) {
         j["layers"] = 5;
         for (const char* key : {"ids", "predicted"}) {
           if (!j.contains(key)) continue;
           for (Json& token : j[key]) token.erase(5);
         }
       },
       {"routing.json", "$.layers", "5", "6, as in inputs.json"}},
      {"inputs.json", [](Json& j) { j["geometry"]["top_k"] = 65; }, {"inputs.json", "$.geometry.top_k", "65"}},
      {"inputs.json",
       [](Json& j) { j["geometry"]["experts"] = 3; },
       {"inputs.json", "$.geometry.top_k", "at most experts 3"}},
      {"inputs.json",
       [](Json& j) { j["geometry"]["moe_layers"][2] = 1; },
       {"inputs.json", "$.geometry.moe_layers[2]", "1"}},
      {"inputs.json",
       [](Json& j) { j["formats"]["expert"][4] = "fp3"; },
       {"inputs.json", "$.formats.expert[4]", "fp3"}},
      {"inputs.json", [](Json& j) { j["formats"]["expert"].erase(0); }, {"inputs.json", "$.formats.expert", "5 items"}},
      {"inputs.json", [](Json& j) { j["pins"]["strategy"] = "magic"; }, {"inputs.json", "$.pins.strategy", "magic"}},
      {"inputs.json", [](Json& j) { j["base"]["secret"] = 1; }, {"inputs.json", "$.base.secret", "unknown key"}},
      {"samples.json",
       [](Json& j) {
         j["conditions"]["batches"] = {1, 9};
       },
       {"samples.json", "$.conditions.batches", "9", "at most max_batch 8"}},
      {"expected.json",
       [](Json& j) { j["confirmed"][1]["slots"] = 193; },
       {"$.confirmed[1].slots", "193", "32 to 192"}},
      {"expected.json",
       [](Json& j) { j["confirmed"][1]["fetch_of_misses"].push_back(1); },
       {"$.confirmed[1].fetch_of_misses", "34 entries", "33"}},
      {"expected.json",
       [](Json& j) { j["confirmed"][1]["fetch_of_misses"][2] = 3; },
       {"$.confirmed[1].fetch_of_misses[2]", "3", "0 to 2"}},
      {"expected.json", [](Json& j) { j["tolerance"] = 1.5; }, {"expected.json", "$.tolerance", "1.5"}},
      {"expected.json",
       [](Json& j) { j["confirmed"][0]["predicted_tok_s"].erase(0); },
       {"expected.json", "$.confirmed[0].predicted_tok_s", "3 rates"}},
      {"expected.json",
       [](Json& j) { j["confirmed"][1]["predicted_tok_s"][0] = 0; },
       {"expected.json", "$.confirmed[1].predicted_tok_s[0]", "0"}},
  };
}

}  // namespace

TEST_CASE("a recording edited by hand is refused with file, path and value") {
  const TemporaryFolder folder;
  const std::string path = folder.at("machine");
  for (const Damage& damage : damages()) {
    fs::remove_all(path);
    fs::copy(machines() + "/two-cores-tiny", path);
    Json json = read_json_file(path + "/" + damage.file);
    damage.apply(json);
    write(path + "/" + damage.file, json);
    const std::string text = message([&] { read_recording(path); });
    CAPTURE(text);
    for (const std::string& part : damage.says) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("a recording that is cut off, incomplete or too large is refused") {
  const TemporaryFolder folder;
  const std::string path = folder.at("machine");
  const auto untouched = [&] {
    fs::remove_all(path);
    fs::copy(machines() + "/two-cores-tiny", path);
  };
  untouched();
  write_file_atomically(path + "/inputs.json", read_text_file(path + "/inputs.json").substr(0, 100));
  CHECK(message([&] { read_recording(path); }).find("inputs.json") != std::string::npos);
  untouched();
  fs::remove(path + "/routing.json");
  CHECK(message([&] { read_recording(path); }).find("routing.json") != std::string::npos);
  untouched();
  size_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path)) bytes += entry.file_size();
  const std::string machine = read_text_file(path + "/machine.json");
  write_file_atomically(path + "/machine.json", machine + std::string(kMaxRecordingBytes - bytes, ' '));
  CHECK_NOTHROW(read_recording(path));
  write_file_atomically(path + "/machine.json", machine + std::string(kMaxRecordingBytes - bytes + 1, ' '));
  CHECK(message([&] { read_recording(path); }).find("300001 bytes") != std::string::npos);
  CHECK(message([&] { read_recording(folder.at("nothing")); }).find("machine.json") != std::string::npos);
}

TEST_CASE("where a recording may be written") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(check_record_folder(folder.at("new")));
  CHECK(!fs::exists(folder.at("new")));
  fs::create_directory(folder.at("empty"));
  CHECK_NOTHROW(check_record_folder(folder.at("empty")));
  fs::copy(machines() + "/two-cores-tiny", folder.at("older"));
  CHECK_NOTHROW(check_record_folder(folder.at("older/")));
  write_file_atomically(folder.at("older/thesis.txt"), "years of work");
  CHECK(message([&] { check_record_folder(folder.at("older")); }).find("thesis.txt") != std::string::npos);
  fs::create_directory(folder.at("samples"));
  write_file_atomically(folder.at("samples/samples.json"), "{}");  // of somebody else: a recording has all its files
  CHECK(message([&] { check_record_folder(folder.at("samples")); }).find("1 of 5 files") != std::string::npos);
  CHECK(message([&] { check_record_folder(folder.at("older/thesis.txt")); }).find("no folder") != std::string::npos);
  CHECK(message([&] { check_record_folder(folder.at("no/such/place")); }).find("--record refused") !=
        std::string::npos);
}

}  // namespace ft
