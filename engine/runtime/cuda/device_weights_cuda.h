// DeviceWeights, for the CUDA backend. See device_weights.h.
#pragma once

#include <vector>

#include "engine/runtime/cuda/device_weights.h"
#include "kernels/cuda/device.h"

namespace ft {

class DeviceWeights {
 public:
  DeviceWeights(const ModelWeights& weights, const ProgressFn& progress,
                std::shared_ptr<const cuda::RegisteredMemory> registered);

  // Packed matrices, vectors and tables as device pointers.
  const PackedMatrix& operator[](MatrixId id) const { return matrices_[static_cast<size_t>(id.index)]; }
  const float* operator[](VectorId id) const { return vectors_[static_cast<size_t>(id.index)]; }
  const EmbeddingTable& operator[](TableId id) const { return tables_[static_cast<size_t>(id.index)]; }
  const int32_t* operator[](IndexTableId id) const { return index_tables_[static_cast<size_t>(id.index)]; }
  // Expert 0 of a layer in its bank, as kernels read it; expert e is e * layout.bytes further.
  const std::byte* bank(int layer) const;
  const std::byte* banks_begin() const { return banks_->device(); }  // RegisteredMemory's
  // Blobs of experts expert .. expert + count - 1 of a layer, which follow each other, by the copy engine.
  void copy_experts(std::byte* target, int layer, int expert, int64_t count, cuda::StreamHandle stream) const;
  void copy_expert(std::byte* target, int layer, int expert, cuda::StreamHandle stream) const {
    copy_experts(target, layer, expert, 1, stream);
  }
  const ModelWeights& host() const { return host_; }
  double register_seconds() const { return register_seconds_; }

 private:
  std::byte* take(int64_t bytes);

  const ModelWeights& host_;
  cuda::DeviceBuffer memory_;
  int64_t used_ = 0;
  std::vector<PackedMatrix> matrices_;
  std::vector<const float*> vectors_;
  std::vector<EmbeddingTable> tables_;
  std::vector<const int32_t*> index_tables_;
  std::shared_ptr<const cuda::RegisteredMemory> banks_;
  double register_seconds_ = 0;
};

}  // namespace ft
