// Whole expert blobs from scattered addresses of host memory to slots, as a decode step fetches them: by the kernel
// that reads host memory in place (the engine's way), and by the copy engine through the proxy thread. With a model the
// blobs are its banks' own. A sample is several fetches one behind the other, each of other blobs.
#include <algorithm>
#include <cstring>
#include <optional>

#include "engine/runtime/cuda/device_weights_cuda.h"
#include "kernels/base/random.h"
#include "kernels/cuda/copy_proxy.h"
#include "kernels/cuda/moe.h"
#include "kernels/host/worker_pool.h"
#include "probes/gpu_memory.h"
#include "probes/gpu_probe.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr int kMaxBlobs = 32;  // of one fetch
// Every count that a layer of one token can miss: the time is nearly, and not quite, a line through them.
constexpr int kCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, kMaxBlobs};
constexpr int kMaxFetches = 16;
constexpr int kOwnBlobs = 128;
constexpr int64_t kOwnBlobBytes = int64_t{661} * 4096;  // 2.7 MB: an NVFP4 expert of 2048 x 768
constexpr uint64_t kTimeoutNs = 2'000'000'000;

struct Blob {
  const std::byte* host = nullptr;
  const std::byte* device = nullptr;
};

// Blobs of one size: those of the model's layers that are like the first one, or made-up ones.
struct BlobSet {
  std::optional<LockedMemory> own;
  std::vector<Blob> blobs;
  int64_t bytes = 0;
};

BlobSet make_blobs(const ProbeContext& context) {
  BlobSet set;
  if (context.model.on_device != nullptr) {
    const ExpertBank& bank = context.model.weights->bank;
    set.bytes = bank.layout(0).bytes;
    for (int layer = 0; layer < bank.layers(); ++layer) {
      if (bank.layout(layer).bytes != set.bytes) continue;
      for (int expert = 0; expert < bank.experts(); ++expert) {
        // One copy of the copy engine cannot take a blob that lies in two registered pieces.
        const int64_t begin = bank.blob(layer, expert) - bank.bytes().data(), last = begin + set.bytes - 1;
        if (begin / cuda::kMaxRegisterBytes != last / cuda::kMaxRegisterBytes) continue;
        set.blobs.push_back({bank.blob(layer, expert), context.model.on_device->bank(layer) + expert * set.bytes});
      }
    }
    return set;
  }
  WorkerPool pool({.threads = context.cpus->usable_cores, .cpus = context.cpus->pinning});
  set.bytes = kOwnBlobBytes;
  set.own.emplace(kOwnBlobs * kOwnBlobBytes, &pool);
  auto* words = set.own->memory.as<uint64_t>();
  pool.run([&](int worker, int workers) {
    const Range part = split_range(set.own->memory.bytes() / 8, worker, workers);
    for (int64_t i = part.begin; i < part.end; ++i) words[i] = mix64(static_cast<uint64_t>(i));
  });
  for (int i = 0; i < kOwnBlobs; ++i) {
    set.blobs.push_back({set.own->memory.data() + i * set.bytes, set.own->device() + i * set.bytes});
  }
  return set;
}

class Fetcher {
 public:
  explicit Fetcher(const ProbeContext& context)
      : set_(make_blobs(context)),
        most_(std::min<int>(kMaxBlobs, static_cast<int>(set_.blobs.size()))),
        repeat_(context.base.link_slowdown),
        slots_(most_ * set_.bytes),
        lists_(int64_t{kMaxFetches} * (kMaxBlobs * static_cast<int64_t>(sizeof(cuda::Copy)) + int64_t{2} * 256) + 4096),
        arrived_(int64_t{kMaxFetches} * kMaxBlobs * cuda::kArrivalParts * 4),
        proxy_(kMaxBlobs) {
    for (List& list : fetches_) list = {lists_.take<cuda::Copy>(kMaxBlobs), lists_.take<int32_t>(1)};
  }

  int most() const { return most_; }
  int64_t blob_bytes() const { return set_.bytes; }

  double gbps(bool copy_engine, int count) {
    const int fetches = std::clamp(kMaxBlobs / count, 1, kMaxFetches);
    choose(count, fetches);
    const double bytes = static_cast<double>(set_.bytes) * count * fetches;
    return bytes / fetch(copy_engine, fetches) * 1e-9;
  }

