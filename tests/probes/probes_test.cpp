// Checked against: the bundled model run by every probe (each verifies what it moved), the grids' and plans' own
// promises, and the trace that the engine records.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/statistics.h"
#include "probes/expert_set.h"
#include "probes/layer_sweep.h"
#include "probes/measure.h"
#include "probes/prompts.h"
#include "probes/session.h"

namespace ft {
namespace {

ProbeSessionOptions bundled(double budget_seconds) {
  ProbeSessionOptions options;
  options.weights.model_path = std::string(std::getenv("FT_TEST_DATA")) + "/tiny-moe";
  options.threads = {1};
  options.budget_seconds = budget_seconds;
  return options;
}

std::unique_ptr<Probe> probe_of(std::string_view id) {
  for (std::unique_ptr<Probe>& probe : make_probes()) {
    if (probe->id() == id) return std::move(probe);
  }
  return nullptr;
}

}  // namespace

TEST_CASE("probes have different ids, a sentence and a unit; those that need a GPU or a model say so") {
  std::set<std::string_view> ids;
  ProbeSessionOptions none;
  none.threads = {1};
  ProbeSession session(none);
  for (const std::unique_ptr<Probe>& probe : make_probes()) {
    CHECK(ids.insert(probe->id()).second);
    CHECK(probe->measures().size() > 20);
    CHECK(!probe->unit().empty());
    const Applies applies = probe->applies(session.context());
    CHECK(applies.yes == (probe->id() == "stream"));
    if (!applies.yes) CHECK(!applies.reason.empty());
  }
  CHECK(ids.size() == 12);
  for (const char* id : {"pcie_linear", "pcie_gather", "handshake", "allreduce", "bank"}) {
    CAPTURE(id);
    CHECK(probe_of(id)->applies(session.context()).reason.find("host device") != std::string::npos);
    CHECK_THROWS_AS(probe_of(id)->run(session.context()), Error);
    CHECK_THROWS_AS(probe_of(id)->verify(session.context()), Error);
  }
}

TEST_CASE("every probe runs on the bundled model, gives positive samples with coordinates, and verifies") {
  ProbeSessionOptions options = bundled(0.5);
  options.batches = {1, 2};
  options.contexts = {32};
  ProbeSession session(options);
  for (const std::unique_ptr<Probe>& probe : make_probes()) {
    CAPTURE(probe->id());
    if (!probe->applies(session.context()).yes) {
      const std::set<std::string_view> not_here{"pcie_linear", "pcie_gather", "handshake",
                                                "allreduce",   "bank",        "host_rows"};
      CHECK(not_here.contains(probe->id()));
      continue;
    }
    const std::vector<Samples> all = probe->run(session.context());
    CHECK(!all.empty());
    std::set<std::string> names;
    for (const Samples& samples : all) {
      CAPTURE(samples.name);
      CHECK(names.insert(samples.name).second);
      CHECK(samples.unit == probe->unit());
      CHECK(!samples.values.empty());
      for (const double value : samples.values) CHECK((value > 0 && std::isfinite(value)));
      CHECK(samples.at.contains("threads"));
      CHECK((samples.stop_reason == "time" || samples.stop_reason == "samples"));
      CHECK(sample_seconds(samples, samples.values[0]) > 0);
    }
    CHECK_NOTHROW(probe->verify(session.context()));
  }
}

TEST_CASE("an interrupt ends every probe, and what it has is marked") {
  ProbeSession session(bundled(0.5));
  int asked = 0;
  session.context().interrupted = [&] { return ++asked > 40; };
  for (const std::unique_ptr<Probe>& probe : make_probes()) {
    if (!probe->applies(session.context()).yes) continue;
    CAPTURE(probe->id());
    asked = 0;
    for (const Samples& samples : probe->run(session.context())) {
      CHECK(
          (samples.stop_reason == "interrupted" || samples.stop_reason == "samples" || samples.stop_reason == "time"));
    }
    CHECK(asked < 400);
  }
}

TEST_CASE("decode starts from the content that it is given and engages what is asked") {
  ProbeSession session(bundled(0.5));
  ProbeContext& context = session.context();
  context.contexts = {16};
  const auto all = probe_of("decode")->run(context);
  CHECK(all.size() == context.candidates.size());
  for (const Samples& samples : all) {
    const DecodeCandidate& candidate = context.candidates[static_cast<size_t>(samples.at.at("candidate"))];
    CHECK(samples.at.at("threads_worked") == candidate.config.threads);
    if (candidate.config.strategy == Strategy::kResident) CHECK(samples.at.at("hit_rate") == 1.0);
    if (candidate.config.strategy == Strategy::kOffload) CHECK(samples.at.at("fetched_share") == 1.0);
    if (candidate.config.strategy == Strategy::kCpu) {
      CHECK(samples.at.at("hit_rate") == 0.0);
      CHECK(samples.at.at("fetched_share") == 0.0);
    }
  }
}

TEST_CASE("decode tells candidates apart however little of the budget is left") {
  ProbeSession session(bundled(0.5));
  ProbeContext& context = session.context();
  context.contexts = {16};
  context.budget.seconds = 1e-9;
  const auto all = probe_of("decode")->run(context);
  CHECK(all.size() >= context.candidates.size());
  for (const Samples& samples : all) CHECK(samples.values.size() >= 3);
}

TEST_CASE("the sweep's grid holds every arm alone and nothing, no point twice, and nothing that cannot run") {
  for (const int top_k : {1, 2, 4, 8, 10}) {
    for (const int batch : {1, 4}) {
      for (const bool coarse : {false, true}) {
        const ExpertGeometry expert{256, 64, 32, top_k};
        const std::vector<SweepPoint> grid = sweep_grid(expert, batch, 100, coarse);
        std::set<SweepPoint> seen;
        for (const SweepPoint& point : grid) {
          CHECK(seen.insert(point).second);
          CHECK(point.experts() <= std::min(32, point.tokens * top_k));
          CHECK(point.promoted <= point.cpu);
          CHECK(picks_of(point, point.experts(), top_k) == point.tokens * std::min(point.experts(), top_k));
        }
        CHECK(grid[0].experts() == 0);
        for (const SweepPoint& point : {SweepPoint{1, 0, 0, 0, 0}, SweepPoint{1, 1, 0, 0, 0}, SweepPoint{1, 0, 1, 0, 0},
                                        SweepPoint{1, 0, 0, 1, 0}, SweepPoint{1, top_k, 0, 0, 0}}) {
          CHECK(seen.contains(point));
        }
      }
    }
  }
  for (const SweepPoint& point : sweep_grid({256, 64, 32, 4}, 1, 0, false)) CHECK(point.hits + point.fetched == 0);
}

TEST_CASE("plans take the trace's experts, slots in turn, and no slot twice in one layer") {
  ModelGeometry geometry;
  geometry.moe_layers = {0, 1, 2};
  geometry.expert = {256, 64, 16, 4};
  auto trace = std::make_shared<RoutingTrace>(generate_trace("uniform", 3, 16, 4, 20, 1));
  PlanMaker plans(geometry, trace, 9);
  LayerPlan plan;
  std::map<int64_t, int> slot_uses;
  for (int token = 1; token <= 18; ++token) {
    plans.next_token();
    for (int layer = 0; layer < 3; ++layer) {
      plans.make({1, 1, 1, 2, 1}, layer, plan);
      std::set<int> experts(plan.cpu.begin(), plan.cpu.end());
      experts.insert(plan.hits[0].expert);
      experts.insert(plan.fetches[0].expert);
      const auto ids = trace->at(token, layer);
      CHECK(experts == std::set<int>(ids.begin(), ids.end()));
      CHECK(std::set<int64_t>{plan.hits[0].slot, plan.fetches[0].slot, plan.promotions[0].slot}.size() == 3);
      for (const auto* list : {&plan.hits, &plan.fetches, &plan.promotions}) ++slot_uses[(*list)[0].slot];
      CHECK(plan.promotions[0].expert == plan.cpu[0]);
    }
  }
  CHECK(slot_uses.size() == 9);
  PlanMaker without(geometry, nullptr, 0);
  without.make({1, 0, 0, 4, 0}, 0, plan);
  CHECK(std::set<int>(plan.cpu.begin(), plan.cpu.end()).size() == 4);
}

TEST_CASE("prompts cover at least four domains; without a tokenizer ids are seeded and in range") {
  std::set<std::string_view> domains;
  for (const Prompt& prompt : prompts()) {
    domains.insert(prompt.domain);
    CHECK(prompt.text.size() > 200);
  }
  CHECK(domains.size() >= 4);
  const auto ids = prompt_ids(nullptr, 50, 3);
  CHECK(ids == prompt_ids(nullptr, 50, 3));
  CHECK(ids != prompt_ids(nullptr, 50, 4));
  for (const int32_t id : joined(ids)) CHECK((id >= 0 && id < 50));
}

TEST_CASE("the recorded trace is of the model, within its bound, from several texts, and not uniform") {
  ProbeSession session(bundled(5));
  const RoutingTrace& trace = *session.context().trace;
  const ModelGeometry& geometry = session.context().model.weights->geometry;
  check_routing_trace(trace, "recorded trace");
  CHECK(trace.layers == static_cast<int>(geometry.moe_layers.size()));
  CHECK(trace.experts == geometry.expert.experts);
  CHECK(trace.tokens > 8);
  CHECK(trace.tokens <= 512);
  const double chance = static_cast<double>(geometry.expert.top_k) / geometry.expert.experts;
  CHECK(trace_statistics(trace).next_token_overlap > 1.2 * chance);
  ProbeContext& context = session.context();
  const std::unique_ptr<Engine> engine = make_probe_engine(context, 1);
  CHECK_THROWS_AS(record_trace(*engine, {{1, 2, 3, 4, 5}}, {.max_tokens = 0, .seconds = 0, .interrupted = {}}), Error);
  const RecordedTrace four = record_trace(*engine, {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 10, 11, 12, 13, 14, 15}},
                                          {.max_tokens = 4, .seconds = 0, .interrupted = {}});
  CHECK(four.trace.tokens == 4);
  CHECK(four.text_at == std::vector<int64_t>{4, 5, 12, 13});  // behind the tokens that lead in
  // No time at all, and still as many as a replay needs.
  const RecordedTrace least = record_trace(*engine, {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 10, 11, 12, 13, 14, 15}},
                                           {.max_tokens = 8, .seconds = 1e-9, .min_tokens = 5, .interrupted = {}});
  CHECK(least.trace.tokens == 6);
  REQUIRE(context.text_of_trace.size() == static_cast<size_t>(trace.tokens));
  for (const int64_t at : context.text_of_trace) CHECK(at < static_cast<int64_t>(context.text_ids.size()));
}

