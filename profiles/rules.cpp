#include "profiles/rules.h"

#include <algorithm>
#include <set>

#include "kernels/base/error.h"

namespace ft {
namespace {

class Rules {
 public:
  explicit Rules(const std::string& source) : source_(source) {}

  void require(bool holds, const std::string& path, const std::string& value, const std::string& allowed) const {
    if (holds) return;
    throw Error(ErrorKind::kUsage,
                {.what = source_ + " refused, value refused", .value = value, .allowed = allowed, .path = "$." + path});
  }
  void absent(bool is_absent, const std::string& path, const std::string& when) const {
    require(is_absent, path, "present", "no such key " + when);
  }

 private:
  const std::string& source_;
};

std::string index(const std::string& path, size_t i) { return path + "[" + std::to_string(i) + "]"; }

// fetch_of_misses[m] of m misses go over the link (engine/engine_config.h).
void check_split(const Rules& rules, const std::string& path, const std::string& strategy,
                 const std::vector<int>& fetch_of_misses) {
  if (strategy == "resident") {
    rules.absent(fetch_of_misses.empty(), path, "with strategy resident");
    return;
  }
  rules.require(!fetch_of_misses.empty(), path, "absent", "an array, with strategy " + strategy);
  for (size_t m = 0; m < fetch_of_misses.size(); ++m) {
    const int fetched = fetch_of_misses[m];
    const std::string count = std::to_string(fetched);
    rules.require(fetched <= static_cast<int>(m), index(path, m), count, "0 to " + std::to_string(m));
    if (strategy == "offload") {
      rules.require(fetched == static_cast<int>(m), index(path, m), count,
                    std::to_string(m) + " with strategy offload");
    }
    if (strategy == "cpu") rules.require(fetched == 0, index(path, m), count, "0 with strategy cpu");
  }
}

// One point per (context, batch) of the conditions, in their order: the engine interpolates between them.
void check_expected(const Rules& rules, const std::string& path, const std::vector<ExpectedPoint>& expected,
                    const Conditions& conditions) {
  if (expected.empty()) return;
  const auto require_ascending = [&](const char* key, const std::vector<int64_t>& list) {
    for (size_t i = 1; i < list.size(); ++i) {
      rules.require(list[i] > list[i - 1], index(key, i), std::to_string(list[i]),
                    "more than " + std::to_string(list[i - 1]) + ", with " + path);
    }
  };
  require_ascending("conditions.contexts", conditions.contexts);
  require_ascending("conditions.batches", conditions.batches);
  const size_t batches = conditions.batches.size(), points = conditions.contexts.size() * batches;
  rules.require(expected.size() == points, path, "array of " + std::to_string(expected.size()),
                "one entry per context and batch of conditions: " + std::to_string(points));
  for (size_t i = 0; i < points; ++i) {
    const ExpectedPoint& point = expected[i];
    const std::string at = index(path, i);
    const int64_t context = conditions.contexts[i / batches], batch = conditions.batches[i % batches];
    rules.require(point.context == context, at + ".context", std::to_string(point.context),
                  std::to_string(context) + ", in the order of conditions");
    rules.require(point.batch == batch, at + ".batch", std::to_string(point.batch),
                  std::to_string(batch) + ", in the order of conditions");
    rules.require(point.low_tok_s <= point.tok_s, at + ".low_tok_s", std::to_string(point.low_tok_s),
                  "at most tok_s, " + std::to_string(point.tok_s));
    rules.require(point.high_tok_s >= point.tok_s, at + ".high_tok_s", std::to_string(point.high_tok_s),
                  "at least tok_s, " + std::to_string(point.tok_s));
    std::set<std::string> names;
    for (size_t part = 0; part < point.parts.size(); ++part) {
      rules.require(names.insert(point.parts[part].name).second, index(at + ".parts", part) + ".name",
                    point.parts[part].name, "each part once");
    }
  }
}

// Only what can change between steps may differ from the choice, and the choice must have slots to fetch into.
void check_fallback(const Rules& rules, const Profile& profile) {
  const Serve& serve = profile.serve;
  if (!serve.fallback) return;
  const Fallback& fallback = *serve.fallback;
  rules.absent(serve.strategy == "cpu" || serve.strategy == "hybrid", "serve.fallback",
               "with strategy " + serve.strategy);
  rules.absent(serve.slots > 0, "serve.fallback", "without slots");
  check_split(rules, "serve.fallback.fetch_of_misses", fallback.strategy, fallback.fetch_of_misses);
  rules.require(fallback.fetch_of_misses.size() == serve.fetch_of_misses.size(), "serve.fallback.fetch_of_misses",
                "array of " + std::to_string(fallback.fetch_of_misses.size()),
                "as many as serve.fetch_of_misses: " + std::to_string(serve.fetch_of_misses.size()));
  rules.require(fallback.promote_bytes_per_layer == 0, "serve.fallback.promote_bytes_per_layer",
                std::to_string(fallback.promote_bytes_per_layer), "0 with strategy " + fallback.strategy);
  check_expected(rules, "serve.fallback.expected", fallback.expected, profile.conditions);
}

void check_serve(const Rules& rules, const Profile& profile) {
  const Serve& serve = profile.serve;
  check_split(rules, "serve.fetch_of_misses", serve.strategy, serve.fetch_of_misses);
  check_expected(rules, "serve.expected", serve.expected, profile.conditions);
  check_fallback(rules, profile);
  if (serve.strategy == "resident") {
    rules.require(serve.slots >= 1, "serve.slots", std::to_string(serve.slots), "every expert with strategy resident");
  }
  if (serve.strategy == "resident" || serve.strategy == "offload") {
    rules.require(serve.promote_bytes_per_layer == 0, "serve.promote_bytes_per_layer",
                  std::to_string(serve.promote_bytes_per_layer), "0 with strategy " + serve.strategy);
  }
  const bool looks_ahead = serve.look_ahead.value_or("off") != "off";
  rules.require(!looks_ahead || serve.strategy == "offload" || serve.strategy == "hybrid", "serve.look_ahead",
                serve.look_ahead.value_or("off"), "off with strategy " + serve.strategy);
  rules.require(looks_ahead == serve.max_prefetches_per_layer.has_value(), "serve.max_prefetches_per_layer",
                looks_ahead ? "absent" : "present",
                looks_ahead ? "a number with look_ahead" : "no such key without it");
  // The slots, the split and the predicted rates hold for the batch they were tuned with, and memory is planned for it.
  const auto& batches = profile.conditions.batches;
  const int64_t largest = *std::max_element(batches.begin(), batches.end());
  rules.require(serve.max_batch == largest, "serve.max_batch", std::to_string(serve.max_batch),
                std::to_string(largest) + ", the largest of conditions.batches; to serve another one, tune for it");
  const size_t threads = static_cast<size_t>(serve.threads);
  rules.require(serve.pinning.empty() || serve.pinning.size() == threads, "serve.pinning",
                "array of " + std::to_string(serve.pinning.size()), "one index per thread: " + std::to_string(threads));
  std::set<int> cpus;
  for (size_t i = 0; i < serve.pinning.size(); ++i) {
    rules.require(cpus.insert(serve.pinning[i]).second, index("serve.pinning", i), std::to_string(serve.pinning[i]),
                  "each index once");
  }
  const std::string weights =
      serve.synthetic_seed ? "synthetic:" + std::to_string(*serve.synthetic_seed) : std::string("checkpoint");
  rules.require(profile.identity.model.weights == weights, "identity.model.weights", profile.identity.model.weights,
                weights + ", as serve.synthetic_seed says");
  rules.absent(!serve.routing_preset || serve.synthetic_seed, "serve.routing_preset", "without serve.synthetic_seed");
  rules.absent(!serve.link_slowdown || serve.device == "cuda", "serve.link_slowdown", "with device " + serve.device);
  rules.absent(!serve.fetch_mechanism || serve.device == "cuda", "serve.fetch_mechanism",
               "with device " + serve.device);
  rules.require(serve.strategy == profile.decision.strategy, "decision.strategy", profile.decision.strategy,
                serve.strategy + ", as serve.strategy says");
}

void check_candidates(const Rules& rules, const Profile& profile) {
  const size_t points = profile.conditions.contexts.size() * profile.conditions.batches.size();
  size_t chosen = 0;
  for (size_t i = 0; i < profile.candidates.size(); ++i) {
    const Candidate& candidate = profile.candidates[i];
    const std::string path = index("candidates", i);
    const auto check_length = [&](const char* key, const std::vector<double>& list, size_t other) {
      rules.require(list.empty() || list.size() == points, path + "." + key, "array of " + std::to_string(list.size()),
                    "nothing, or one number per context and batch: " + std::to_string(points));
      rules.require(other == SIZE_MAX || list.size() == other, path + "." + key,
                    "array of " + std::to_string(list.size()), "as many as measured_tok_s: " + std::to_string(other));
    };
    check_length("predicted_tok_s", candidate.predicted_tok_s, SIZE_MAX);
    check_length("measured_tok_s", candidate.measured_tok_s, SIZE_MAX);
    check_length("measured_low", candidate.measured_low, candidate.measured_tok_s.size());
    check_length("measured_high", candidate.measured_high, candidate.measured_tok_s.size());
    if (candidate.chosen) {
      ++chosen;
      rules.require(chosen == 1, path + ".chosen", "true", "true for one candidate only");
      rules.require(candidate.strategy == profile.serve.strategy, path + ".strategy", candidate.strategy,
                    profile.serve.strategy + ", as serve.strategy says of the chosen one");
    }
  }
  rules.require(chosen == 1, "candidates", "none chosen", "exactly one chosen");
}

}  // namespace

void check_profile_rules(const Profile& profile, const std::string& source) {
  const Rules rules(source);
  check_serve(rules, profile);
  check_candidates(rules, profile);
}

}  // namespace ft
