#include "tuner/recording.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tuner/predictor.h"
#include "tuner/recording_json.h"

namespace ft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMachineFile = "machine.json";
constexpr const char* kSamplesFile = "samples.json";
constexpr const char* kRoutingFile = "routing.json";
constexpr const char* kInputsFile = "inputs.json";
constexpr const char* kExpectedFile = "expected.json";
constexpr std::array kFiles = {kMachineFile, kSamplesFile, kRoutingFile, kInputsFile, kExpectedFile};

[[noreturn]] void refuse(const std::string& what, const std::string& value, const std::string& allowed,
                         const std::string& path) {
  throw Error(ErrorKind::kUsage, {.what = what, .value = value, .allowed = allowed, .path = path});
}

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw Error(ErrorKind::kNotWritten, {.what = what, .value = std::strerror(errno), .path = path});
}

// A folder beside `folder` that becomes it, or goes away.
class NewFolder {
 public:
  explicit NewFolder(const std::string& folder) : path_(folder + ".new-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) fail("cannot make a folder for the recording", path_);
    chmod(path_.c_str(), 0755);
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);  // what was there before, or what was not finished
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  std::string file(const char* name) const { return path_ + "/" + name; }
  void become(const std::string& folder) {
    std::error_code ignored;
    if (fs::exists(folder, ignored)) {
      if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
        fail("cannot replace the recording", folder);
      }
    } else if (rename(path_.c_str(), folder.c_str()) != 0) {
      fail("cannot write the recording", folder);
    }
  }

 private:
  std::string path_;
};

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

// A recording names no folder of the machine it comes from.
std::string without_folders(const std::string& source) {
  const size_t path = source.starts_with('/') ? 0 : source.find(" /") + 1;
  if (path == 0 && !source.starts_with('/')) return source;
  return source.substr(0, path) + fs::path(source.substr(path)).filename().string();
}

void keep_values(SampleRecord& samples, size_t count) {
  for (Measurement& m : samples.measurements) {
    if (m.values.size() > count) m.values.resize(count);
  }
}

// All values, or as many first ones for every series as fit.
int64_t thin_samples(SampleRecord& samples) {
  if (samples_text(samples).size() <= kMaxSamplesBytes) return 0;
  size_t most = 0;
  for (const Measurement& m : samples.measurements) most = std::max(most, m.values.size());
  for (size_t count = most - 1; count > 0; --count) {
    keep_values(samples, count);
    if (samples_text(samples).size() <= kMaxSamplesBytes) return static_cast<int64_t>(count);
  }
  throw Error(ErrorKind::kFailed, {.what = "too many series for a recording",
                                   .value = std::to_string(samples.measurements.size()) + " series",
                                   .allowed = std::to_string(kMaxSamplesBytes) + " bytes with one value each",
                                   .action = "tune for fewer contexts, batches or thread counts"});
}

void cut(RoutingTrace& trace, int64_t tokens) {
  trace.tokens = tokens;
  trace.ids.resize(static_cast<size_t>(tokens * trace.layers * trace.top_k));
  trace.predicted.resize(static_cast<size_t>(tokens * trace.layers * trace.predictions));
}

// Leading tokens that fit into kMaxRoutingBytes, by the bytes a token takes on average.
void write_routing(const std::string& path, RoutingTrace& trace) {
  for (int64_t tokens = trace.tokens;;) {
    cut(trace, tokens);
    write_routing_trace(path, trace);
    const auto bytes = fs::file_size(path);
    if (bytes <= kMaxRoutingBytes) return;
    const double fit = static_cast<double>(kMaxRoutingBytes) / static_cast<double>(bytes);
    tokens = std::min(tokens - 1, static_cast<int64_t>(fit * static_cast<double>(tokens)));
    if (tokens < 1) {
      throw Error(ErrorKind::kFailed, {.what = "one token's routing is too large for a recording",
                                       .value = std::to_string(bytes) + " bytes",
                                       .allowed = std::to_string(kMaxRoutingBytes)});
    }
  }
}

Json read_part(const std::string& folder, const char* name, const char* schema) {
  const std::string path = folder + "/" + name;
  try {
    Json json = read_json_file(path, {.max_bytes = kMaxRecordingBytes});
    validate_schema(json, schema, path);
    return json;
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, error.parts());
  }
}

