// Developer bench: one decode step of attention at 32768 positions, head_dim 128, for 1 and 8 query heads of one
// key/value head, over several key/value heads so that nothing stays in the cache. Prints GB/s of keys and values next
// to a plain read of the same bytes (mem_read), rounds interleaved, best of all rounds.
//
// One core of a 2-core Sapphire Rapids virtual machine that eight other builds shared (read: lower bounds; the ratio is
// of interleaved rounds): plain read 4.7 to 7.8 GB/s; share of it
//                 1 head        8 heads (one walk for all)
//   avx2          0.46 to 0.63  0.23
//   avx512        0.54 to 0.63  0.31 to 0.38
//   avx512_bf16   0.68 to 0.70  0.34 to 0.38
// 8 heads in one call are 4 times the speed of 8 calls. What was tried: fetching the values of a chunk ahead while its
// keys are scored, 1.3x, kept; keys 4 to 64 rows ahead, no difference; a call in the loop of a block (a memcpy that the
// compiler made of the tail) put all accumulators on the stack, 2x to 3x.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "kernels/host/isa.h"
#include "kernels/registry.h"

namespace {

using namespace ft;

constexpr int64_t kPositions = 32768, kHeadDim = 128, kKvHeads = 8, kRounds = 15;

double seconds(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void bench(const KernelDesc& kernel, int64_t heads, std::vector<bf16>& k, std::vector<bf16>& v,
           const KernelDesc& read) {
  std::vector<float> q(static_cast<size_t>(heads * kHeadDim), 0.5f), out(q.size());
  const int64_t bytes = 2 * kKvHeads * kPositions * kHeadDim * static_cast<int64_t>(sizeof(bf16));
  double best = 1e9, best_read = 1e9;
  for (int64_t round = 0; round < kRounds; ++round) {
    best = std::min(best, seconds([&] {
                      for (int64_t h = 0; h < kKvHeads; ++h) {
                        const int64_t from = h * kPositions * kHeadDim;
                        std::get<AttentionFn>(kernel.fn)({q.data(), k.data() + from, v.data() + from, kHeadDim, 0,
                                                          kPositions, kHeadDim, 0.0884f, out.data(), heads});
                      }
                    }));
    best_read =
        std::min(best_read, seconds([&] {
                   for (std::vector<bf16>* part : {&k, &v}) {
                     MemReadArgs args{reinterpret_cast<const std::byte*>(part->data()), bytes / 2 / 64 * 64 - 64, 0};
                     args.data += (64 - reinterpret_cast<uintptr_t>(args.data) % 64) % 64;
                     std::get<MemReadFn>(read.fn)(args);
                     if (args.checksum == 1) std::puts("");  // keeps the read
                   }
                 }));
  }
  std::printf("%-24s %lld heads: %6.2f GB/s, plain read %6.2f GB/s, ratio %.2f\n", std::string(kernel.name).c_str(),
              static_cast<long long>(heads), static_cast<double>(bytes) / best * 1e-9,
              static_cast<double>(bytes) / best_read * 1e-9, best_read / best);
}

}  // namespace

int main() {
  Random random(1);
  std::vector<bf16> k(kKvHeads * kPositions * kHeadDim), v(k.size());
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = to_bf16(static_cast<float>(random.uniform() - 0.5));
    v[i] = to_bf16(static_cast<float>(random.uniform() - 0.5));
  }
  const KernelDesc* read = find_kernel(OpId::kMemRead, kNoFormat, detect_isa());
  for (const KernelDesc& kernel : kernel_registry()) {
    if (kernel.op != OpId::kAttention || kernel.isa == Isa::kScalar || kernel.isa > detect_isa()) continue;
    for (const int64_t heads : {1, 8}) bench(kernel, heads, k, v, *read);
  }
  return 0;
}
