// A checkpoint of a geometry with made-up weights, as NVIDIA's modelopt writes NVFP4: to time loading.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/host/worker_pool.h"
#include "tests/bench/geometry_case.h"

namespace ft::bench {

// Writes config.json, one safetensors file per layer and one for the rest, and the index, into a folder that it makes
// below `folder`; gives that folder. Throws Error(kFailed). REQUIRES an NVFP4 geometry.
struct MadeCheckpoint {
  std::string path;
  int64_t bytes = 0;  // of all safetensors files
};
MadeCheckpoint write_checkpoint(const GeometryCase& geometry, const std::string& folder, WorkerPool& pool);

}  // namespace ft::bench