// That the engine's slot table could have run it.
void check_confirmed(const std::string& file, const std::string& path, const Recording& recording, size_t points,
                     const ConfirmedCandidate& candidate) {
  const ExpertGeometry& expert = recording.inputs.geometry.expert;
  const int64_t all = recording.inputs.geometry.total_experts();
  const int distinct = std::min(expert.experts, expert.top_k * recording.inputs.base.max_batch);
  const bool resident = candidate.strategy == strategy_name(Strategy::kResident);
  const bool none = candidate.slots == 0 && candidate.strategy == strategy_name(Strategy::kCpu);
  if (resident ? candidate.slots != all : !none && (candidate.slots < distinct || candidate.slots > all)) {
    refuse(file + " refused", std::to_string(candidate.slots),
           resident ? std::to_string(all) : fmt::format("{} to {}", distinct, all), path + "slots");
  }
  const size_t entries = resident ? 0 : static_cast<size_t>(distinct) + 1;
  if (candidate.fetch_of_misses.size() != entries) {
    refuse(file + " refused", fmt::format("{} entries", candidate.fetch_of_misses.size()), std::to_string(entries),
           path + "fetch_of_misses");
  }
  for (size_t m = 0; m < entries; ++m) {
    if (candidate.fetch_of_misses[m] <= static_cast<int>(m)) continue;
    refuse(file + " refused", std::to_string(candidate.fetch_of_misses[m]), fmt::format("0 to {}", m),
           fmt::format("{}fetch_of_misses[{}]", path, m));
  }
  if (candidate.predicted_tok_s.size() == points) return;
  refuse(file + " refused", fmt::format("{} rates", candidate.predicted_tok_s.size()),
         fmt::format("{}, one for each context and batch of {}", points, kSamplesFile), path + "predicted_tok_s");
}

void check_together(const std::string& folder, const Recording& recording) {
  const ModelGeometry& geometry = recording.inputs.geometry;
  const RoutingTrace& trace = recording.trace;
  const std::string path = folder + "/" + kRoutingFile;
  const auto same = [&](const char* key, int64_t here, int64_t there) {
    if (here == there) return;
    refuse(path + " refused, it is of another model", std::to_string(here),
           std::to_string(there) + ", as in " + kInputsFile, std::string("$.") + key);
  };
  same("layers", trace.layers, static_cast<int64_t>(geometry.moe_layers.size()));
  same("experts", trace.experts, geometry.expert.experts);
  same("top_k", trace.top_k, geometry.expert.top_k);
  const Conditions& conditions = recording.samples.conditions;
  for (const int64_t batch : conditions.batches) {
    if (batch <= recording.inputs.base.max_batch) continue;
    refuse(folder + "/" + kSamplesFile + " refused", std::to_string(batch),
           "at most max_batch " + std::to_string(recording.inputs.base.max_batch) + " of " + kInputsFile,
           "$.conditions.batches");
  }
  const size_t points = conditions.contexts.size() * conditions.batches.size();
  for (size_t i = 0; i < recording.expected.confirmed.size(); ++i) {
    check_confirmed(folder + "/" + kExpectedFile, "$.confirmed[" + std::to_string(i) + "].", recording, points,
                    recording.expected.confirmed[i]);
  }
}

ConfirmedCandidate confirmed_of(const CandidatePrediction& prediction, int64_t expert_bytes) {
  const EngineConfig& config = prediction.config;
  return {std::string(strategy_name(config.strategy)),
          config.threads,
          config.slots,
          config.strategy == Strategy::kResident ? SplitTable{} : config.fetch_of_misses,
          PromotionRate::of_bytes(config.promote_bytes_per_layer, expert_bytes),
          std::string(fetch_mechanism_name(config.fetch_mechanism)),
          config.max_prefetches_per_layer,
          prediction.tok_s};
}

std::string name_of(const ConfirmedCandidate& candidate) {
  return fmt::format("{}.slots={}.threads={}", candidate.strategy, candidate.slots, candidate.threads);
}

// The same knobs; predictions aside.
bool is_same(ConfirmedCandidate a, const ConfirmedCandidate& b) {
  a.predicted_tok_s = b.predicted_tok_s;
  return a == b;
}

}  // namespace

AnalysisInput analysis_input(const Recording& recording) {
  AnalysisInput input = recording.inputs;
  input.measurements = recording.samples.measurements;
  input.trace = &recording.trace;
  input.cores = recording.machine.cpus.usable_cores;
  input.contexts = recording.samples.conditions.contexts;
  input.batches = recording.samples.conditions.batches;
  return input;
}

