// Which host, build and model a profile is for: plain data, and its comparison. Collected elsewhere (kernels/host,
// build_info, engine/model), joined by the mains.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ft {

struct HostIdentity {
  std::string cpu_model;
  std::string isa;
  int cores = 0;
  int affinity_cores = 0;
  std::optional<double> quota_cores;
  int numa_nodes = 0;
  int64_t memory_bytes = 0;                              // compared with 2 % tolerance: kernels reserve differently
  std::string gpu_uuid, gpu_name, gpu_driver, gpu_link;  // empty without a GPU
};

struct BuildIdentity {
  std::string version;
  std::string compiler;
  std::string code_hash;  // over the sources of kernels/ and engine/
};

struct ModelIdentity {
  std::string config_hash;
  // Both are empty with synthetic weights. index_hash is of the layout: a checkpoint with other weights in the same
  // tensors has the same. data_sample_hash is of samples of the data (engine/model/checkpoint.h): other weights differ
  // in it, except where a change of a few tensors meets none of the samples. Neither says that a file is intact.
  std::string index_hash, data_sample_hash;
  std::string family;
  std::string formats;  // "experts nvfp4, dense bf16"
  std::string weights;  // "checkpoint" or "synthetic:SEED"
};

struct Identity {
  HostIdentity host;
  BuildIdentity build;
  ModelIdentity model;
};

// One field of both, as text; empty: none.
struct IdentityField {
  std::string field, profile_value, machine_value;  // field: "host.cpu_model"
  bool same = false;                                // by the rules of a start: memory within 2 %, quotas within 0.01
};
std::vector<IdentityField> identity_fields(const Identity& profile, const Identity& machine);  // all of them

struct IdentityDifference {
  std::string field, profile_value, machine_value;
};
std::vector<IdentityDifference> compare_identity(const Identity& profile, const Identity& machine);

// Throws Error(kUsage) naming every differing field that is not in `accepted`; an accepted name that is no field, or
// that does not differ, is an error too.
void require_identity(const Identity& profile, const Identity& machine, const std::vector<std::string>& accepted);

}  // namespace ft
