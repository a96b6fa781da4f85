// ft-probe: runs the probes by hand and hands their raw samples to Google Benchmark, so that its flags, its JSON and
// its compare tools work: every series is a benchmark, every sample one of its repetitions (manual time).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "engine/experts/routing_trace.h"
#include "engine/model/packed_cache.h"
#include "engine/runtime/device.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "probes/expert_set.h"
#include "probes/measure.h"
#include "probes/prompts.h"
#include "probes/session.h"
#include "profiles/build_info.h"
#include "schemas/command_line.h"

namespace ft {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

[[noreturn]] void refuse(const std::string& option, const std::string& value, const std::string& allowed) {
  throw Error(ErrorKind::kUsage,
              {.what = "option refused", .value = value, .allowed = allowed, .action = {}, .path = option});
}

int64_t side(const std::string& text, std::string_view digits) {
  constexpr int64_t kMaxSide = 65536;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 1 || value > kMaxSide) {
    refuse("--expert", text, "FORMAT:HIDDENxINTERMEDIATE, sizes 1 to " + std::to_string(kMaxSide));
  }
  return value;
}

ExpertShape shape_of(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  const std::vector<std::string> sides = parts.size() == 2 ? split(parts[1], 'x') : std::vector<std::string>{};
  const std::optional<FormatId> format = parts.empty() ? std::nullopt : format_by_name(parts[0]);
  if (sides.size() != 2 || !format) {
    std::string names;
    for (const FormatInfo& info : all_formats()) names += (names.empty() ? "" : ", ") + std::string(info.name);
    refuse("--expert", text, "FORMAT:HIDDENxINTERMEDIATE, FORMAT one of " + names);
  }
  return {*format, side(text, sides[0]), side(text, sides[1])};
}

// What would be ignored: the user believes in it.
void check_weight_options(const ParsedOptions& options) {
  const bool synthetic = options.synthetic_seed("--weights").has_value();
  if (options.has("--routing") && !synthetic) {
    throw Error(ErrorKind::kUsage, {.what = "--routing has an effect only with synthetic weights: a checkpoint's own "
                                            "router chooses its experts",
                                    .action = "add --weights synthetic or leave --routing out"});
  }
  for (const char* name : {"--weights", "--packed-cache"}) {
    if (!options.has(name) || options.has("--model")) continue;
    throw Error(ErrorKind::kUsage,
                {.what = std::string(name) + " has an effect only with a model", .action = "add --model DIR"});
  }
}

ProbeSessionOptions session_options(const ParsedOptions& options) {
  check_weight_options(options);
  ProbeSessionOptions session;
  session.weights.model_path = options.optional_text("--model").value_or("");
  const auto seed = options.synthetic_seed("--weights");
  session.weights.synthetic = seed.has_value();
  session.weights.synthetic_seed = seed.value_or(0);
  session.weights.routing_preset = options.optional_text("--routing").value_or("");
  session.weights.packed_cache = options.optional_text("--packed-cache").value_or("");
  check_packed_cache(session.weights, false);
  for (const std::string& text : options.texts("--expert")) session.expert_shapes.push_back(shape_of(text));
  for (const int64_t threads : options.integers("--threads")) session.threads.push_back(static_cast<int>(threads));
  session.contexts = options.integers("--context");
  for (const int64_t batch : options.integers("--batch")) session.batches.push_back(static_cast<int>(batch));
  session.budget_seconds = options.number("--budget");
  const DeviceChoice choice = choose_device(options.text("--device"));
  if (options.text("--device") == "auto") {
    std::cerr << "device " << device_name(choice.device) << ": " << choice.reason << '\n';
  }
  session.device = choice.device;
  session.gpu = start_device(choice.device);
  session.device_memory_limit_bytes = options.optional_integer("--vram-limit");
  session.link_slowdown = static_cast<int>(options.optional_integer("--link-slowdown").value_or(1));
  if (session.link_slowdown != 1 && session.device != Device::kCuda) {
    refuse("--link-slowdown", std::to_string(session.link_slowdown), "1 on the host device, which has no link");
  }
  session.cache_policy = cache_policy_by_name(options.text("--cache-policy")).value();
  session.max_prefetches = static_cast<int>(options.optional_integer("--look-ahead").value_or(0));
  if (options.has("--bank-gb")) session.bank_gb = options.number("--bank-gb");
  session.notice = [](std::string_view text, bool warning) {
    std::cerr << (warning ? "warning: " : "") << text << '\n';
  };
  return session;
}

std::string probe_names() {
  std::string names;
  for (const std::unique_ptr<Probe>& probe : make_probes())
    names += (names.empty() ? "" : ", ") + std::string(probe->id());
  return names;
}