CandidatePrediction predict_candidate(const AnalysisInput& input, const std::vector<ThreadModel>& models,
                                      const ConfirmedCandidate& candidate) {
  CandidateSpec spec;
  spec.strategy = strategy_by_name(candidate.strategy).value();
  spec.threads = candidate.threads;
  spec.use = {candidate.slots, candidate.fetch_of_misses, candidate.promotions, spec.strategy == Strategy::kResident,
              candidate.max_prefetches_per_layer};
  spec.mechanism = fetch_mechanism_by_name(candidate.fetch_mechanism).value();
  const SearchInput from = search_input(input, models);
  const auto of_threads = [&](const ThreadModel& model) { return model.cost.cost.threads == candidate.threads; };
  const auto model = std::find_if(from.models.begin(), from.models.end(), of_threads);
  const bool pool_works =
      input.base.device == Device::kHost || spec.strategy == Strategy::kCpu || spec.strategy == Strategy::kHybrid;
  if (pool_works && model == from.models.end()) {
    throw Error(ErrorKind::kFailed, {.what = "a recorded candidate cannot be predicted, its thread count has no model",
                                     .value = name_of(candidate),
                                     .action = "record the machine again"});
  }
  spec.model = pool_works ? static_cast<size_t>(model - from.models.begin()) : 0;
  return Predictor(from).predict(spec);
}

ReplayedMachine replay(const Recording& recording) {
  const AnalysisInput input = analysis_input(recording);
  ReplayedMachine replayed{analyze(input), {}};
  auto& ranked = replayed.analysis.search.ranked;
  replayed.analysis.confirmed.clear();
  for (const ConfirmedCandidate& candidate : recording.expected.confirmed) {
    size_t at = 0;
    while (at < ranked.size() && !is_same(confirmed_of(ranked[at], input.formats.expert_bytes_max), candidate)) ++at;
    if (at == ranked.size()) {
      ranked.push_back(predict_candidate(input, replayed.analysis.models, candidate));
    }
    replayed.analysis.confirmed.push_back(at);
  }
  replayed.conclusion = conclude(input, replayed.analysis);
  return replayed;
}

RecordedDecision decision_of(const Recording& recording, const ReplayedMachine& replayed) {
  const Decision& decision = replayed.conclusion.decision;
  RecordedDecision found;
  found.strategy = decision.strategy;
  found.runner_up = decision.runner_up;
  found.ties = {decision.strategy};
  for (const Candidate& candidate : replayed.conclusion.candidates) {
    const bool known = std::find(found.ties.begin(), found.ties.end(), candidate.strategy) != found.ties.end();
    if (!known && !candidate.measured_tok_s.empty() && candidate.verdict.starts_with("tie")) {
      found.ties.push_back(candidate.strategy);
    }
  }
  found.tolerance = recording.expected.tolerance;
  for (const size_t index : replayed.analysis.confirmed) {
    found.confirmed.push_back(
        confirmed_of(replayed.analysis.search.ranked[index], recording.inputs.formats.expert_bytes_max));
  }
  return found;
}

std::vector<std::string> differences(const RecordedDecision& expected, const RecordedDecision& found) {
  std::vector<std::string> lines;
  const auto is_tied = [](const RecordedDecision& with, const std::string& strategy) {
    return std::find(with.ties.begin(), with.ties.end(), strategy) != with.ties.end();
  };
  if (found.strategy != expected.strategy && !is_tied(expected, found.strategy)) {
    lines.push_back(fmt::format("chosen is {}, expected {}", found.strategy, fmt::join(expected.ties, " or ")));
  }
  for (const std::string& strategy : found.ties) {
    if (!is_tied(expected, strategy))
      lines.push_back(fmt::format("{} ties with the choice, expected a clear loss", strategy));
  }
  for (const std::string& strategy : expected.ties) {
    if (!is_tied(found, strategy))
      lines.push_back(fmt::format("{} is told apart from the choice, expected a tie", strategy));
  }
  if (expected.ties.size() == 1 && found.runner_up != expected.runner_up) {
    lines.push_back(fmt::format("runner-up is '{}', expected '{}'", found.runner_up, expected.runner_up));
  }
  for (size_t i = 0; i < expected.confirmed.size(); ++i) {
    const std::vector<double>&now = found.confirmed[i].predicted_tok_s, &then = expected.confirmed[i].predicted_tok_s;
    for (size_t p = 0; p < then.size(); ++p) {
      if (std::abs(now[p] / then[p] - 1) <= expected.tolerance) continue;
      lines.push_back(fmt::format("{} at point {}: predicted {:.4g} tok/s, expected {:.4g}",
                                  name_of(expected.confirmed[i]), p, now[p], then[p]));
    }
  }
  return lines;
}

