// The few functions of NCCL that the allreduce probe calls, found at run time: no header and no link-time dependency.
//
// Prototypes as in NVIDIA's "NCCL API" reference, version 2; 0 is success.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"

namespace ft {

struct NcclCommunicator;

enum class NcclType : int { kFloat32 = 7, kBfloat16 = 9 };

class Nccl {
 public:
  // Looks where the build found it, then among the system's libraries, the CUDA toolkit's, and the installed Python
  // packages'. found() tells whether there is one.
  Nccl();
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  bool found() const { return library_ != nullptr; }
  const std::string& reason() const { return reason_; }  // why not, else the file and its version
  int version() const { return version_; }               // 22005: 2.20.5

  // One communicator per device 0 .. devices - 1 of this process. Throws Error(kFailed).
  std::vector<NcclCommunicator*> start(int devices) const;
  void stop(const std::vector<NcclCommunicator*>& all) const;
  // Sums buffers[i] of all devices into each of them, in place, in stream order. Throws Error(kFailed).
  void all_reduce(const std::vector<NcclCommunicator*>& all, const std::vector<void*>& buffers,
                  const std::vector<cuda::StreamHandle>& streams, size_t count, NcclType type) const;

 private:
  void* function(const char* name) const;
  void check(int code, const char* what) const;

  void* library_ = nullptr;
  std::string reason_;
  int version_ = 0;
};

}  // namespace ft
