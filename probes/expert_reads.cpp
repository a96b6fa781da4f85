#include "probes/expert_reads.h"

#include <chrono>
#include <thread>

#include "kernels/base/clock.h"

namespace ft {
namespace {

constexpr ExpertShape kShape{FormatId::kNvfp4, 2048, 768};
constexpr double kIdleShare = 0.25;  // of the time: to see what others read

// Bytes per second without us; none when the counter failed.
std::optional<double> background(DramCounter& counter, double seconds) {
  const double start = now_seconds();
  if (!counter.start()) return std::nullopt;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const std::optional<double> bytes = counter.stop();
  if (!bytes) return std::nullopt;
  return *bytes / (now_seconds() - start);
}

}  // namespace

ExpertReads count_expert_reads(ProbeContext& context, DramCounter& counter, double seconds) {
  context.expert_shapes = {kShape};
  const std::vector<ExpertSet> sets = make_expert_sets(context);
  const ExpertSet& set = sets.front();
  WorkerPool pool({.threads = context.cpus->usable_cores, .cpus = context.cpus->pinning});
  ExpertRunner runner(set.layout, active_isa(), 1, pool);
  const std::optional<double> others = background(counter, kIdleShare * seconds);
  runner.run(set.blobs);  // pages and clocks
  ExpertReads reads;
  reads.cold = !set.reduced && !set.warm;
  const double start = now_seconds();
  if (!others || !counter.start()) return {};
  double end = start;
  do {
    runner.run(set.blobs);
    reads.expected_bytes += static_cast<double>(set.payload_bytes());
    end = now_seconds();
  } while (end - start < (1 - kIdleShare) * seconds);
  const std::optional<double> bytes = counter.stop();
  if (!bytes) return {};
  reads.counted_bytes = *bytes - *others * (end - start);
  return reads;
}

}  // namespace ft
