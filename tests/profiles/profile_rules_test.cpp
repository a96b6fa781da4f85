// Checked against: one broken rule at a time, each with the message written by hand.
#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/error.h"
#include "tests/profiles/sample_profile.h"

namespace {

// The message for the sample with one change; empty when it is accepted.
std::string refusal(const std::function<void(ft::Profile&)>& change) {
  ft::Profile profile = sample_profile();
  change(profile);
  try {
    ft::parse_profile(ft::Json::parse(ft::profile_to_json(profile).dump()), "p");
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

void use_strategy(ft::Profile& profile, const char* strategy) {
  profile.serve.strategy = profile.decision.strategy = profile.candidates[0].strategy = strategy;
  if (profile.serve.strategy != "cpu") profile.serve.fallback.reset();
}

}  // namespace

TEST_CASE("the sample obeys every rule") {
  CHECK(refusal([](ft::Profile&) {}) == "");
}

TEST_CASE("the batch that is served is the largest that was tuned") {
  const std::string allowed = "; allowed: 4, the largest of conditions.batches; to serve another one, tune for it";
  for (const int batch : {3, 5, 64}) {
    CHECK(refusal([batch](auto& p) { p.serve.max_batch = batch; }) ==
          "p refused, value refused: $.serve.max_batch is '" + std::to_string(batch) + "'" + allowed);
  }
}

TEST_CASE("a slowed link and who fetches over it are a GPU's") {
  CHECK(refusal([](auto& p) { p.serve.link_slowdown.reset(); }) == "");
  CHECK(refusal([](auto& p) { p.serve.device = "host"; }) ==
        "p refused, value refused: $.serve.link_slowdown is 'present'; allowed: no such key with device host");
  CHECK(refusal([](auto& p) { p.serve.device = "host", p.serve.link_slowdown.reset(); }) ==
        "p refused, value refused: $.serve.fetch_mechanism is 'present'; allowed: no such key with device host");
  CHECK(refusal([](auto& p) {
          p.serve.device = "host", p.serve.link_slowdown.reset(), p.serve.fetch_mechanism.reset();
        }) == "");
}

TEST_CASE("look-ahead is offload's and hybrid's, and says how far it goes") {
  const std::string start = "p refused, value refused: $.serve.";
  CHECK(refusal([](auto& p) { p.serve.max_prefetches_per_layer.reset(); }) ==
        start + "max_prefetches_per_layer is 'absent'; allowed: a number with look_ahead");
  CHECK(refusal([](auto& p) { p.serve.look_ahead.reset(); }) ==
        start + "max_prefetches_per_layer is 'present'; allowed: no such key without it");
  CHECK(refusal([](auto& p) { p.serve.look_ahead.reset(), p.serve.max_prefetches_per_layer.reset(); }) == "");
  CHECK(refusal([](auto& p) {
          use_strategy(p, "cpu");
          p.serve.fetch_of_misses = {0, 0, 0, 0, 0};
        }) == start + "look_ahead is 'router'; allowed: off with strategy cpu");
}

TEST_CASE("the split table fits its strategy") {
  const std::string start = "p refused, value refused: $.serve.";
  CHECK(refusal([](auto& p) {
          p.serve.fetch_of_misses = {0, 2};
        }) == start + "fetch_of_misses[1] is '2'; allowed: 0 to 1");
  CHECK(refusal([](auto& p) {
          p.serve.fetch_of_misses = {1, 1};
        }) == start + "fetch_of_misses[0] is '1'; allowed: 0 to 0");
  CHECK(refusal([](auto& p) { p.serve.fetch_of_misses = {}; }) ==
        start + "fetch_of_misses is 'absent'; allowed: an array, with strategy hybrid");
  CHECK(refusal([](auto& p) {
          use_strategy(p, "cpu");
          p.serve.fetch_of_misses = {0, 0, 1};
        }) == start + "fetch_of_misses[2] is '1'; allowed: 0 with strategy cpu");
  const auto offload = [](ft::Profile& p) {
    use_strategy(p, "offload");
    p.serve.fetch_of_misses = {0, 1, 2};
    p.serve.promote_bytes_per_layer = 0;
  };
  CHECK(refusal(offload) == "");
  CHECK(refusal([&](auto& p) {
          offload(p), p.serve.fetch_of_misses = {0, 1, 1};
        }) == start + "fetch_of_misses[2] is '1'; allowed: 2 with strategy offload");
  CHECK(refusal([&](auto& p) { offload(p), p.serve.promote_bytes_per_layer = 1; }) ==
        start + "promote_bytes_per_layer is '1'; allowed: 0 with strategy offload");
}

TEST_CASE("resident has every expert in a slot and no split") {
  const auto resident = [](ft::Profile& p) {
    use_strategy(p, "resident");
    p.serve.look_ahead.reset(), p.serve.max_prefetches_per_layer.reset();
    p.serve.fetch_of_misses = {};
    p.serve.promote_bytes_per_layer = 0;
  };
  CHECK(refusal(resident) == "");
  CHECK(refusal([&](auto& p) { resident(p), p.serve.slots = 0; }).find("$.serve.slots is '0'") != std::string::npos);
  CHECK(refusal([&](auto& p) {
          resident(p), p.serve.fetch_of_misses = {0, 0};
        }).find("no such key with strategy resident") != std::string::npos);
}

TEST_CASE("pinning names one CPU per thread") {
  CHECK(refusal([](auto& p) { p.serve.pinning = {}; }) == "");
  CHECK(refusal([](auto& p) { p.serve.pinning = {0}; }).find("one index per thread: 2") != std::string::npos);
  CHECK(refusal([](auto& p) {
          p.serve.pinning = {3, 3};
        }).find("$.serve.pinning[1] is '3'; allowed: each index once") != std::string::npos);
}

TEST_CASE("where the weights come from is said once") {
  CHECK(refusal([](auto& p) { p.identity.model.weights = "checkpoint"; }).find("synthetic:7") != std::string::npos);
  CHECK(refusal([](auto& p) { p.serve.synthetic_seed = {}; }).find("$.identity.model.weights") != std::string::npos);
  CHECK(refusal([](auto& p) {
          p.serve.synthetic_seed = {};
          p.identity.model.weights = "checkpoint";
        }).find("$.serve.routing_preset is 'present'") != std::string::npos);
}

TEST_CASE("decision, serve and the chosen candidate agree") {
  CHECK(refusal([](auto& p) { p.decision.strategy = "cpu"; }).find("$.decision.strategy is 'cpu'") !=
        std::string::npos);
  CHECK(refusal([](auto& p) { p.candidates[0].strategy = "cpu"; }).find("$.candidates[0].strategy is 'cpu'") !=
        std::string::npos);
  CHECK(refusal([](auto& p) { p.candidates[0].chosen = false; }).find("exactly one chosen") != std::string::npos);
  CHECK(refusal([](auto& p) {
          p.candidates[1].chosen = true;
          p.candidates[1].strategy = "hybrid";
        }).find("true for one candidate only") != std::string::npos);
}

TEST_CASE("a candidate has one number per context and batch, or none") {
  CHECK(refusal([](auto& p) { p.candidates[1].predicted_tok_s = {}; }) == "");
  CHECK(refusal([](auto& p) {
          p.candidates[1].measured_tok_s = {};
          p.candidates[1].measured_low = {};
          p.candidates[1].measured_high = {};
        }) == "");
  CHECK(refusal([](auto& p) {
          p.candidates[1].predicted_tok_s = {1, 2, 3};
        }).find("per context and batch: 4") != std::string::npos);
  CHECK(refusal([](auto& p) { p.candidates[1].measured_low = {}; }).find("as many as measured_tok_s: 4") !=
        std::string::npos);
}

TEST_CASE("what is expected has one point per context and batch, in their order") {
  const std::string start = "p refused, value refused: $.";
  for (const char* where : {"serve.expected", "serve.fallback.expected"}) {
    CAPTURE(where);
    const auto points = [where](ft::Profile& p) -> std::vector<ft::ExpectedPoint>& {
      return where == std::string("serve.expected") ? p.serve.expected : p.serve.fallback->expected;
    };
    const std::string at = start + where;
    CHECK(refusal([&](auto& p) { points(p).clear(); }) == "");
    CHECK(refusal([&](auto& p) { points(p).pop_back(); }) ==
          at + " is 'array of 3'; allowed: one entry per context and batch of conditions: 4");
    CHECK(refusal([&](auto& p) { std::swap(points(p)[0], points(p)[1]); }) ==
          at + "[0].batch is '4'; allowed: 1, in the order of conditions");
    CHECK(refusal([&](auto& p) { points(p)[2].context = 4095; }) ==
          at + "[2].context is '4095'; allowed: 4096, in the order of conditions");
    CHECK(refusal([&](auto& p) { points(p)[3].low_tok_s = points(p)[3].tok_s; }) == "");
    CHECK(refusal([&](auto& p) { points(p)[3].low_tok_s = 1.001 * points(p)[3].tok_s; }).find("[3].low_tok_s is '") !=
          std::string::npos);
    CHECK(refusal([&](auto& p) { points(p)[0].high_tok_s = 0.999 * points(p)[0].tok_s; }).find("[0].high_tok_s is '") !=
          std::string::npos);
    CHECK(refusal([&](auto& p) { points(p)[1].parts[1].name = "dense"; }) ==
          at + "[1].parts[1].name is 'dense'; allowed: each part once");
  }
  CHECK(refusal([](auto& p) { std::swap(p.conditions.contexts[0], p.conditions.contexts[1]); }) ==
        start + "conditions.contexts[1] is '512'; allowed: more than 4096, with serve.expected");
}

TEST_CASE("a fallback changes only what a step boundary can") {
  const std::string start = "p refused, value refused: $.serve.fallback";
  CHECK(refusal([](auto& p) { p.serve.fallback.reset(); }) == "");
  CHECK(refusal([](auto& p) { p.serve.slots = 0; }) == start + " is 'present'; allowed: no such key without slots");
  CHECK(refusal([](auto& p) {
          p.serve.strategy = p.decision.strategy = p.candidates[0].strategy = "offload";
          p.serve.fetch_of_misses = {0, 1, 2, 3, 4};
        }) == start + " is 'present'; allowed: no such key with strategy offload");
  CHECK(refusal([](auto& p) { p.serve.fallback->fetch_of_misses.pop_back(); }) ==
        start + ".fetch_of_misses is 'array of 4'; allowed: as many as serve.fetch_of_misses: 5");
  CHECK(refusal([](auto& p) { p.serve.fallback->fetch_of_misses[2] = 1; }) ==
        start + ".fetch_of_misses[2] is '1'; allowed: 2 with strategy offload");
  CHECK(refusal([](auto& p) { p.serve.fallback->promote_bytes_per_layer = 1; }) ==
        start + ".promote_bytes_per_layer is '1'; allowed: 0 with strategy offload");
}
