// bench_regret: one cell of the regret table. Takes ft-tune's options for one context and one batch, tunes as ft-tune
// does, then measures the candidates worth considering at length, interleaved, with the model still loaded, and appends
// one JSON line (tests/bench/regret.schema.json). Exit codes are ft-tune's.
//
// bench_regret cells FILE: several cells in one process; while weights and device are the same they are loaded once. A
// cell that fails does not end the others.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/experts/routing_trace.h"
#include "engine/program/log.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/decode_run.h"
#include "profiles/build_info.h"
#include "schemas/command_line.h"
#include "tests/bench/regret.h"
#include "tuner/report.h"
#include "tuner/session.h"

namespace ft::bench {
namespace {

constexpr int kMinRounds = 8;  // four odd and four even ones
// From here on rounds end when the two fastest are told apart (the decode probe looks every eight rounds).
constexpr int kEnoughRounds = 16;
// Of a cell beside tuning and scoring, once its weights are there: engines are made, results written.
constexpr double kCellSlackSeconds = 4;

constexpr OptionSpec kOwnOptions[] = {
    {.name = "--cell",
     .kind = OptionKind::kText,
     .value_name = "NAME",
     .required = true,
     .help = "What the line is called."},
    {.name = "--results",
     .kind = OptionKind::kText,
     .value_name = "FILE",
     .required = true,
     .help = "Where to append the cell's line."},
    {.name = "--score-seconds",
     .kind = OptionKind::kNumber,
     .value_name = "SECONDS",
     .default_text = "12",
     .low = 1,
     .high = kMaxBudgetSeconds,
     .help = "Time for measuring all candidates after the tuning."},
};

// Groups that fit in memory together, the choice first in each: the rounds of all are paired with rounds of the choice.
class Scorer {
 public:
  Scorer(const TunedSession& session, const Pool& pool, std::vector<size_t> chosen, double seconds)
      : session_(session), pool_(pool), chosen_(std::move(chosen)), seconds_(seconds) {}

  std::vector<MeasuredCandidate> run() {
    measured_.push_back({chosen_[0], {}, {}});
    for (size_t next = 1; next < chosen_.size() || measured_[0].tok_s.empty();) {
      const size_t end = set_group(next);
      const double share = static_cast<double>(end - next + 1) / static_cast<double>(chosen_.size() + 1);
      run_group(next, end, seconds_ * share);
      next = end;
    }
    return std::move(measured_);
  }

 private:
  DecodeCandidate candidate(size_t index) const {
    const CandidatePrediction& prediction = pool_[index];
    return decode_candidate(fmt::format("{}.slots={}.threads={}.{}", strategy_name(prediction.config.strategy),
                                        prediction.config.slots, prediction.config.threads, prediction.split),
                            prediction, search_input(session_.input, session_.analysis.models));
  }

  // The choice and as many as fit beside it, from `begin`; the candidates of the session are that group then.
  size_t set_group(size_t begin) {
    auto& group = session_.context.candidates;
    group = {candidate(chosen_[0])};
    for (size_t i = begin; i < chosen_.size(); ++i) group.push_back(candidate(chosen_[i]));
    const size_t fit = decode_group_end(session_.context, 0);
    const size_t taken = std::max<size_t>(fit, 2);  // two that do not fit run one after the other
    group.resize(std::min(group.size(), taken));
    return begin + group.size() - 1;
  }

  void run_group(size_t begin, size_t end, double seconds) {
    const auto probe = make_decode_probe();
    session_.context.budget = {.seconds = seconds, .min_samples = kMinRounds, .max_samples = kEnoughRounds};
    session_.context.yardstick = false;  // of interest between builds: here everything is of one run
    const std::vector<Samples> series = probe->run(session_.context);
    if (interrupted()) throw Error(ErrorKind::kInterrupted, {.what = "interrupted; the cell has no line"});
    probe->verify(session_.context);
    FT_CHECK(series.size() == end - begin + 1);
    size_t rounds = series[0].values.size();
    for (const Samples& one : series) rounds = std::min(rounds, one.values.size());
    if (rounds < 4) {
      throw Error(ErrorKind::kFailed, {.what = "too few rounds to score",
                                       .value = std::to_string(rounds),
                                       .allowed = "at least 4",
                                       .action = "give a larger --score-seconds"});
    }
    const auto first = [rounds](std::vector<double> values) {
      values.resize(rounds);
      return values;
    };
    const double layers = static_cast<double>(session_.input.geometry.moe_layers.size());
    const auto describe = [layers](const Samples& samples, MeasuredCandidate& one) {
      const auto at = [&](const char* key) { return samples.at.contains(key) ? samples.at.at(key) : 0; };
      const double steps = std::max(1.0, at("steps")) * layers;
      one.hit_rate = at("hit_rate");
      one.fetched_per_layer = at("expert_fetched") / steps;
      one.cpu_per_layer = at("expert_cpu") / steps;
      one.promoted_per_layer = at("expert_promoted") / steps;
    };
    const std::vector<double> choice = first(series[0].values);
    MeasuredCandidate& mine = measured_[0];
    mine.tok_s.insert(mine.tok_s.end(), choice.begin(), choice.end());
    mine.choice_tok_s = mine.tok_s;
    describe(series[0], mine);
    for (size_t i = begin; i < end; ++i) {
      const Samples& samples = series[i - begin + 1];
      measured_.push_back({chosen_[i], first(samples.values), choice});
      describe(samples, measured_.back());
    }
  }

