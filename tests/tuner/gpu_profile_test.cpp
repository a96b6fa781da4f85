// What a profile of a GPU means to the engine and the probes. Checked against: values written by hand.
#include <doctest/doctest.h>

#include "engine/program/identity.h"
#include "engine/program/serve_config.h"
#include "engine/runtime/device.h"
#include "engine/runtime/engine_state.h"
#include "kernels/base/error.h"
#include "probes/session.h"

namespace ft {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Serve gpu_serve() {
  Serve serve;
  serve.device = "cuda";
  serve.strategy = "offload";
  serve.model_path = "/models/x";
  serve.threads = 1;
  serve.slots = 100;
  serve.fetch_of_misses = {0, 1, 2};
  serve.max_context = 128;
  return serve;
}

cuda::DeviceFacts gpu_facts() {
  cuda::DeviceFacts gpu;
  gpu.name = "NVIDIA H200";
  gpu.uuid = "GPU-1";
  gpu.driver = "580.1";
  gpu.free_bytes = 101 * kGiB;
  gpu.link_generation_max = 5;
  gpu.link_width_max = 16;
  return gpu;
}

}  // namespace

TEST_CASE("serve becomes a configuration of the device that it names, with its slowed link") {
  Serve serve = gpu_serve();
  CHECK(engine_config_from_serve(serve, "").device == Device::kCuda);
  CHECK(engine_config_from_serve(serve, "").link_slowdown == 1);
  CHECK(engine_config_from_serve(serve, "").cache_policy == CachePolicy::kLru);  // what profiles without the key meant
  CHECK(engine_config_from_serve(serve, "").look_ahead == LookAhead::kOff);
  serve.cache_policy = "lrfu";
  serve.look_ahead = "router";
  serve.max_prefetches_per_layer = 3;
  CHECK(engine_config_from_serve(serve, "").cache_policy == CachePolicy::kLrfu);
  CHECK(engine_config_from_serve(serve, "").look_ahead == LookAhead::kRouter);
  CHECK(engine_config_from_serve(serve, "").max_prefetches_per_layer == 3);
  serve.link_slowdown = 8;
  CHECK(engine_config_from_serve(serve, "").link_slowdown == 8);
  serve.device = "host";
  serve.link_slowdown.reset();
  CHECK(engine_config_from_serve(serve, "").device == Device::kHost);
  CHECK(!engine_config_from_serve(serve, "").no_wait);
}

TEST_CASE("a profile of a GPU is refused where there is none, with the driver's reason; a host profile asks for none") {
  EngineConfig config = engine_config_from_serve(gpu_serve(), "");
  std::string reason;
  if (cuda::device_count(&reason) == 0) {
    try {
      start_served_device(config);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUsage);
      CHECK(std::string(error.what()) ==
            "profile refused, no CUDA device can be used (" + reason +
                "): $.serve.device is 'cuda'; allowed: host; tune here, with --device host");
    }
  } else {
    CHECK(start_served_device(config).has_value());
  }
  config.device = Device::kHost;
  CHECK(!start_served_device(config).has_value());
}

TEST_CASE("device memory is what is free but for the reserve, the limit caps it, host memory is another matter") {
  EngineConfig config = engine_config_from_serve(gpu_serve(), "");
  MemoryBudget budget;
  budget.available_bytes = 64 * kGiB;
  MemoryInputs inputs = memory_inputs(config, budget, gpu_facts());
  CHECK(inputs.device == Device::kCuda);
  CHECK(inputs.device_memory_bytes == 100 * kGiB);
  CHECK(inputs.host_memory_bytes == 64 * kGiB);
  config.device_memory_limit_bytes = 16 * kGiB;
  CHECK(memory_inputs(config, budget, gpu_facts()).device_memory_bytes == 16 * kGiB);

  ProbeSessionOptions options;
  options.device = Device::kCuda;
  options.gpu = gpu_facts();
  const MemoryInputs probes = probe_memory_inputs(options, budget);
  CHECK(probes.device == Device::kCuda);
  CHECK(probes.device_memory_bytes < 100 * kGiB);  // what was tuned here starts here
  CHECK(probes.device_memory_bytes > 97 * kGiB);
  CHECK(probes.host_memory_bytes < 64 * kGiB);
  options.device_memory_limit_bytes = 16 * kGiB;
  CHECK(probe_memory_inputs(options, budget).device_memory_bytes == 16 * kGiB);
}

TEST_CASE("the GPU is identity where it serves, and only there") {
  const HostTopology topology = detect_topology();
  const CpuBudget cpus = detect_cpu_budget(topology);
  const HostIdentity with = collect_host_identity(topology, cpus, gpu_facts());
  CHECK(with.gpu_uuid == "GPU-1");
  CHECK(with.gpu_name == "NVIDIA H200");
  CHECK(with.gpu_driver == "580.1");
  CHECK(with.gpu_link == "PCIe 5 x16");
  const HostIdentity without = collect_host_identity(topology, cpus, std::nullopt);
  CHECK(without.gpu_uuid.empty());
  CHECK(without.gpu_link.empty());
  CHECK(without.cpu_model == with.cpu_model);
}

TEST_CASE("the engine refuses a link slowed out of range and reference numerics on a GPU") {
  ModelGeometry geometry;
  geometry.moe_layers = {0};
  geometry.expert = {64, 64, 4, 2};
  geometry.max_positions = 128;
  EngineConfig config = engine_config_from_serve(gpu_serve(), "");
  config.slots = 4;
  CHECK_NOTHROW(check_engine_config(geometry, config));
  for (const int slowdown : {0, kMaxLinkSlowdown + 1}) {
    config.link_slowdown = slowdown;
    CHECK_THROWS_WITH_AS(check_engine_config(geometry, config), doctest::Contains("link_slowdown"), Error);
  }
  config.link_slowdown = kMaxLinkSlowdown;
  CHECK_NOTHROW(check_engine_config(geometry, config));
  config.numerics = Numerics::kReference;
  CHECK_THROWS_AS(check_engine_config(geometry, config), Error);
}

}  // namespace ft