// Replays one series: repetition i reports sample i.
void register_series(const std::string& probe, const Samples& samples) {
  auto next = std::make_shared<size_t>(0);
  auto* benchmark =
      benchmark::RegisterBenchmark((probe + "/" + samples.name).c_str(), [samples, next](benchmark::State& state) {
        const double value = samples.values[(*next)++ % samples.values.size()];
        for (auto iteration : state) {
          static_cast<void>(iteration);
          state.SetIterationTime(sample_seconds(samples, value));
        }
        state.counters[samples.unit] = value;
        for (const auto& [name, coordinate] : samples.at) state.counters[name] = coordinate;
        state.SetLabel(samples.stop_reason + (samples.reduced ? ", reduced" : ""));
      });
  benchmark->UseManualTime()
      ->Iterations(1)
      ->Repetitions(static_cast<int>(samples.values.size()))
      ->Unit(benchmark::kMicrosecond);
}

void print_read_shares(const std::vector<Samples>& all) {
  for (const ReadShare& share : read_shares(all)) {
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, ": %.2f of mem_read (%.1f of %.1f GB/s, median of %zu rounds)", share.ratio,
                  share.gbps, share.read_gbps, share.rounds);
    std::cerr << "expert_single/" << share.name << numbers << '\n';
  }
}

// What the engine's way of fetching reaches of the link's own rate: both probes ran, of the largest copies.
void print_gather_share(const std::map<std::string, std::vector<Samples>>& all) {
  double linear = 0;
  for (const Samples& samples : all.at("pcie_linear")) {
    if (samples.name == "h2d.bytes=268435456") linear = median(samples.values);
  }
  for (const Samples& samples : all.at("pcie_gather")) {
    const double gbps = median(samples.values);
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, ": %.1f GB/s, %.2f of h2d (%.1f GB/s)", gbps,
                  linear > 0 ? gbps / linear : 0.0, linear);
    std::cerr << "pcie_gather/" << samples.name << numbers << '\n';
  }
}

// Before minutes of loading: names that no probe has.
void check_probe_names(const std::vector<std::string>& wanted) {
  const std::vector<std::unique_ptr<Probe>> probes = make_probes();
  for (const std::string& name : wanted) {
    const bool known =
        std::any_of(probes.begin(), probes.end(), [&](const auto& probe) { return probe->id() == name; });
    if (!known) refuse("--probe", name, probe_names());
  }
}

int run(const ParsedOptions& options) {
  const std::vector<std::string> wanted_ids = options.texts("--probe");
  check_probe_names(wanted_ids);
  ProbeSession session(session_options(options));
  ProbeContext& context = session.context();
  if (!session.look_ahead_text().empty()) std::cerr << "look-ahead: " << session.look_ahead_text() << '\n';
  if (!session.bank_text().empty()) std::cerr << "expert banks: " << session.bank_text() << '\n';
  std::map<std::string, std::vector<Samples>> samples_of_probe;
  for (const std::unique_ptr<Probe>& probe : make_probes()) {
    const std::string id(probe->id());
    const bool wanted = wanted_ids.empty() || std::find(wanted_ids.begin(), wanted_ids.end(), id) != wanted_ids.end();
    if (!wanted) continue;
    const Applies applies = probe->applies(context);
    if (!applies.yes) {
      std::cerr << id << ": skipped: " << applies.reason << '\n';
      continue;
    }
    std::cerr << id << ": " << probe->measures() << '\n';
    const std::vector<Samples> all = probe->run(context);
    probe->verify(context);
    if (id == "expert_single") print_read_shares(all);
    samples_of_probe[id] = all;
    if (id == "pcie_gather" && samples_of_probe.contains("pcie_linear")) print_gather_share(samples_of_probe);
    for (const Samples& samples : all) {
      for (const std::string& remark : samples.remarks)
        std::cerr << id << "/" << samples.name << ": " << remark << '\n';
      register_series(id, samples);
    }
  }
  if (!samples_of_probe.empty()) benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return kExitDone;
}

}  // namespace
}  // namespace ft

int main(int argc, char** argv) {
  // Google Benchmark takes its own options; its --help would end the program, so it does not see ours.
  std::vector<char*> ours, theirs;
  for (int i = 0; i < argc; ++i) {
    const bool is_theirs = std::string_view(argv[i]).starts_with("--benchmark_");
    if (i == 0 || is_theirs) theirs.push_back(argv[i]);
    if (i == 0 || !is_theirs) ours.push_back(argv[i]);
  }
  int count = static_cast<int>(theirs.size());
  benchmark::Initialize(&count, theirs.data());
  if (benchmark::ReportUnrecognizedArguments(count, theirs.data())) return ft::kExitUsage;
  const ft::HelpLine lines[] = {{"--routing", "Presets: " + ft::routing_preset_names() + "."},
                                {"--probe", "Probes: " + ft::probe_names() + "."}};
  ft::ProgramSpec program = ft::kProbeProgram;
  program.more_help = lines;
  return ft::run_program(program, ft::build_text(), static_cast<int>(ours.size()), ours.data(), ft::run);
}