  const TunedSession& session_;
  const Pool& pool_;
  std::vector<size_t> chosen_;
  double seconds_;
  std::vector<MeasuredCandidate> measured_;
};

void append_line(const std::string& path, const std::string& line) {
  std::ofstream file(path, std::ios::app);
  file << line << "\n";
  file.close();
  if (!file) throw Error(ErrorKind::kFailed, {.what = "cannot append the cell's line", .path = path});
}

void check_appendable(const std::string& path) {
  if (std::ofstream(path, std::ios::app)) return;
  throw Error(ErrorKind::kUsage, {.what = "cannot be written", .value = path, .path = "--results"});
}

void print_cell(const OrderedJson& cell) {
  std::printf("\n%-9s %3s %7s %9s %9s  %s\n", "measured", "thr", "slots", "pred ms", "ms", "split");
  const auto& candidates = cell["candidates"];
  for (size_t i = 0; i < candidates.size(); ++i) {
    const OrderedJson& one = candidates[i];
    std::printf("%-9s %3d %7lld %9.3f %9.3f  %s%s%s\n", one["strategy"].get<std::string>().c_str(),
                one["threads"].get<int>(), one["slots"].get<long long>(), one["predicted_ms"].get<double>(),
                one["measured_ms"].get<double>(), one["split"].get<std::string>().c_str(), i == 0 ? "  < choice" : "",
                i == cell["best"].get<size_t>() ? "  < best" : "");
  }
  std::printf(
      "regret %.2f %% (time over the best %.3f, %.3f to %.3f); the bandwidth rule: %.1f against %.1f GB/s, %s%s; "
      "prediction off by %.1f %% (median), %.1f %% (worst); noise %.1f %%; %.0f s\n",
      100 * cell["regret"].get<double>(), cell["ratio"].get<double>(), cell["low"].get<double>(),
      cell["high"].get<double>(), cell["rule"]["cpu_gbps"].get<double>(), cell["rule"]["link_gbps"].get<double>(),
      cell["rule"]["picks"].get<std::string>().c_str(),
      cell["rule"].contains("regret")
          ? fmt::format(", loses {:.1f} %", 100 * cell["rule"]["regret"].get<double>()).c_str()
          : ", which is no candidate here",
      100 * cell["prediction_error_median"].get<double>(), 100 * cell["prediction_error_worst"].get<double>(),
      100 * cell["noise"].get<double>(), cell["seconds"].get<double>());
}

bool same_weights(const TuneRequest& a, const TuneRequest& b) {
  return a.device == b.device && a.weights.model_path == b.weights.model_path &&
         a.weights.synthetic == b.weights.synthetic && a.weights.synthetic_seed == b.weights.synthetic_seed &&
         a.weights.packed_cache == b.weights.packed_cache;
}

// Weights of the last cell that got as far as a profile, for the next one.
struct Kept {
  std::optional<TuneRequest> request;
  LoadedModel model;
};

void run_cell(const ParsedOptions& options, Kept& kept) {
  const double begin = now_seconds();
  const TuneRequest request = parse_tune_request(options);
  for (const auto& [name, list] : {std::pair("--context", &request.contexts), std::pair("--batch", &request.batches)}) {
    if (list->size() == 1) continue;
    throw Error(ErrorKind::kUsage, {.what = "a cell is one point",
                                    .value = std::to_string(list->size()) + " values",
                                    .allowed = "one",
                                    .path = name});
  }
  const std::string results = options.text("--results");
  check_appendable(results);
  if (kept.request && !same_weights(*kept.request, request)) kept = {};  // before others take their place
  const auto score = [&](const TunedSession& session) {
    kept = {request, session.context.model};
    const double tuned = now_seconds();
    std::fputs(decision_table(session.profile).c_str(), stdout);
    const BandwidthRule rule = bandwidth_rule(session.input, session.analysis);
    const Pool pool = candidate_pool(session.input, session.analysis);
    const std::vector<size_t> chosen = candidates_to_measure(pool, chosen_index(pool, session.profile), rule.pick);
    const double seconds = options.number("--score-seconds");
    const std::vector<MeasuredCandidate> measured = Scorer(session, pool, chosen, seconds).run();
    const double end = now_seconds();
    const OrderedJson cell =
        cell_json(options.text("--cell"), session.profile, pool, measured, rule,
                  {end - begin, tuned - begin, end - tuned}, session.input.formats.expert_bytes_max);
    print_cell(cell);
    append_line(results, cell.dump());
  };
  tune(request, score, kept.model);
}

int run(const ParsedOptions& options) {
  install_interrupt_handler();
  start_log(options.text("--log-level"));
  Kept kept;
  run_cell(options, kept);
  return kExitDone;
}

std::vector<OptionSpec> all_options() {
  std::vector<OptionSpec> options(std::begin(kOwnOptions), std::end(kOwnOptions));
  options.insert(options.end(), kTuneProgram.options.begin(), kTuneProgram.options.end());
  return options;
}
const std::vector<OptionSpec>& cell_options() {
  static const std::vector<OptionSpec> options = all_options();
  return options;
}
const ProgramSpec& cell_program() {
  static const HelpLine lines[] = {{"--routing", "Presets: " + routing_preset_names() + "."}};
  static const ProgramSpec program = {
      .name = "bench_regret",
      .summary = "Tunes one cell, then measures how much the choice loses against the best of many candidates.",
      .examples =
          "  bench_regret --cell tiny --results cells.jsonl --model tests/data/tiny-moe --device host --budget 10 "
          "--context 128 --batch 1\n"
          "  bench_regret cells group.json --seconds 400\n",
      .options = cell_options(),
      .more_help = lines,
  };
  return program;
}

constexpr OptionSpec kCellsOptions[] = {
    {.name = "--seconds",
     .kind = OptionKind::kNumber,
     .value_name = "SECONDS",
     .low = 1,
     .high = kMaxBudgetSeconds,
     .help = "Starts no cell whose tuning and scoring may end later than this."},
    {.name = "--log-level",
     .kind = OptionKind::kChoice,
     .value_name = "LEVEL",
     .default_text = "warning",
     .choices = "debug|info|warning|error",
     .help = "Least severe messages on stderr."},
};
constexpr ProgramSpec kCellsProgram = {
    .name = "bench_regret cells",
    .summary =
        "Runs the cells that FILE lists: a JSON list of lists, the options of a cell each. Cells whose weights "
        "are those of the cell before do not load them again.",
    .examples = "  bench_regret cells group.json --seconds 400\n",
    .options = kCellsOptions,
    .positional = {.value_name = "FILE", .low = 1, .high = 1, .help = "The cells."},
};

std::vector<std::vector<std::string>> read_cells(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::kUsage, {.what = "cannot be read", .path = path});
  try {
    return nlohmann::json::parse(file).get<std::vector<std::vector<std::string>>>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kUsage,
                {.what = std::string("no JSON list of lists of options: ") + error.what(), .path = path});
  }
}

