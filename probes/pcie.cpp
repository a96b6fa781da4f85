// The two link probes of a GPU. This build has no CUDA device, so both say that they do not apply.
#include "kernels/base/error.h"
#include "probes/probe.h"

namespace ft {
namespace {

class PcieProbe final : public Probe {
 public:
  PcieProbe(std::string_view id, std::string_view measures) : id_(id), measures_(measures) {}
  std::string_view id() const override { return id_; }
  std::string_view measures() const override { return measures_; }
  std::string_view unit() const override { return "GB/s"; }
  Applies applies(const ProbeContext& context) const override {
    if (context.base.device == Device::kHost) {
      return {false, "the host device has no PCIe link: its copy thread is measured by layer_sweep and overlap"};
    }
    return {false, "this build has no CUDA device"};
  }
  std::vector<Samples> run(ProbeContext& context) override { refuse(context); }
  void verify(ProbeContext& context) override { refuse(context); }

 private:
  [[noreturn]] void refuse(const ProbeContext& context) const {
    throw Error(ErrorKind::kFailed,
                {.what = "probe does not apply: " + applies(context).reason, .value = std::string(id_)});
  }

  std::string_view id_, measures_;
};

}  // namespace

std::unique_ptr<Probe> make_pcie_linear_probe() {
  return std::make_unique<PcieProbe>("pcie_linear", "Pinned copies between host and GPU, by size and direction.");
}

std::unique_ptr<Probe> make_pcie_gather_probe() {
  return std::make_unique<PcieProbe>("pcie_gather", "Whole expert blobs from scattered host addresses to the GPU.");
}

}  // namespace ft
