// What the machine can do at most, measured in the same run as everything that is compared with it.
#include "kernels/base/clock.h"
#include "kernels/base/statistics.h"
#include "kernels/host/worker_pool.h"
#include "probes/measure.h"
#include "tests/bench/bench.h"

namespace ft::bench {
namespace {

// The probe's arrays are as large as it can afford: for four times a last-level cache of 300 MB it wants 15 s, and then
// takes 2.
constexpr double kHostSeconds = 15, kQuickHostSeconds = 0.5;
constexpr int kHostSamples = 5;

}  // namespace

void run_ceilings(Bench& bench) {
  bench.report.heading("ceilings");
  bench.progress("ceilings");
  ProbeContext context;
  context.topology = &bench.topology;
  context.cpus = &bench.cpus;
  context.memory = &bench.memory;
  context.thread_counts = {bench.threads()};
  context.budget = {bench.options.quick ? kQuickHostSeconds : kHostSeconds, 3, kHostSamples};
  const std::unique_ptr<Probe> stream = make_stream_probe();
  std::vector<Samples> all = stream->run(context);
  stream->verify(context);
  for (const Samples& samples : all) {
    if (samples.name.find("mem_read") == std::string::npos) continue;
    bench.ceilings.host_read = median(samples.values) * 1e9;
    bench.report.info("ceilings", "host memory, plain read, " + samples.name, median(samples.values), "GB/s");
  }
  bench.report.samples("ceilings", std::move(all));
  if (bench.options.device == Device::kCuda) measure_device_ceilings(bench);
}

}  // namespace ft::bench
