// Parts about the step without misses, and the promise of the same bits.
#include <algorithm>
#include <cmath>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/size_text.h"
#include "kernels/base/statistics.h"
#include "tests/bench/bench.h"

namespace ft::bench {

std::vector<int32_t> some_ids(int64_t count, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i * 31 + i * 7919 + 11) % vocab));
  return ids;
}

namespace {

constexpr int kSamples = 16;

}  // namespace

void run_dense(ModelCase& one) {
  constexpr double kGoal = 2.5, kAim = 1.35, kSlotsPercent = 25;
  Bench& bench = one.bench;
  const std::string name = std::string(one.geometry.name) + " T_res over bytes / device read";
  if (!bench.has_time(2, "dense", name)) return;
  bench.progress(name);
  const std::unique_ptr<Engine> engine =
      one.engine(one.config(Strategy::kOffload, slots_of(one.geometry, kSlotsPercent), 1));
  engine->set_routing(one.traces("q38-mixed").tails(1));
  const double seconds = resident_seconds(*engine, 1, kShortContext, 2 * kSamples);
  const double bytes = one.resident_bytes(one.geometry.top_k, 1, kShortContext);
  bench.report.info("dense", std::string(one.geometry.name) + " T_res", seconds * 1e6, "us", size_text(bytes));
  if (bench.ceilings.device_read <= 0)
    return bench.report.not_run("dense", name, "the device's read rate is not measured");
  const double ratio = seconds * bench.ceilings.device_read / bytes;
  bench.report.goal({"dense", name, ratio, "x", kGoal, true, {}, "aim: 1.35"});
  bench.report.info("dense", std::string(one.geometry.name) + " T_res over the aim of 1.35", ratio / kAim, "x");
}

void run_attention(ModelCase& one) {
  constexpr double kGoal = 1.5;
  constexpr int64_t kLong = 32768;
  Bench& bench = one.bench;
  const std::string name = std::string(one.geometry.name) + " attention at 32k over KV bytes / device read";
  if (!bench.has_time(3, "attention", name)) return;
  bench.progress(name);
  EngineConfig config = one.config(Strategy::kOffload, slots_of(one.geometry, 25), 1);
  const int64_t longest = std::min(kLong, one.model.weights->geometry.max_positions);
  config.max_context = longest;
  const std::unique_ptr<Engine> engine = one.engine(config);
  engine->set_routing(one.traces("q38-mixed").tails(1));
  // In turns: the difference of two steps must not be that of two clocks.
  std::vector<double> differences;
  for (int i = 0; i < 5; ++i) {
    const double near = resident_seconds(*engine, 1, kShortContext, 5);
    differences.push_back(resident_seconds(*engine, 1, longest, 5) - near);
  }
  const double bytes =
      static_cast<double>(one.model.weights->geometry.kv_bytes_per_token() * (longest - kShortContext));
  const double seconds = median(differences);
  bench.report.info("attention", std::string(one.geometry.name) + " attention at 32k", seconds * 1e6, "us",
                    size_text(bytes) + " of keys and values");
  if (bench.ceilings.device_read <= 0) {
    return bench.report.not_run("attention", name, "the device's read rate is not measured");
  }
  bench.report.goal({"attention", name, seconds * bench.ceilings.device_read / bytes, "x", kGoal, true, {}, {}});
}

namespace {

// Hash of sequence 0's logits over a few decode steps through the real router; further sequences have other tokens.
std::string hash_of(Engine& engine, int steps) {
  const int batch = engine.config().max_batch;
  const auto vocab = static_cast<size_t>(engine.geometry().vocab);
  const std::vector<int32_t> ids = some_ids(int64_t{batch} * steps, engine.geometry().vocab);
  std::vector<TokenRun> runs;
  std::vector<int> sequences;
  for (int s = 0; s < batch; ++s) sequences.push_back(engine.open_sequence());
  Hasher hasher;
  for (int step = 0; step < steps; ++step) {
    runs.clear();
    for (int s = 0; s < batch; ++s) {
      const auto at = static_cast<size_t>(s * steps + step);
      runs.push_back({sequences[static_cast<size_t>(s)], step, std::span(ids).subspan(at, 1), false, true});
    }
    hasher.add(std::as_bytes(engine.step(runs).first(vocab)));
  }
  for (const int sequence : sequences) engine.close_sequence(sequence);
  return hasher.hex();
}

struct Variant {
  std::string name;
  Strategy strategy{};
  double slots_percent = 0;
  int batch = 1;
  bool history = false;  // the cache begins with other experts, and a run before this one moved them
};

}  // namespace

void run_bits(ModelCase& one) {
  constexpr int kSteps = 12;
  const Variant variants[] = {{"offload 10%", Strategy::kOffload, 10},
                              {"offload 50%, used before", Strategy::kOffload, 50, 1, true},
                              {"hybrid 25%", Strategy::kHybrid, 25},
                              {"hybrid 10%, used before", Strategy::kHybrid, 10, 1, true},
                              {"cpu", Strategy::kCpu, 0},
                              {"resident", Strategy::kResident, 100},
                              {"hybrid 25% in a batch of 4", Strategy::kHybrid, 25, 4},
                              {"offload 50% in a batch of 8", Strategy::kOffload, 50, 8}};
  Bench& bench = one.bench;
  std::string expected, first;
  int same = 0, tried = 0;
  for (const Variant& variant : variants) {
    const std::string name = std::string(one.geometry.name) + " " + variant.name;
    if (!bench.has_time(2, "bits", name)) continue;
    bench.progress("bits: " + name);
    try {
      const int64_t slots = slots_of(one.geometry, variant.slots_percent);
      EngineConfig config = one.config(variant.strategy, slots, variant.batch);
      if (variant.strategy == Strategy::kHybrid) {
        for (size_t m = 0; m < config.fetch_of_misses.size(); ++m) config.fetch_of_misses[m] = static_cast<int>(m / 2);
        config.promote_bytes_per_layer = one.blob_bytes();
      }
      const std::unique_ptr<Engine> engine = one.engine(config);
      if (variant.history) {
        SlotTable table(one.moe_layers(), one.geometry.experts, slots);
        table.fill_in_order();
        engine->restore_cache(table.content());
        hash_of(*engine, kSteps / 2);
      }
      const std::string hash = hash_of(*engine, kSteps);
      if (expected.empty()) expected = hash, first = variant.name;
      ++tried;
      same += hash == expected ? 1 : 0;
      if (hash != expected) bench.report.fail("bits: " + name + " gives " + hash + ", " + first + " " + expected);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kInterrupted) throw;
      bench.report.not_run("bits", name, error.what());
    }
  }
  if (tried == 0) return;
  bench.report.goal({"bits",
                     std::string(one.geometry.name) + " variants with the same logits, of " + std::to_string(tried),
                     static_cast<double>(same),
                     "",
                     static_cast<double>(tried),
                     false,
                     {},
                     "hash " + expected});
}

}  // namespace ft::bench
