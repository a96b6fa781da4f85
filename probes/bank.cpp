// Memory for expert banks from nothing until the GPU reads it in place, as loading a model does it: a mapping with
// huge-page advice, filled in parallel by what touches it first, then locked. Beside that the first touch alone. Tens
// of GB once each: a second round costs as much again and tells the same.
#include <algorithm>
#include <atomic>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/base/size_text.h"
#include "kernels/host/worker_pool.h"
#include "probes/gpu_memory.h"
#include "probes/gpu_probe.h"
#include "probes/measure.h"

namespace ft {
namespace {

constexpr double kDefaultBytes = 48e9;
constexpr double kShareOfMemory = 0.5;  // of what is available, without --bank-gb
constexpr double kMostOfMemory = 0.9;   // with it
constexpr int64_t kPieceBytes = int64_t{2} << 20;
constexpr int kComparedPieces = 64;

uint64_t word_of(int64_t i) { return mix64(static_cast<uint64_t>(i)); }

void fill(HostBuffer& buffer, WorkerPool& pool) {
  std::atomic<int64_t> next{0};
  const int64_t bytes = buffer.bytes(), pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  auto* words = buffer.as<uint64_t>();
  pool.run([&](int, int) {
    for (int64_t piece = next++; piece < pieces; piece = next++) {
      const int64_t begin = piece * kPieceBytes / 8, end = std::min(bytes, (piece + 1) * kPieceBytes) / 8;
      for (int64_t i = begin; i < end; ++i) words[i] = word_of(i);
    }
  });
}

// Pieces here and there as the device sees them.
std::string compare(const cuda::RegisteredMemory& memory, int64_t bytes) {
  constexpr int64_t kBytes = 4096;
  cuda::Stream stream;
  const cuda::DeviceBuffer device(kBytes);
  const cuda::PinnedBuffer back(kBytes);
  Random random(3);
  for (int i = 0; i < kComparedPieces; ++i) {
    const int64_t offset = static_cast<int64_t>(random.below(static_cast<uint64_t>(bytes / kBytes))) * kBytes;
    memory.copy_to_device(device.data(), offset, kBytes, stream.handle());
    cuda::copy_to_host(back.host(), device.data(), kBytes, stream.handle());
    stream.synchronize();
    for (int64_t word = 0; word < kBytes / 8; ++word) {
      if (back.as_host<uint64_t>()[word] != word_of(offset / 8 + word))
        return "byte " + std::to_string(offset + 8 * word);
    }
  }
  return {};
}

class BankProbe final : public GpuProbe {
 public:
  BankProbe() : GpuProbe(kBankText) {}

  std::vector<Samples> run(ProbeContext& context) override {
    require_applies(context);
    mismatch_.clear();
    WorkerPool pool({.threads = context.cpus->usable_cores, .cpus = context.cpus->pinning});
    const int64_t bytes = bank_bytes(context);
    std::vector<Samples> result;
    const auto add = [&](const char* name, double seconds, int64_t huge_bytes) {
      Samples one;
      one.name = std::string(name) + ".threads=" + std::to_string(pool.threads());
      one.unit = "GB/s";
      one.values = {static_cast<double>(bytes) / seconds * 1e-9};
      one.stop_reason = "samples";
      one.at = {{"bytes", static_cast<double>(bytes)},
                {"threads", pool.threads()},
                {"seconds", seconds},
                {"huge_share", static_cast<double>(huge_bytes) / static_cast<double>(bytes)}};
      result.push_back(std::move(one));
    };
    {
      const double begin = now_seconds();
      const HostBuffer touched(bytes, &pool);
      add("touch_alone", now_seconds() - begin, page_report(touched).huge_bytes);
    }
    if (context.interrupted && context.interrupted()) return result;
    const double begin = now_seconds();
    HostBuffer buffer(bytes);
    fill(buffer, pool);
    const double filled = now_seconds();
    const cuda::RegisteredMemory registered(buffer.data(), buffer.bytes());
    const double ready = now_seconds();
    const int64_t huge_bytes = page_report(buffer).huge_bytes;
    add("fill", filled - begin, huge_bytes);
    add("register", ready - filled, huge_bytes);
    add("ready", ready - begin, huge_bytes);
    mismatch_ = compare(registered, bytes);
    return result;
  }

 private:
  Applies applies_on_gpu(const ProbeContext& context) const override {
    if (context.model.weights != nullptr && context.bank_gb == 0) {
      return {false, "the model's own banks were timed when they were loaded; ft-probe --bank-gb asks for others"};
    }
    return {};
  }

  static int64_t bank_bytes(const ProbeContext& context) {
    const int64_t available = detect_memory_budget().available_bytes;
    const double most = kMostOfMemory * static_cast<double>(available);
    double bytes = std::min(kDefaultBytes, kShareOfMemory * static_cast<double>(available));
    if (context.bank_gb > 0) bytes = context.bank_gb * 1e9;
    if (bytes > most) {
      throw Error(ErrorKind::kFailed, {.what = "not enough host memory for the probe bank",
                                       .value = size_text(context.bank_gb * 1e9),
                                       .allowed = "at most " + size_text(most),
                                       .action = "give a smaller --bank-gb"});
    }
    return std::max<int64_t>(static_cast<int64_t>(bytes) / kPieceBytes, 1) * kPieceBytes;
  }
};

}  // namespace

std::unique_ptr<Probe> make_bank_probe() { return std::make_unique<BankProbe>(); }

}  // namespace ft
