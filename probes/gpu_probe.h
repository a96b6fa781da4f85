// What the probes of a GPU's link and hand-over have in common: they do not apply on the host device, and a build
// without CUDA still names them.
#pragma once

#include <string_view>

#include "probes/probe.h"

namespace ft {

struct GpuProbeText {
  std::string_view id, measures, unit;
  std::string_view on_host;  // why it is skipped there
};

inline constexpr GpuProbeText kPcieLinearText = {
    "pcie_linear", "Copies between locked host memory and the GPU, by size and direction, and both at once.", "GB/s",
    "the host device has no PCIe link: its copy thread is measured by layer_sweep and overlap"};
inline constexpr GpuProbeText kPcieGatherText = {
    "pcie_gather", "Whole expert blobs from scattered host addresses to the GPU, by its cores and by its copy engine.",
    "GB/s", "the host device has no PCIe link: its copy thread is measured by layer_sweep and overlap"};
inline constexpr GpuProbeText kHandshakeText = {
    "handshake", "A layer's hand-over to the CPU and back when the CPU has nothing to compute.", "us",
    "on the host device the CPU computes the layer itself"};
inline constexpr GpuProbeText kAllreduceText = {
    "allreduce", "One token's and one batch's hidden state summed over two GPUs by NCCL.", "us",
    "the host device is one device"};
inline constexpr GpuProbeText kBankText = {
    "bank", "Host memory for experts from its allocation until the GPU can read it, phase by phase.", "GB/s",
    "on the host device expert banks are not locked"};

class GpuProbe : public Probe {
 public:
  explicit GpuProbe(const GpuProbeText& text) : text_(text) {}
  std::string_view id() const final { return text_.id; }
  std::string_view measures() const final { return text_.measures; }
  std::string_view unit() const final { return text_.unit; }
  // Host device: no. Else what applies_on_gpu says.
  Applies applies(const ProbeContext& context) const final;
  void verify(ProbeContext& context) override;  // throws when mismatch_ is not empty

 protected:
  virtual Applies applies_on_gpu(const ProbeContext& context) const = 0;
  void require_applies(const ProbeContext& context) const;  // throws Error(kFailed) with the reason

  std::string mismatch_;  // set by run()

 private:
  GpuProbeText text_;
};

}  // namespace ft
