// The device's own memory and the link, and the time of whole experts over the link alone.
#include <algorithm>

#include "kernels/base/statistics.h"
#include "kernels/cuda/memory_read.h"
#include "probes/gpu_memory.h"
#include "probes/measure.h"
#include "tests/bench/bench.h"

namespace ft::bench {
namespace {

constexpr int64_t kDeviceBytes = int64_t{4} << 30;  // far beyond the second-level cache
constexpr double kSeconds = 1, kFetchSeconds = 1.5;
constexpr int kPassesPerSample = 2;

Series series(const char* name, double bytes, std::function<double()> seconds) {
  Series one;
  one.samples.name = name;
  one.samples.unit = "GB/s";
  one.samples.at = {{"bytes", bytes}};
  one.sample = [bytes, seconds = std::move(seconds)] { return bytes / seconds() * 1e-9; };
  return one;
}

}  // namespace

std::shared_ptr<const cuda::RegisteredMemory> lock_memory(const HostBuffer& memory) {
  return std::make_shared<const cuda::RegisteredMemory>(memory.data(), memory.bytes());
}

void measure_device_ceilings(Bench& bench) {
  const cuda::DeviceBuffer memory(kDeviceBytes), sink(sizeof(uint32_t));
  cuda::Stream stream;
  cuda::fill_zero(memory.data(), memory.bytes(), stream.handle());
  cuda::fill_zero(sink.data(), sink.bytes(), stream.handle());
  stream.synchronize();
  const auto timed = [&stream](auto&& once) {
    return stream_seconds(stream,
                          [&] {
                            for (int i = 0; i < kPassesPerSample; ++i) once();
                          }) /
           kPassesPerSample;
  };
  const int64_t half = kDeviceBytes / 2;
  std::vector<Series> all;
  all.push_back(series("device read", static_cast<double>(kDeviceBytes), [&] {
    return timed([&] { cuda::read_memory(memory.data(), kDeviceBytes, sink.as<uint32_t>(), stream.handle()); });
  }));
  all.push_back(series("device copy, read and written", static_cast<double>(kDeviceBytes), [&] {
    return timed([&] { cuda::copy_on_device(memory.data(), memory.data() + half, half, stream.handle()); });
  }));
  MeasureOptions options;
  options.budget = bench.sample_budget(kSeconds);
  measure(all, options);
  bench.ceilings.device_read = median(all[0].samples.values) * 1e9;
  bench.ceilings.device_copy = median(all[1].samples.values) * 1e9;
  for (const Series& one : all) {
    bench.report.info("ceilings", one.samples.name, median(one.samples.values), "GB/s");
  }
  bench.report.samples("ceilings", samples_of(all));

  ProbeContext context;
  context.topology = &bench.topology;
  context.cpus = &bench.cpus;
  context.memory = &bench.memory;
  context.gpu = bench.gpu;
  context.base.device = Device::kCuda;
  context.budget = bench.sample_budget(kSeconds);
  const std::unique_ptr<Probe> link = make_pcie_linear_probe();
  std::vector<Samples> copies = link->run(context);
  link->verify(context);
  for (const Samples& samples : copies) {
    if (samples.name != "h2d.bytes=268435456") continue;
    bench.ceilings.link = median(samples.values) * 1e9;
    bench.report.info("ceilings", "link, copies of 256 MiB to the device", median(samples.values), "GB/s");
  }
  bench.report.samples("ceilings", std::move(copies));
}

Curve fetch_curve_of_link(ModelCase& one) {
  ProbeContext context;
  context.topology = &one.bench.topology;
  context.cpus = &one.bench.cpus;
  context.memory = &one.bench.memory;
  context.gpu = one.bench.gpu;
  context.model = one.model;
  context.base.device = Device::kCuda;
  context.budget = one.bench.sample_budget(kFetchSeconds);
  const std::unique_ptr<Probe> gather = make_pcie_gather_probe();
  std::vector<Samples> all = gather->run(context);
  gather->verify(context);
  std::vector<double> counts, seconds;
  for (const Samples& samples : all) {
    if (!samples.name.starts_with("sm_gather")) continue;  // the mechanism of the engine
    counts.push_back(samples.at.at("n"));
    seconds.push_back(samples.at.at("bytes") / (median(samples.values) * 1e9));
  }
  one.bench.report.samples("curves." + std::string(one.geometry.name), std::move(all));
  return {counts, seconds};
}

}  // namespace ft::bench
