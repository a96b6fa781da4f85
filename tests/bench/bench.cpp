#include "tests/bench/bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/model/checkpoint.h"
#include "engine/runtime/cuda/device_weights.h"
#include "engine/runtime/device.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "kernels/host/worker_pool.h"
#include "probes/engine_setup.h"
#include "probes/measure.h"
#include "probes/session.h"
#include "schemas/command_line.h"

namespace ft::bench {
namespace {

constexpr uint64_t kSeed = 1;
constexpr double kCurveSeconds = 3;
constexpr int kCurveSamples = 7;

}  // namespace

Bench::Bench(const BenchOptions& asked, Report& to, std::function<void(std::string_view)> progress)
    : options(asked),
      report(to),
      topology(detect_topology()),
      cpus(detect_cpu_budget(topology)),
      memory(detect_memory_budget()),
      gpu(start_device(asked.device)),
      progress_(std::move(progress)),
      start_(now_seconds()) {
  ProbeSessionOptions session;
  session.device = options.device;
  session.gpu = gpu;
  inputs = probe_memory_inputs(session, memory);
}

void Bench::progress(const std::string& text) const {
  if (progress_) progress_(std::to_string(static_cast<int>(now_seconds() - start_)) + " s: " + text);
}

double Bench::seconds_left() const { return options.budget_seconds - (now_seconds() - start_); }

bool Bench::has_time(double seconds, const std::string& part, const std::string& name) {
  if (interrupted()) throw Error(ErrorKind::kInterrupted, {.what = "interrupted"});
  if (seconds_left() >= seconds) return true;
  report.not_run(part, name, "--budget-seconds is used up");
  return false;
}

ProbeBudget Bench::sample_budget(double seconds) const {
  return {options.quick ? seconds / 3 : seconds, 3, options.quick ? 5 : 15};
}

std::shared_ptr<const RoutingTrace> TraceSet::tails(int batch) const {
  FT_CHECK(batch >= 1 && batch <= static_cast<int>(sequences.size()));
  auto result = std::make_shared<RoutingTrace>(sequences[0]);
  result->ids.clear();
  result->predicted.clear();
  result->tokens = 0;
  for (int s = 0; s < batch; ++s) {
    const RoutingTrace& trace = sequences[static_cast<size_t>(s)];
    const auto begin = trace.ids.begin() + replayed * trace.layers * trace.top_k;
    result->ids.insert(result->ids.end(), begin, trace.ids.end());
    const auto predicted = trace.predicted.begin() + replayed * trace.layers * trace.predictions;
    result->predicted.insert(result->predicted.end(), predicted, trace.predicted.end());
    result->tokens += trace.tokens - replayed;
  }
  return result;
}

TraceSet make_traces(const GeometryCase& geometry, const std::string& preset, int sequences, int64_t replayed,
                     int64_t decoded) {
  TraceSet set;
  set.replayed = replayed;
  set.sequences.resize(static_cast<size_t>(sequences));
  std::vector<std::exception_ptr> failures(set.sequences.size());
  std::vector<std::thread> threads;
  for (int s = 0; s < sequences; ++s) {
    threads.emplace_back([&, s] {
      try {
        set.sequences[static_cast<size_t>(s)] =
            generate_trace(preset, geometry.layers, geometry.experts, geometry.top_k, replayed + decoded, kSeed,
                           static_cast<uint64_t>(s));
      } catch (...) {
        failures[static_cast<size_t>(s)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return set;
}

WeightSource made_weights(const GeometryCase& geometry, const std::string& folder) {
  WeightSource source;
  source.model_path = write_config(geometry, folder);
  source.synthetic = true;
  source.synthetic_seed = kSeed;
  return source;
}

int64_t Bench::largest_banks() const {
  int64_t largest = 0;
  for (const GeometryCase* geometry : options.geometries) {
    const WeightSource source = made_weights(*geometry, options.folder);
    const int64_t bytes =
        inspect_formats(*make_family(load_model_config(source.model_path)), source).expert_bytes_total;
    if (bytes <= std::min(kMaxBankBytes, inputs.host_memory_bytes)) largest = std::max(largest, bytes);
  }
  return largest;
}

const Bench::Arena& Bench::arena() {
  if (arena_.memory != nullptr) return arena_;
  const int64_t bytes = largest_banks();
  progress("touching " + std::to_string(bytes / 1'000'000'000) + " GB for the banks");
  double begin = now_seconds();
  WorkerPool pool({.threads = threads(), .cpus = cpus.pinning});
  arena_.memory = std::make_shared<HostBuffer>(bytes, &pool);
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  report.info("arena", "touched", now_seconds() - begin, "s", std::to_string(static_cast<int>(gigabytes)) + " GB");
  if (options.device != Device::kCuda) return arena_;
  begin = now_seconds();
  arena_.registered = lock_memory(*arena_.memory);
  report.info("arena", "locked for the device", now_seconds() - begin, "s");
  return arena_;
}

ModelCase::ModelCase(Bench& with, const GeometryCase& of, bool own_memory) : bench(with), geometry(of) {
  const WeightSource source = made_weights(geometry, bench.options.folder);
  std::unique_ptr<Family> family = make_family(load_model_config(source.model_path));
  const int64_t bytes = inspect_formats(*family, source).expert_bytes_total;
  const int64_t most = std::min(kMaxBankBytes, bench.inputs.host_memory_bytes);
  if (bytes > most) {
    throw Error(ErrorKind::kFailed, {.what = "the expert banks do not fit",
                                     .value = std::to_string(bytes) + " bytes",
                                     .allowed = std::to_string(most) + " bytes"});
  }
  const Bench::Arena arena = own_memory ? Bench::Arena{} : bench.arena();
  WorkerPool pool({.threads = bench.threads(), .cpus = bench.cpus.pinning});
  const double begin = now_seconds();
  model.weights = load_weights(*family, source, pool, {.bank_memory = arena.memory});
  if (bench.options.device == Device::kCuda) model.on_device = upload_weights(*model.weights, {}, arena.registered);
  load_seconds = now_seconds() - begin;
  model.family = std::move(family);
}

const TraceSet& ModelCase::traces(const std::string& preset) {
  for (const auto& [name, set] : traces_) {
    if (name == preset) return set;
  }
  // A step more than is asked for, so that nothing wraps round.
  const int64_t decoded = bench.options.warm_steps + bench.options.measured_steps + 1;
  const bool batches = bench.decodes_batches() && decodes_batches(geometry) && preset == "q38-mixed";
  const int sequences = batches ? kLargestBatch : 1;
  traces_.emplace_back(preset, make_traces(geometry, preset, sequences, kReplayedTokens, decoded));
  return traces_.back().second;
}

EngineConfig ModelCase::config(Strategy strategy, int64_t slots, int max_batch) const {
  EngineConfig config;
  config.weights.synthetic = true;  // the traces that are forced may predict
  config.device = bench.options.device;
  config.strategy = strategy;
  config.threads = bench.threads();
  config.pinning = bench.cpus.pinning;
  config.slots = slots;
  config.max_batch = max_batch;
  config.max_context = 2 * kShortContext + bench.options.warm_steps + bench.options.measured_steps;
  config.prefill_chunk = 1;
  if (strategy == Strategy::kResident) return config;
  const int distinct = std::min(geometry.experts, geometry.top_k * max_batch);
  for (int m = 0; m <= distinct; ++m) config.fetch_of_misses.push_back(strategy == Strategy::kCpu ? 0 : m);
  return config;
}

std::unique_ptr<Engine> ModelCase::engine(const EngineConfig& config) const {
  return std::make_unique<Engine>(model, config, bench.inputs);
}

double ModelCase::resident_bytes(double experts, int batch, int64_t context) const {
  const ModelFormats& formats = model.weights->formats;
  return static_cast<double>(formats.dense_bytes_per_token) + experts * payload_bytes() * moe_layers() +
         static_cast<double>(model.weights->geometry.kv_bytes_per_token() * context * batch);
}

namespace {

// Seconds of n experts in one arm: all MoE layers in sequence with them, less the same with nothing to do. Beyond one
// token's experts with so many tokens that each expert has one row, as the misses of a batch mostly have.
class LayerCurve {
 public:
  LayerCurve(ModelCase& one, bool fetched) : one_(one), fetched_(fetched) {
    const bool batches = one.bench.decodes_batches() && decodes_batches(one.geometry);
    const int top_k = one.geometry.top_k, largest = batches ? kLargestBatch : 1;
    const int most = std::min(one.geometry.experts, top_k * largest);
    const int64_t slots = std::min<int64_t>(one.model.weights->geometry.total_experts(), 4 * most);
    engine_ = one.engine(one.config(Strategy::kHybrid, slots, largest));
    // No trace: experts in turn, so that none is met again while a cache still holds it.
    plans_.emplace(engine_->geometry(), nullptr, slots);
    for (int n = 1; n <= top_k; ++n) add(n, 1);
    for (int tokens = 2; tokens * top_k <= most; tokens *= 2) add(tokens * top_k, tokens);
  }

  Curve measured() {
    MeasureOptions options;
    options.budget = one_.bench.sample_budget(kCurveSeconds);
    options.budget.min_samples = std::min(kCurveSamples, options.budget.max_samples);
    options.shuffle_seed = kSeed;
    measure(series_, options);
    std::vector<double> counts, seconds;
    for (size_t i = 0; i < series_.size(); ++i) {
      const int n = points_[i].experts();
      if (n == 0) continue;
      const auto empty = std::find(points_.begin(), points_.end(), SweepPoint{points_[i].tokens, 0, 0, 0, 0});
      const double nothing = median(series_[static_cast<size_t>(empty - points_.begin())].samples.values);
      counts.push_back(n);
      seconds.push_back(std::max(kLeastSeconds, (median(series_[i].samples.values) - nothing) * 1e-6));
    }
    one_.bench.report.samples("curves." + std::string(one_.geometry.name), samples_of(series_));
    return {counts, seconds};
  }

 private:
  static constexpr double kLeastSeconds = 1e-9;  // a difference of noise may not be positive

  void add(int n, int tokens) {
    if (n == 1 || tokens > 1) add_point({tokens, 0, 0, 0, 0}, "empty");
    const SweepPoint point{tokens, 0, fetched_ ? n : 0, fetched_ ? 0 : n, 0};
    add_point(point, std::string(fetched_ ? "fetch.n=" : "cpu.n=") + std::to_string(n));
  }

  void add_point(const SweepPoint& point, const std::string& name) {
    points_.push_back(point);
    loops_.push_back(std::make_unique<LayerLoop>(*engine_, *plans_, point));
    Series line;
    line.samples.name = name + ".tokens=" + std::to_string(point.tokens);
    line.samples.unit = "us";
    line.samples.at = {{"n", point.experts()}, {"tokens", point.tokens}, {"threads", one_.bench.threads()}};
    line.sample = [loop = loops_.back().get()] { return loop->microseconds_per_layer(); };
    series_.push_back(std::move(line));
  }

  ModelCase& one_;
  bool fetched_ = false;
  std::unique_ptr<Engine> engine_;
  std::optional<PlanMaker> plans_;
  std::vector<SweepPoint> points_;
  std::vector<std::unique_ptr<LayerLoop>> loops_;
  std::vector<Series> series_;
};

}  // namespace

const Curves& ModelCase::curves() {
  if (curves_) return *curves_;
  bench.progress("curves of " + std::string(geometry.name));
  Curves curves;
  curves.fetch =
      bench.options.device == Device::kCuda ? fetch_curve_of_link(*this) : LayerCurve(*this, true).measured();
  curves.cpu = LayerCurve(*this, false).measured();
  const std::string name(geometry.name);
  const auto say = [&](const char* arm, const Curve& curve) {
    for (const int n : {1, 4, geometry.top_k}) {
      const double seconds = curve.at(n);
      bench.report.info("curves", name + " " + arm + " " + std::to_string(n) + " experts", seconds * 1e6, "us",
                        std::to_string(payload_bytes() * n / seconds / 1e9).substr(0, 5) + " GB/s");
    }
  };
  say("fetch", curves.fetch);
  say("cpu", curves.cpu);
  curves_ = std::move(curves);
  return *curves_;
}

}  // namespace ft::bench
