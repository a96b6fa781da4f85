// The probes of a GPU in a build without CUDA: named, described, and skipped with the reason.
#include "kernels/cuda/device.h"
#include "probes/gpu_probe.h"

namespace ft {
namespace {

class AbsentProbe final : public GpuProbe {
 public:
  using GpuProbe::GpuProbe;
  std::vector<Samples> run(ProbeContext& context) override {
    require_applies(context);
    return {};
  }

 private:
  Applies applies_on_gpu(const ProbeContext&) const override {
    std::string reason;
    cuda::device_count(&reason);
    return {false, reason};
  }
};

}  // namespace

std::unique_ptr<Probe> make_pcie_linear_probe() { return std::make_unique<AbsentProbe>(kPcieLinearText); }
std::unique_ptr<Probe> make_pcie_gather_probe() { return std::make_unique<AbsentProbe>(kPcieGatherText); }
std::unique_ptr<Probe> make_handshake_probe() { return std::make_unique<AbsentProbe>(kHandshakeText); }
std::unique_ptr<Probe> make_allreduce_probe() { return std::make_unique<AbsentProbe>(kAllreduceText); }
std::unique_ptr<Probe> make_bank_probe() { return std::make_unique<AbsentProbe>(kBankText); }

}  // namespace ft