  // Empty when a fetch of the largest size brought what the blobs hold.
  std::string compare(bool copy_engine) {
    choose(most_, 1);
    cuda::fill_zero(slots_.data(), slots_.bytes(), stream_.handle());
    fetch(copy_engine, 1);
    HostBuffer got(slots_.bytes());
    cuda::copy_to_host(got.data(), slots_.data(), slots_.bytes(), stream_.handle());
    stream_.synchronize();
    for (int i = 0; i < most_; ++i) {
      const std::byte* want = set_.blobs[chosen_[static_cast<size_t>(i)]].host;
      const std::byte* here = got.data() + i * set_.bytes;
      if (std::memcmp(here, want, static_cast<size_t>(set_.bytes)) == 0) continue;
      const auto at = std::mismatch(here, here + set_.bytes, want).first - here;
      return std::string(copy_engine ? "copy engine" : "gather") + ": byte " + std::to_string(at) + " of slot " +
             std::to_string(i);
    }
    return {};
  }

 private:
  // Other blobs for every fetch: from the start of a shuffled line that goes on.
  void choose(int count, int fetches) {
    chosen_.clear();
    for (int f = 0; f < fetches; ++f) {
      for (int i = 0; i < count; ++i) {
        chosen_.push_back(next_blob());
        const auto units = static_cast<uint32_t>(set_.bytes / cuda::kUnitBytes);
        lists_.host(fetches_[f].copies)[i] = {
            set_.blobs[chosen_.back()].device,
            slots_.data() + i * set_.bytes,
            arrived_.as<uint32_t>() + (int64_t{f} * kMaxBlobs + i) * cuda::kArrivalParts,
            {units, units}};
      }
      *lists_.host(fetches_[f].count) = count;
    }
    lists_.upload(stream_);
    cuda::fill_zero(arrived_.data(), arrived_.bytes(), stream_.handle());
  }

  size_t next_blob() {
    if (order_.empty()) {
      for (size_t i = 0; i < set_.blobs.size(); ++i) order_.push_back(i);
    }
    const size_t n = order_.size();
    if (at_ == n) at_ = 0;
    std::swap(order_[at_], order_[at_ + random_.below(n - at_)]);
    return order_[at_++];
  }

  double fetch(bool copy_engine, int fetches) {
    if (copy_engine) proxy_.begin();
    const double seconds = stream_seconds(stream_, [&] {
      for (int f = 0; f < fetches; ++f) {
        cuda::Fetch fetch;
        fetch.copies = fetches_[f].copies;
        fetch.count = fetches_[f].count;
        fetch.repeat = repeat_;
        if (copy_engine) fetch.post = proxy_.post(kTimeoutNs);
        cuda::gather(fetch, copy_engine ? 1 : cuda::kGatherBlocks, stream_.handle());
        if (copy_engine) cuda::await_copies(fetch, kTimeoutNs, stream_.handle());
      }
    });
    if (copy_engine) {
      proxy_.end();
      proxy_.check();
    }
    return seconds;
  }

  BlobSet set_;
  int most_ = 0, repeat_ = 1;
  cuda::Stream stream_;
  cuda::DeviceBuffer slots_;
  MirroredMemory lists_;
  cuda::DeviceBuffer arrived_;
  cuda::CopyProxy proxy_;
  struct List {
    cuda::Copy* copies = nullptr;
    int32_t* count = nullptr;
  };
  List fetches_[kMaxFetches];
  std::vector<size_t> order_, chosen_;
  size_t at_ = 0;
  Random random_{5};
};

class PcieGatherProbe final : public GpuProbe {
 public:
  PcieGatherProbe() : GpuProbe(kPcieGatherText) {}

  std::vector<Samples> run(ProbeContext& context) override {
    require_applies(context);
    Fetcher fetcher(context);
    std::vector<Series> series;
    for (const bool copy_engine : {false, true}) {
      for (int count : kCounts) {
        if (count > fetcher.most()) continue;
        Series one;
        one.samples.name = std::string(copy_engine ? "copy_engine" : "sm_gather") + ".n=" + std::to_string(count);
        one.samples.unit = "GB/s";
        one.samples.at = {{"n", count},
                          {"blob_bytes", static_cast<double>(fetcher.blob_bytes())},
                          {"bytes", static_cast<double>(fetcher.blob_bytes()) * count}};
        one.sample = [&fetcher, copy_engine, count] { return fetcher.gbps(copy_engine, count); };
        series.push_back(std::move(one));
      }
    }
    measure(series, measure_options(context, 1));
    mismatch_ = fetcher.compare(false);
    if (mismatch_.empty()) mismatch_ = fetcher.compare(true);
    return samples_of(series);
  }

 private:
  Applies applies_on_gpu(const ProbeContext&) const override { return {}; }
};

}  // namespace

std::unique_ptr<Probe> make_pcie_gather_probe() { return std::make_unique<PcieGatherProbe>(); }

}  // namespace ft
