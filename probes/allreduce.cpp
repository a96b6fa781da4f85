// What splitting a layer over two GPUs would add: the hidden states of one token and of a batch, in bf16 and fp32,
// summed over two GPUs by NCCL. Several in a row in stream order, timed on the first device.
#include <algorithm>
#include <array>
#include <cstring>

#include "probes/gpu_memory.h"
#include "probes/gpu_probe.h"
#include "probes/measure.h"
#include "probes/nccl.h"

namespace ft {
namespace {

constexpr int kGpus = 2;
constexpr int kReductions = 50;  // of one sample
constexpr int64_t kDefaultHidden = 2048;

struct Gpu {
  cuda::Stream stream;
  cuda::DeviceBuffer buffer;
  explicit Gpu(int64_t bytes) : buffer(bytes) {}
};

class Pair {
 public:
  Pair(const Nccl& nccl, int64_t bytes) : nccl_(nccl) {
    for (int i = 0; i < kGpus; ++i) {
      cuda::use_device(i);
      gpus_.push_back(std::make_unique<Gpu>(bytes));
      cuda::fill_zero(gpus_.back()->buffer.data(), bytes, gpus_.back()->stream.handle());
      gpus_.back()->stream.synchronize();
      buffers_.push_back(gpus_.back()->buffer.data());
      streams_.push_back(gpus_.back()->stream.handle());
    }
    cuda::use_device(0);
    communicators_ = nccl.start(kGpus);
  }
  ~Pair() { nccl_.stop(communicators_); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  double microseconds(int64_t count, NcclType type) {
    const double seconds = stream_seconds(gpus_[0]->stream, [&] {
      for (int i = 0; i < kReductions; ++i) reduce(count, type);
    });
    gpus_[1]->stream.synchronize();
    return seconds * 1e6 / kReductions;
  }

  // 1 on one device and 2 on the other must be 3 on both. Words as the type stores them.
  std::string compare(int64_t count, NcclType type) {
    const bool half = type == NcclType::kBfloat16;
    constexpr std::array<uint32_t, 3> kFloat = {0x3f800000u, 0x40000000u, 0x40400000u};
    const int64_t words = half ? count / 2 : count;
    const cuda::PinnedBuffer host(words * 4);
    const auto word = [&](size_t value) { return half ? (kFloat[value] >> 16) * 0x10001u : kFloat[value]; };
    for (size_t i = 0; i < gpus_.size(); ++i) {
      std::fill_n(host.as_host<uint32_t>(), words, word(i));
      cuda::copy_to_device(buffers_[i], host.host(), words * 4, streams_[i]);
      gpus_[i]->stream.synchronize();
    }
    reduce(count, type);
    for (size_t i = 0; i < gpus_.size(); ++i) {
      cuda::copy_to_host(host.host(), buffers_[i], words * 4, streams_[i]);
      gpus_[i]->stream.synchronize();
      for (int64_t at = 0; at < words; ++at) {
        if (host.as_host<uint32_t>()[at] != word(2)) {
          return "word " + std::to_string(at) + " on device " + std::to_string(i) + ", 1 + 2 is not 3";
        }
      }
    }
    return {};
  }

 private:
  void reduce(int64_t count, NcclType type) {
    nccl_.all_reduce(communicators_, buffers_, streams_, static_cast<size_t>(count), type);
  }

  const Nccl& nccl_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<void*> buffers_;
  std::vector<cuda::StreamHandle> streams_;
  std::vector<NcclCommunicator*> communicators_;
};

class AllreduceProbe final : public GpuProbe {
 public:
  AllreduceProbe() : GpuProbe(kAllreduceText) {}

  std::vector<Samples> run(ProbeContext& context) override {
    require_applies(context);
    mismatch_.clear();
    const int64_t hidden = context.model.weights != nullptr ? context.model.weights->geometry.hidden : kDefaultHidden;
    const Nccl nccl;
    Pair pair(nccl, hidden * context.base.max_batch * 4);
    std::vector<int> batches = {1};
    if (context.base.max_batch > 1) batches.push_back(context.base.max_batch);
    std::vector<Series> series;
    for (const int tokens : batches) {
      for (const NcclType type : {NcclType::kBfloat16, NcclType::kFloat32}) {
        const bool half = type == NcclType::kBfloat16;
        Series one;
        one.samples.name = std::string(half ? "bf16" : "fp32") + ".tokens=" + std::to_string(tokens);
        one.samples.unit = "us";
        one.samples.at = {{"gpus", kGpus},
                          {"tokens", tokens},
                          {"bytes", static_cast<double>(hidden * tokens * (half ? 2 : 4))},
                          {"nccl_version", nccl.version()}};
        one.sample = [&pair, count = hidden * tokens, type] { return pair.microseconds(count, type); };
        series.push_back(std::move(one));
      }
    }
    measure(series, measure_options(context, 1));
    for (const NcclType type : {NcclType::kBfloat16, NcclType::kFloat32}) {
      if (mismatch_.empty()) mismatch_ = pair.compare(hidden, type);
    }
    return samples_of(series);
  }

 private:
  Applies applies_on_gpu(const ProbeContext&) const override {
    const int gpus = cuda::device_count();
    if (gpus < kGpus) return {false, "needs two GPUs, there is " + std::to_string(gpus)};
    const Nccl nccl;
    return {nccl.found(), nccl.reason()};
  }
};

}  // namespace

std::unique_ptr<Probe> make_allreduce_probe() { return std::make_unique<AllreduceProbe>(); }

}  // namespace ft
