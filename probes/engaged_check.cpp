#include "probes/engaged_check.h"

#include <algorithm>

namespace ft {
namespace {

class Differences {
 public:
  void require(bool same, const char* what, const std::string& asked, const std::string& engaged) {
    if (same) return;
    text_ += (text_.empty() ? "" : "; ") + std::string(what) + ": " + asked + " asked, " + engaged + " engaged";
  }
  void equal(const char* what, std::string_view asked, const std::string& engaged) {
    require(engaged == asked, what, std::string(asked), engaged);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// On a GPU the pool has work only where an expert ran on the CPU, and one expert may have fewer row tiles than the pool
// has threads.
std::string asked_threads(const EngineConfig& asked, const EngagedRecord& engaged, const EngineCounters& counters,
                          int64_t row_tiles) {
  if (asked.device == Device::kCuda && counters.expert_cpu == 0) return "0";
  const bool some = asked.device == Device::kCuda && row_tiles < asked.threads;
  return some && engaged.threads_worked > 0 && engaged.threads_worked <= asked.threads
             ? std::to_string(engaged.threads_worked)
             : std::to_string(asked.threads);
}

std::string asked_mechanism(const EngineConfig& asked) {
  if (asked.slots == 0) return "none";
  if (asked.device == Device::kHost) return "copy thread";
  if (asked.fetch_mechanism == FetchMechanism::kCopyEngine) return "copy engine";
  return asked.link_slowdown > 1 ? "sm gather, link slowed" : "sm gather";
}

}  // namespace

std::string engaged_difference(const EngineConfig& asked, const EngagedRecord& engaged, const EngineCounters& counters,
                               int64_t row_tiles) {
  Differences differences;
  differences.equal("strategy", strategy_name(asked.strategy), engaged.strategy);
  differences.equal("slots", std::to_string(asked.slots), std::to_string(engaged.slots));
  differences.equal("threads", asked_threads(asked, engaged, counters, row_tiles),
                    std::to_string(engaged.threads_worked));
  differences.equal("mechanism", asked_mechanism(asked), engaged.mechanism);
  if (asked.slots > 0) differences.equal("cache policy", cache_policy_name(asked.cache_policy), engaged.cache_policy);
  differences.equal("look-ahead", look_ahead_name(asked.look_ahead), engaged.look_ahead);
  const bool no_cpu = asked.strategy == Strategy::kOffload || asked.strategy == Strategy::kResident;
  const bool no_link = asked.strategy == Strategy::kCpu || asked.strategy == Strategy::kResident;
  differences.require(!no_cpu || counters.expert_cpu == 0, "experts on the CPU", "none",
                      std::to_string(counters.expert_cpu));
  differences.require(!no_link || counters.expert_fetched == 0, "experts fetched", "none",
                      std::to_string(counters.expert_fetched));
  differences.require(asked.look_ahead != LookAhead::kOff || counters.expert_prefetched == 0, "experts prefetched",
                      "none", std::to_string(counters.expert_prefetched));
  return differences.text();
}

}  // namespace ft
