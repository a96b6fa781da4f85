// Copies by the copy engine between locked host memory and the GPU: the ceiling of whatever moves experts. Copies of a
// sample are queued behind each other, so that the time of a launch hides behind the copy before where that is longer.
#include <algorithm>
#include <cstring>

#include "kernels/base/random.h"
#include "kernels/host/worker_pool.h"
#include "probes/gpu_memory.h"
#include "probes/gpu_probe.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr int64_t kSmallest = int64_t{64} << 10, kLargest = int64_t{256} << 20;
constexpr int64_t kSampleBytes = int64_t{64} << 20;  // about a millisecond
constexpr int64_t kMaxCopies = 256;                  // of one sample
constexpr int kCopiesUnderLoad = 8;                  // of the largest size while the link's state is read: 40 ms

struct Rig {
  LockedMemory from, to;
  cuda::DeviceBuffer arrives, leaves;
  cuda::Stream down, up;  // to the device, to the host
  cuda::Event forked, joined;

  explicit Rig(WorkerPool& pool) : from(kLargest, &pool), to(kLargest, &pool), arrives(kLargest), leaves(kLargest) {
    auto* words = from.memory.as<uint64_t>();
    pool.run([&](int worker, int workers) {
      const Range part = split_range(kLargest / 8, worker, workers);
      for (int64_t i = part.begin; i < part.end; ++i) words[i] = mix64(static_cast<uint64_t>(i));
    });
    cuda::fill_zero(leaves.data(), kLargest, down.handle());
    down.synchronize();
  }
  void copy_down(int64_t bytes, int64_t copies) {
    for (int64_t i = 0; i < copies; ++i) {
      cuda::copy_to_device(arrives.data(), from.memory.data(), bytes, down.handle());
    }
  }
  void copy_up(int64_t bytes, int64_t copies) {
    for (int64_t i = 0; i < copies; ++i) cuda::copy_to_host(to.memory.data(), leaves.data(), bytes, up.handle());
  }
};

enum class Way : uint8_t { kToDevice, kToHost, kBoth };

double gbps(Rig& rig, Way way, int64_t bytes) {
  const int64_t copies = std::clamp<int64_t>(kSampleBytes / bytes, 1, kMaxCopies);
  const double moved = static_cast<double>(bytes) * static_cast<double>(copies);
  if (way == Way::kToDevice) {
    return moved / stream_seconds(rig.down, [&] { rig.copy_down(bytes, copies); }) * 1e-9;
  }
  if (way == Way::kToHost) return moved / stream_seconds(rig.up, [&] { rig.copy_up(bytes, copies); }) * 1e-9;
  const double seconds = stream_seconds(rig.down, [&] {
    rig.forked.record(rig.down.handle());
    rig.forked.make_wait(rig.up.handle());
    for (int64_t i = 0; i < copies; ++i) {  // in turn: neither queue gets a head start of many launches
      rig.copy_down(bytes, 1);
      rig.copy_up(bytes, 1);
    }
    rig.joined.record(rig.up.handle());
    rig.joined.make_wait(rig.down.handle());
  });
  return 2 * moved / seconds * 1e-9;
}

class PcieLinearProbe final : public GpuProbe {
 public:
  PcieLinearProbe() : GpuProbe(kPcieLinearText) {}

  std::vector<Samples> run(ProbeContext& context) override {
    require_applies(context);
    WorkerPool pool({.threads = context.cpus->usable_cores, .cpus = context.cpus->pinning});
    Rig rig(pool);
    std::vector<Series> series;
    for (const auto& [name, way] :
         {std::pair{"h2d", Way::kToDevice}, std::pair{"d2h", Way::kToHost}, std::pair{"both", Way::kBoth}}) {
      for (int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
        Series one;
        one.samples.name = std::string(name) + ".bytes=" + std::to_string(bytes);
        one.samples.unit = "GB/s";
        one.samples.at = {{"bytes", static_cast<double>(bytes) * (way == Way::kBoth ? 2 : 1)}};
        one.sample = [&rig, way = way, bytes] { return gbps(rig, way, bytes); };
        series.push_back(std::move(one));
      }
    }
    measure(series, measure_options(context, 1));
    rig.copy_down(kLargest, kCopiesUnderLoad);
    const cuda::LinkState link = cuda::link_state(0);
    rig.down.synchronize();
    mismatch_ = compare(rig);
    std::vector<Samples> result = samples_of(series);
    for (Samples& samples : result) {
      samples.at["link_generation"] = link.generation;
      samples.at["link_width"] = link.width;
    }
    return result;
  }

 private:
  Applies applies_on_gpu(const ProbeContext&) const override { return {}; }

  // There and back over the same route.
  static std::string compare(Rig& rig) {
    cuda::fill_zero(rig.arrives.data(), kLargest, rig.down.handle());
    rig.copy_down(kLargest, 1);
    std::memset(rig.to.memory.data(), 0, static_cast<size_t>(kLargest));
    cuda::copy_to_host(rig.to.memory.data(), rig.arrives.data(), kLargest, rig.down.handle());
    rig.down.synchronize();
    const auto* sent = rig.from.memory.as<uint64_t>();
    const auto* got = rig.to.memory.as<uint64_t>();
    const int64_t words = kLargest / 8, at = std::mismatch(sent, sent + words, got).first - sent;
    return at == words ? std::string() : "word " + std::to_string(at) + " of " + std::to_string(words);
  }
};

}  // namespace

std::unique_ptr<Probe> make_pcie_linear_probe() { return std::make_unique<PcieLinearProbe>(); }

}  // namespace ft