void check_record_folder(const std::string& given) {
  const std::string folder = without_slash(given);
  const auto refuse_it = [&](const std::string& what, const std::string& value, const std::string& allowed) {
    refuse("--record refused, " + what, value, allowed, folder);
  };
  std::error_code error;
  if (!fs::exists(folder, error)) {
    try {
      check_writable(folder);
    } catch (const Error& cause) {
      ErrorParts parts = cause.parts();
      parts.what = "--record refused, " + parts.what;
      parts.action = "name a folder inside one that exists and that this user may write to";
      throw Error(ErrorKind::kUsage, std::move(parts));
    }
    return;
  }
  if (!fs::is_directory(folder, error)) refuse_it("it is there and no folder", "", "a folder, or a name not yet used");
  constexpr const char* kAllowed = "an empty folder, or one with a recording to replace";
  size_t known_files = 0;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const auto same = [&](const char* known) { return name == known; };
    if (!std::any_of(kFiles.begin(), kFiles.end(), same)) refuse_it("the folder holds something else", name, kAllowed);
    ++known_files;
  }
  if (known_files != 0 && known_files != kFiles.size()) {  // recordings come and go whole
    refuse_it("the folder holds files that are no recording",
              std::to_string(known_files) + " of " + std::to_string(kFiles.size()) + " files of one", kAllowed);
  }
  if (error) refuse_it("it cannot be read", error.message(), "a folder that can be read and written");
  check_writable(folder + "/" + kMachineFile);
}

void write_recording(const std::string& given, Recording recording, const Analysis& confirmed) {
  const std::string folder = without_slash(given);
  NewFolder made(folder);
  recording.values_per_series = thin_samples(recording.samples);
  recording.tokens_of_routing = recording.trace.tokens;
  recording.trace.source = without_folders(recording.trace.source);
  recording.samples.conditions.routing_source = without_folders(recording.samples.conditions.routing_source);
  recording.expected = {};
  for (const size_t index : confirmed.confirmed) {
    recording.expected.confirmed.push_back(
        confirmed_of(confirmed.search.ranked[index], recording.inputs.formats.expert_bytes_max));
  }
  write_routing(made.file(kRoutingFile), recording.trace);
  write_file_atomically(made.file(kMachineFile), machine_to_json(recording.machine).dump(1) + "\n");
  write_file_atomically(made.file(kSamplesFile), samples_text(recording.samples));
  write_file_atomically(made.file(kInputsFile), inputs_to_json(recording).dump(1) + "\n");
  const auto write_decision = [&] {
    write_file_atomically(made.file(kExpectedFile), decision_to_json(recording.expected).dump(1) + "\n");
  };
  // What is read back is what the decision is taken from.
  recording.expected.strategy = strategy_name(confirmed.search.ranked[0].config.strategy);
  recording.expected.ties = {recording.expected.strategy};
  write_decision();
  Recording back = read_recording(fs::path(made.file(kInputsFile)).parent_path().string());
  recording.expected = decision_of(back, replay(back));
  write_decision();
  made.become(folder);
}

Recording read_recording(const std::string& given) {
  const std::string folder = without_slash(given);
  size_t bytes = 0;
  for (const char* name : kFiles) {
    std::error_code error;
    const auto size = fs::file_size(folder + "/" + name, error);
    if (error)
      refuse("recording refused, a file is missing or cannot be read", error.message(), "", folder + "/" + name);
    bytes += size;
  }
  if (bytes > kMaxRecordingBytes) {
    refuse("recording refused, it is too large", std::to_string(bytes) + " bytes",
           "at most " + std::to_string(kMaxRecordingBytes), folder);
  }
  Recording recording;
  recording.machine = parse_machine(read_part(folder, kMachineFile, "machine"));
  recording.samples = parse_samples(read_part(folder, kSamplesFile, "samples"), folder + "/" + kSamplesFile);
  recording.trace = parse_routing_trace(read_part(folder, kRoutingFile, "routing_trace"), folder + "/" + kRoutingFile);
  parse_inputs(read_part(folder, kInputsFile, "recorded_inputs"), folder + "/" + kInputsFile, recording);
  recording.expected = parse_decision(read_part(folder, kExpectedFile, "recorded_decision"));
  check_together(folder, recording);
  return recording;
}

}  // namespace ft
