// Checked against: a counter that counts what it is told to.
#include "probes/expert_reads.h"

#include <doctest/doctest.h>

#include <cmath>
#include <deque>

#include "kernels/base/clock.h"

namespace {

// Each stop() gives the next answer: bytes a second since start(), or none.
class PlayedCounter final : public ft::DramCounter {
 public:
  explicit PlayedCounter(std::deque<std::optional<double>> rates) : rates_(std::move(rates)) {}
  bool start() override {
    began_ = ft::now_seconds();
    return !rates_.empty();
  }
  std::optional<double> stop() override {
    const std::optional<double> rate = rates_.front();
    rates_.pop_front();
    if (!rate) return std::nullopt;
    seconds += ft::now_seconds() - began_;
    return *rate * (ft::now_seconds() - began_);
  }
  double seconds = 0;

 private:
  std::deque<std::optional<double>> rates_;
  double began_ = 0;
};

ft::ExpertReads count(PlayedCounter& counter) {
  ft::HostTopology topology;
  topology.last_level_cache_bytes = 1 << 20;
  ft::CpuBudget cpus;
  cpus.usable_cores = 1;
  ft::MemoryBudget memory;
  memory.available_bytes = int64_t{1} << 30;
  ft::ProbeContext context;
  context.topology = &topology;
  context.cpus = &cpus;
  context.memory = &memory;
  context.budget.seconds = 40;
  return ft::count_expert_reads(context, counter, 0.2);
}

}  // namespace

TEST_CASE("experts are whole, and what others read is taken off") {
  PlayedCounter counter({1e9, 5e9});
  const ft::ExpertReads reads = count(counter);
  CHECK(reads.cold);  // eight times the cache of 1 MiB fit the memory
  const ft::ExpertLayout layout = ft::expert_layout(ft::FormatId::kNvfp4, 2048, 768);
  CHECK(reads.expected_bytes >= 8.0 * (1 << 20));
  const double experts = reads.expected_bytes / static_cast<double>(layout.payload_bytes);
  CHECK(experts == doctest::Approx(std::round(experts)));
  // 4e9 a second remain, for the part of the 0.2 s that is not idle; one round of experts may take longer.
  CHECK(reads.counted_bytes >= 0.9 * 4e9 * 0.15);
  CHECK(reads.counted_bytes <= 1.1 * 4e9 * (counter.seconds - 0.05));
}

TEST_CASE("a counter that fails at any point gives nothing") {
  for (const std::deque<std::optional<double>>& rates :
       {std::deque<std::optional<double>>{}, {std::nullopt}, {1e9}, {1e9, std::nullopt}}) {
    PlayedCounter counter(rates);
    const ft::ExpertReads reads = count(counter);
    CHECK(reads.expected_bytes == 0);
    CHECK(reads.counted_bytes == 0);
  }
}

TEST_CASE("this machine: a counter, or one line that says why not") {
  std::string why_not = "unset";
  const auto counter = ft::open_dram_counter(why_not);
  CHECK((counter != nullptr) == why_not.empty());
  CHECK(why_not.find('\n') == std::string::npos);
  if (counter == nullptr) {
    MESSAGE("no counter: " << why_not);
    return;
  }
  REQUIRE(counter->start());
  CHECK(counter->stop().value_or(-1) >= 0);
}
