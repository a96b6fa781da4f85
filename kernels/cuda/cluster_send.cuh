// A cluster of blocks and its members' shared memory (PTX: mapa, st.async, barrier.cluster; from sm_90 on).
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace ft::cuda {

#if __CUDA_ARCH__ >= 900
// All threads of all blocks call both; what came before the one is seen after the other.
__device__ __forceinline__ void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The address that block `rank` of the cluster has for `address` of its own shared memory.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, uint32_t rank) {
  uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

// A barrier in shared memory that counts in `bytes` of send(), once.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Both addresses from address_in_block, of one block.
__device__ __forceinline__ void send(uint32_t to, float value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void wait_for_bytes(uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier)
      : "memory");
}
#endif

// As launch(), the grid's blocks in clusters of `cluster` neighbours in x.
template <class... Parameters, class... Args>
void launch_clusters(void (*kernel)(Parameters...), dim3 grid, unsigned cluster, unsigned threads, size_t shared_bytes,
                     StreamHandle stream, Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), "cannot launch clusters");
}

// As launch(), as one cluster of `blocks`.
template <class... Parameters, class... Args>
void launch_cluster(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t shared_bytes,
                    StreamHandle stream, Args&&... args) {
  launch_clusters(kernel, dim3(blocks), blocks, threads, shared_bytes, stream, std::forward<Args>(args)...);
}

}  // namespace ft::cuda
