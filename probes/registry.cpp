#include "probes/probe.h"

namespace ft {

std::vector<std::unique_ptr<Probe>> make_probes() {
  std::vector<std::unique_ptr<Probe>> probes;
  probes.push_back(make_stream_probe());
  probes.push_back(make_pcie_linear_probe());
  probes.push_back(make_pcie_gather_probe());
  probes.push_back(make_handshake_probe());
  probes.push_back(make_allreduce_probe());
  probes.push_back(make_bank_probe());
  probes.push_back(make_expert_single_probe());
  probes.push_back(make_layer_sweep_probe());
  probes.push_back(make_dense_probe());
  probes.push_back(make_host_rows_probe());
  probes.push_back(make_overlap_probe());
  probes.push_back(make_decode_probe());
  return probes;
}

}  // namespace ft
