// The matrix rate of the vendor's library on the shapes of a layer's experts: cuBLAS, when the machine has it. Opened
// at run time, so that nothing of it is needed to build; the few declarations are those of its stable C interface.
#include <dlfcn.h>

#include <optional>
#include <vector>

#include "kernels/base/statistics.h"
#include "probes/gpu_memory.h"
#include "tests/bench/bench.h"

namespace ft::bench {
namespace {

// https://docs.nvidia.com/cuda/cublas: values of its enumerations.
constexpr int kTransposed = 1, kNotTransposed = 0, kBf16 = 14, kCompute32F = 68, kDefaultAlgorithm = -1;
constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so",
                                  "/usr/local/cuda/lib64/libcublas.so"};

using Handle = void*;
using Create = int (*)(Handle*);
using Destroy = int (*)(Handle);
using SetStream = int (*)(Handle, cuda::StreamHandle);
using GemmBatched = int (*)(Handle, int transposed_a, int transposed_b, int m, int n, int k, const void* alpha,
                            const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b, int ldb,
                            long long stride_b, const void* beta, void* c, int type_c, int ldc, long long stride_c,
                            int count, int compute, int algorithm);

class Cublas {
 public:
  explicit Cublas(cuda::Stream& stream) {
    for (const char* name : kNames) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library_ == nullptr) return;
    const auto create = function<Create>("cublasCreate_v2");
    const auto set_stream = function<SetStream>("cublasSetStream_v2");
    destroy_ = function<Destroy>("cublasDestroy_v2");
    gemm_ = function<GemmBatched>("cublasGemmStridedBatchedEx");
    if (create == nullptr || set_stream == nullptr || destroy_ == nullptr || gemm_ == nullptr) return;
    usable_ = create(&handle_) == 0 && set_stream(handle_, stream.handle()) == 0;
  }
  ~Cublas() {  // the library stays open: it may have threads of its own
    if (handle_ != nullptr) destroy_(handle_);
  }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  bool usable() const { return usable_; }

  // `count` products at once: y (tokens, rows) = x (tokens, cols) W^T, W (rows, cols), all bf16. False: refused.
  bool products(const std::byte* w, const std::byte* x, std::byte* y, int rows, int cols, int tokens, int count) {
    const float one = 1, zero = 0;
    return gemm_(handle_, kTransposed, kNotTransposed, rows, tokens, cols, &one, w, kBf16, cols,
                 static_cast<long long>(rows) * cols, x, kBf16, cols, static_cast<long long>(tokens) * cols, &zero, y,
                 kBf16, rows, static_cast<long long>(tokens) * rows, count, kCompute32F, kDefaultAlgorithm) == 0;
  }

 private:
  template <class F>
  F function(const char* name) const {
    return reinterpret_cast<F>(dlsym(library_, name));
  }
  void* library_ = nullptr;
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
  GemmBatched gemm_ = nullptr;
  bool usable_ = false;
};

}  // namespace

std::optional<double> vendor_expert_rate(const ExpertGeometry& expert, int64_t tokens) {
  constexpr int kSamples = 7, kDiscarded = 2;
  cuda::Stream stream;
  Cublas cublas(stream);
  if (!cublas.usable()) return std::nullopt;
  const auto hidden = static_cast<int>(expert.hidden), intermediate = static_cast<int>(expert.intermediate);
  const auto rows = static_cast<int>(std::max<int64_t>(1, tokens * expert.top_k / expert.experts));
  const int64_t weights = int64_t{2} * intermediate * hidden, widest = std::max<int64_t>(2 * intermediate, hidden);
  const cuda::DeviceBuffer w(2 * expert.experts * weights), x(2 * expert.experts * rows * widest),
      y(2 * expert.experts * rows * widest);
  for (const auto* buffer : {&w, &x}) cuda::fill_zero(buffer->data(), buffer->bytes(), stream.handle());
  std::vector<double> seconds;
  for (int i = 0; i < kSamples + kDiscarded; ++i) {
    bool fine = true;
    const double taken = stream_seconds(stream, [&] {
      fine = cublas.products(w.data(), x.data(), y.data(), 2 * intermediate, hidden, rows, expert.experts) &&
             cublas.products(w.data(), x.data(), y.data(), hidden, intermediate, rows, expert.experts);
    });
    if (!fine) return std::nullopt;
    if (i >= kDiscarded) seconds.push_back(taken);
  }
  return 2.0 * rows * expert.experts * (static_cast<double>(weights) + static_cast<double>(weights) / 2) /
         median(seconds);
}

}  // namespace ft::bench
