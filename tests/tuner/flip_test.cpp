// Checked against: closed forms of the cost model with one point, and a brute-force scan of the factors with several.
#include "tuner/flip.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

namespace ft {
namespace {

constexpr double kUs = 1e-6;

ReplayResult replay_of(int tokens, int hits, int fetched, int cpu, int layers = 48) {
  ReplayResult replay;
  replay.steps = 1;
  replay.layers = layers;
  replay.distribution = {{full_counts(1, hits, fetched, cpu, 0), layers}};
  replay.distribution[0].counts.tokens = tokens;
  return replay;
}

CandidateModel model_of_counts(Device device, const std::vector<ReplayResult>& replays) {
  CandidateModel model;
  model.device = device;
  model.cost[CostTerm::kBase] = 4 * kUs;
  model.cost[CostTerm::kSlotFixed] = 3 * kUs;
  model.cost[CostTerm::kSlotPerExpert] = 2 * kUs;
  model.cost[CostTerm::kCpuFixed] = 12 * kUs;
  model.cost[CostTerm::kCpuPerExpert] = 32 * kUs;
  model.cost[CostTerm::kLinkFixed] = 7 * kUs;
  model.cost[CostTerm::kLinkPerExpert] = 50 * kUs;
  model.dense.fixed = 3000 * kUs;
  model.replays = replays;
  return model;
}

std::map<std::string, std::optional<double>> factors(const Flip& flip) {
  std::map<std::string, std::optional<double>> found;
  for (const FlipTerm& term : flip.terms) found[std::string(term.knob->name)] = term.factor;
  return found;
}

}  // namespace

TEST_CASE("two arms on a GPU: the crossing of every term in closed form") {
  // cpu: max(12 + 32 * 4, 3 + 2 * 4) = 140 us; offload: 7 + 50 * 4 + 3 + 2 * 8 = 226 us a layer.
  const FlipSide cpu{model_of_counts(Device::kCuda, {replay_of(1, 4, 0, 4)}), {}};
  const FlipSide offload{model_of_counts(Device::kCuda, {replay_of(1, 4, 4, 0)}), {}};
  const Flip flip = find_flip(cpu, offload, {128}, 1);
  const double step_cpu = 3000 + 48 * (4 + 140.0), step_offload = 3000 + 48 * (4 + 226.0);
  CHECK(flip.lead == doctest::Approx(step_offload / step_cpu));
  CHECK(flip.predicted_lead == doctest::Approx(flip.lead));
  const auto found = factors(flip);
  CHECK(found.at("s_c").value() == doctest::Approx((226.0 - 12) / 4 / 32));  // 1.67x slower
  CHECK(found.at("s_f").value() == doctest::Approx((140.0 - 26) / 4 / 50));  // 0.57: 1.75x faster
  CHECK(found.at("a_c").value() == doctest::Approx((226.0 - 128) / 12));     // 8.2x
  CHECK(!found.at("a_f").has_value());                                       // free copies would still take 219 us
  CHECK(!found.at("a_layer").has_value());
  CHECK(!found.at("dense_fixed").has_value());
  CHECK(found.count("k_c") == 0);  // 0 stays 0
  // s_f: |log 0.57| = 0.562, s_c: |log 1.67| = 0.514, a_c: 2.1; then those that never do.
  CHECK(flip.terms[0].knob->name == "s_c");
  CHECK(flip.terms[1].knob->name == "s_f");
  CHECK(flip.terms[2].knob->name == "a_c");
  CHECK(!flip.terms[3].factor.has_value());
}

TEST_CASE("a lead that is needed beyond parity moves the crossing") {
  const FlipSide cpu{model_of_counts(Device::kCuda, {replay_of(1, 4, 0, 4)}), {}};
  const FlipSide offload{model_of_counts(Device::kCuda, {replay_of(1, 4, 4, 0)}), {}};
  const double step_offload = 3000 + 48 * 230.0;
  for (const double needed : {0.9, 0.995, 1.0, 1.1}) {
    // The step of cpu must be step_offload / needed.
    const double layer = (step_offload / needed - 3000) / 48;
    CHECK(factors(find_flip(cpu, offload, {128}, needed)).at("s_c").value() ==
          doctest::Approx((layer - 4 - 12) / 4 / 32));
  }
}

TEST_CASE("what the model does not explain stays as it is") {
  FlipSide cpu{model_of_counts(Device::kCuda, {replay_of(1, 4, 0, 4)}), {1000 * kUs}};
  FlipSide offload{model_of_counts(Device::kCuda, {replay_of(1, 4, 4, 0)}), {-2000 * kUs}};
  const Flip flip = find_flip(cpu, offload, {128}, 1);
  const double step_cpu = 4000 + 48 * 144.0, step_offload = 1000 + 48 * 230.0;
  CHECK(flip.lead == doctest::Approx(step_offload / step_cpu));
  CHECK(flip.predicted_lead == doctest::Approx((3000 + 48 * 230.0) / (3000 + 48 * 144.0)));
  CHECK(factors(flip).at("s_c").value() == doctest::Approx(((step_offload - 4000) / 48 - 4 - 12) / 4 / 32));
}

TEST_CASE("the host device: one group of work, copies beside it") {
  // resident: 3 + 2 * 8 = 19; cpu: max(3, 12) + 2 * 4 + 32 * 4 = 148.
  const FlipSide resident{model_of_counts(Device::kHost, {replay_of(1, 8, 0, 0)}), {}};
  const FlipSide cpu{model_of_counts(Device::kHost, {replay_of(1, 4, 0, 4)}), {}};
  const auto found = factors(find_flip(resident, cpu, {128}, 1));
  CHECK(!found.at("s_c").has_value());  // at 1/64 the fixed cost and the hits still take more
  // Exactly: 3 + 16 x = 12 + 8 x + 128.
  CHECK(found.at("s_g").value() == doctest::Approx(137.0 / 8));
}

TEST_CASE("several points: as a scan of the factors finds it") {
  const FlipSide cpu{model_of_counts(Device::kCuda, {replay_of(1, 4, 0, 4), replay_of(8, 20, 0, 10)}), {}};
  const FlipSide offload{model_of_counts(Device::kCuda, {replay_of(1, 4, 4, 0), replay_of(8, 20, 10, 0)}), {}};
  const std::vector<int64_t> contexts = {128, 1024};
  const auto lead = [&](double factor) {
    double sum = 0;
    for (int side = 0; side < 2; ++side) {
      CandidateModel model = side == 0 ? cpu.model : offload.model;
      model.cost[CostTerm::kCpuPerExpert] *= factor;
      for (const double rate : predicted_rates(model, contexts)) sum += (side == 0 ? 1 : -1) * std::log(rate);
    }
    return std::exp(sum / 4);
  };
  double scanned = 1;
  while (lead(scanned) > 1) scanned += 1e-4;
  CHECK(factors(find_flip(cpu, offload, contexts, 1)).at("s_c").value() == doctest::Approx(scanned).epsilon(1e-3));
}

TEST_CASE("the nearest of two crossings, at the ends of the range and beyond them") {
  const auto find = [](auto lead) { return nearest_flip(lead, 1); };
  // Crosses at 1/2 and at 3: the lower one is nearer.
  CHECK(find([](double f) { return f <= 0.5 || f >= 3 ? 0.5 : 2; }).value() == doctest::Approx(0.5));
  CHECK(find([](double f) { return f <= 0.2 || f >= 3 ? 0.5 : 2; }).value() == doctest::Approx(3));
  CHECK(find([](double f) { return f >= kFlipRange ? 1.0 : 2; }).value() == doctest::Approx(kFlipRange));
  CHECK(!find([](double f) { return f >= kFlipRange * 1.001 ? 1.0 : 2; }).has_value());
  CHECK(find([](double f) { return f <= 1 / kFlipRange ? 1.0 : 2; }).value() == doctest::Approx(1 / kFlipRange));
  CHECK(!find([](double) { return 2.0; }).has_value());
}

TEST_CASE("a runner-up that is ahead already has nothing to change") {
  const FlipSide cpu{model_of_counts(Device::kCuda, {replay_of(1, 4, 0, 4)}), {}};
  const FlipSide offload{model_of_counts(Device::kCuda, {replay_of(1, 4, 4, 0)}), {}};
  const Flip flip = find_flip(offload, cpu, {128}, 1);
  CHECK(flip.lead < 1);
  CHECK(flip.terms.empty());
}

}  // namespace ft
