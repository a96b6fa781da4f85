// What only the driver's management library (NVML) knows about a device. The library comes with the driver; without it
// every field stays unknown.
//
// Thread rule: any thread.
#pragma once

#include <string>

namespace ft::cuda {

struct NvmlFacts {
  std::string driver;                       // "580.159.04"; empty: not known
  int link_generation = 0, link_width = 0;  // now; 0: not known
  int link_generation_max = 0, link_width_max = 0;
};
// uuid as nvidia-smi prints it: "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". Does not throw.
NvmlFacts nvml_facts(const std::string& uuid);

}  // namespace ft::cuda
