// ft-probe: runs the probes by hand and hands their raw samples to Google Benchmark, so that its flags, its JSON and
// its compare tools work: every series is a benchmark, every sample one of its repetitions (manual time).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <string>

#include "engine/model/checkpoint.h"
#include "kernels/base/error.h"
#include "probes/expert_set.h"
#include "probes/measure.h"
#include "probes/prompts.h"
#include "probes/session.h"

namespace ft {
namespace {

constexpr const char* kUsage =
    "ft-probe [--model DIR] [options] [--benchmark_* options]\n"
    "  --model DIR              checkpoint folder; without it only the probes that need no model run\n"
    "  --weights SOURCE         checkpoint (default) or synthetic[:SEED]\n"
    "  --routing PRESET|FILE    expert choices with synthetic weights (default qwen3-30b)\n"
    "  --expert FORMAT:HxI      another expert geometry for expert_single: nvfp4:2560x640\n"
    "  --probe ID,..            only these probes\n"
    "  --threads N,..           compute threads to sweep (default: 1 and all usable cores)\n"
    "  --context N,..           positions for dense and decode (default 128)\n"
    "  --batch N,..             sequences decoded together (default 1)\n"
    "  --budget SECONDS         of each probe (default 5)\n";

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

int64_t number(const std::string& option, const std::string& text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    refuse(option, text, std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

ExpertShape shape_of(const std::string& text) {
  constexpr int64_t kMaxSide = 65536;
  const std::vector<std::string> parts = split(text, ':');
  const std::vector<std::string> sides = parts.size() == 2 ? split(parts[1], 'x') : std::vector<std::string>{};
  const std::optional<FormatId> format = parts.empty() ? std::nullopt : format_by_name(parts[0]);
  if (sides.size() != 2 || !format) refuse("--expert", text, "FORMAT:HIDDENxINTERMEDIATE with a known format");
  return {*format, number("--expert", sides[0], 1, kMaxSide), number("--expert", sides[1], 1, kMaxSide)};
}

struct Arguments {
  ProbeSessionOptions session;
  std::vector<std::string> probes;
};

// Takes our own options out of argv, leaving Google Benchmark's.
Arguments parse(int& argc, char** argv) {
  Arguments arguments;
  ProbeSessionOptions& session = arguments.session;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.starts_with("--benchmark_")) {
      argv[kept++] = argv[i];
      continue;
    }
    if (i + 1 == argc) refuse(name, "", "a value");
    const std::string value = argv[++i];
    if (name == "--model") {
      session.weights.model_path = value;
    } else if (name == "--weights") {
      const std::vector<std::string> parts = split(value, ':');
      session.weights.synthetic = parts[0] == "synthetic";
      if (!session.weights.synthetic && value != "checkpoint") refuse(name, value, "checkpoint or synthetic[:SEED]");
      if (parts.size() == 2)
        session.weights.synthetic_seed = static_cast<uint64_t>(number(name, parts[1], 0, INT64_MAX));
    } else if (name == "--routing") {
      session.weights.routing_preset = value;
    } else if (name == "--expert") {
      session.expert_shapes.push_back(shape_of(value));
    } else if (name == "--probe") {
      arguments.probes = split(value, ',');
    } else if (name == "--threads") {
      for (const auto& part : split(value, ',')) {
        session.threads.push_back(static_cast<int>(number(name, part, 1, kMaxThreads)));
      }
    } else if (name == "--context") {
      for (const auto& part : split(value, ',')) session.contexts.push_back(number(name, part, 1, INT64_MAX / 2));
    } else if (name == "--batch") {
      for (const auto& part : split(value, ',')) {
        session.batches.push_back(static_cast<int>(number(name, part, 1, kMaxBatch)));
      }
    } else if (name == "--budget") {
      session.budget_seconds = static_cast<double>(number(name, value, 1, 86400));
    } else {
      refuse(name, value, "the options of --help, and --benchmark_*");
    }
  }
  argc = kept;
  return arguments;
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

void run_probes(const Arguments& arguments) {
  ProbeSession session(arguments.session);
  ProbeContext& context = session.context();
  std::vector<std::string> unknown = arguments.probes;
  std::string known;
  for (const std::unique_ptr<Probe>& probe : make_probes()) {
    const std::string id(probe->id());
    known += (known.empty() ? "" : ", ") + id;
    const bool wanted = arguments.probes.empty() ||
                        std::find(arguments.probes.begin(), arguments.probes.end(), id) != arguments.probes.end();
    std::erase(unknown, id);
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
    for (const Samples& samples : all) {
      for (const std::string& remark : samples.remarks)
        std::cerr << id << "/" << samples.name << ": " << remark << '\n';
      register_series(id, samples);
    }
  }
  if (!unknown.empty()) refuse("--probe", unknown.front(), known);
}

}  // namespace
}  // namespace ft

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::cout << ft::kUsage;
    return 0;
  }
  try {
    const ft::Arguments arguments = ft::parse(argc, argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    ft::run_probes(arguments);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
  } catch (const ft::Error& error) {
    std::cerr << "ft-probe: " << error.what() << '\n';
    return error.kind() == ft::ErrorKind::kUsage ? 2 : 1;
  } catch (const std::exception& error) {
    std::cerr << "ft-probe: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