ParsedOptions parse_cell(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"bench_regret"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  const ParseResult parsed =
      parse_command_line(cell_program(), build_text(), static_cast<int>(argv.size()), argv.data());
  if (!parsed.options) throw Error(ErrorKind::kUsage, {.what = "a cell is no request for help"});
  return *parsed.options;
}

int run_cells(const ParsedOptions& options) {
  const double begin = now_seconds();
  install_interrupt_handler();
  start_log(options.text("--log-level"));
  std::vector<ParsedOptions> cells;  // all of them are parsed before the first one runs
  for (const auto& words : read_cells(options.positionals.at(0))) cells.push_back(parse_cell(words));
  Kept kept;
  int code = kExitDone;
  for (const ParsedOptions& cell : cells) {
    const double longest = cell.number("--budget") + cell.number("--score-seconds") + kCellSlackSeconds;
    const std::string name = cell.text("--cell");
    if (options.has("--seconds") && now_seconds() - begin + longest > options.number("--seconds")) {
      std::printf("no time left for %s\n", name.c_str());
      continue;
    }
    std::printf("cell %s\n", name.c_str());
    std::fflush(stdout);
    try {
      run_cell(cell, kept);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kInterrupted) throw;
      std::fprintf(stderr, "bench_regret: error: %s: %s\n", name.c_str(), error.what());
      code = kExitFailed;
    }
  }
  return code;
}

}  // namespace
}  // namespace ft::bench

int main(int argc, char** argv) {
  const ft::Command cells[] = {{&ft::bench::kCellsProgram, ft::bench::run_cells}};
  return ft::run_program(ft::bench::cell_program(), ft::build_text(), argc, argv, ft::bench::run, cells);
}
