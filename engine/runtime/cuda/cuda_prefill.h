// Experts of a prefill chunk on the device: those in slots from there, the others streamed through staging buffers.
//
// A prompt touches most experts of a layer, so the slot table is neither asked nor changed. The copy engine brings
// groups of experts into one half of the staging memory while the other half is computed from; the host knows the
// choices (it has synchronized after the router), so copies are enqueued by address.
// Thread rule: one thread. Host synchronization between layers is allowed here, not in decode.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/experts/memory_plan.h"
#include "engine/runtime/cuda/cuda_moe.h"
#include "engine/runtime/expert_pairs.h"

namespace ft {

class CudaPrefill {
 public:
  CudaPrefill(const CudaBackendParts& parts, cuda::Stream& main, CudaMoe& moe);
  ~CudaPrefill();

  void begin_chunk();  // looks at what is in slots
  // host_ids: (tokens, top_k), the device's copy of which is call.ids.
  void layer(const CudaMoeCall& call, const int32_t* host_ids);

 private:
  struct Half {
    cuda::Event arrived, computed;
    bool used = false;
  };
  void stream_group(const CudaMoeCall& call, cuda::ExpertArgs& args, size_t begin, size_t end, size_t group);

  const DeviceWeights& weights_;
  const ExpertBank& bank_;
  cuda::Stream& main_;
  cuda::Stream copies_;
  CudaMoe& moe_;
  int top_k_ = 0;
  int64_t max_pairs_ = 0;
  ExpertPairs pairs_;
  const int32_t* slots_of_keys_ = nullptr;
  cuda::DeviceBuffer staging_;
  std::array<Half, 2> halves_;
  std::vector<int> streamed_;  // experts of the layer that are in no slot

  // One upload per layer: items, pairs, bounds of the groups.
  cuda::PinnedBuffer upload_host_;
  cuda::DeviceBuffer upload_, none_from_host_, merged_;
};

}  // namespace ft