TEST_CASE("an expert set is cold, or says why it is not") {
  ProbeSessionOptions options;
  options.threads = {1};
  options.expert_shapes = {{FormatId::kNvfp4, 512, 256}};
  ProbeSession session(options);
  ProbeContext& context = session.context();
  HostTopology small = *context.topology;
  small.last_level_cache_bytes = 1 << 20;
  context.topology = &small;
  const ExpertSet cold = std::move(make_expert_sets(context)[0]);
  CHECK(cold.payload_bytes() >= kColdFactor * small.last_level_cache_bytes);
  CHECK(!cold.warm);
  CHECK(!cold.reduced);
  context.budget.seconds = 1e-6;
  const ExpertSet tight = std::move(make_expert_sets(context)[0]);
  CHECK(tight.blobs.size() == 2);
  CHECK(tight.reduced);
  CHECK(!tight.remarks.empty());
}

TEST_CASE(
    "host_rows: tables of a checkpoint are read and verified; without tables, or with made rows, it says why not") {
  ProbeSessionOptions options = bundled(3);
  ProbeSession without(options);
  CHECK(probe_of("host_rows")->applies(without.context()).reason.find("no tables") != std::string::npos);
  options.weights.model_path = std::string(std::getenv("FT_TEST_DATA")) + "/golden/qwen4_exp.published";
  ProbeSession session(options);
  ProbeContext& context = session.context();
  context.batches = {1, 4};
  context.budget.seconds = 0.2;
  const std::unique_ptr<Probe> probe = probe_of("host_rows");
  REQUIRE(probe->applies(context).yes);
  const std::vector<Samples> samples = probe->run(context);
  REQUIRE(samples.size() >= 4);
  for (const Samples& one : samples) {
    if (one.name.starts_with(kYardstickPrefix)) continue;
    CHECK(one.at.at("bytes") == 2 * 4 * 8 * one.at.at("tokens"));  // two tables, four rows of eight bytes
    CHECK(median(one.values) > 0);
  }
  probe->verify(context);
  options.weights.synthetic = true;
  ProbeSession made(options);
  CHECK(probe_of("host_rows")->applies(made.context()).reason.find("synthetic") != std::string::npos);
}

}  // namespace ft
