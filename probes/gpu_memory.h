// Memory for the probes of a GPU: host memory locked the way expert banks are, device memory with a host mirror, and
// the time of what a stream was given.
#pragma once

#include <cstdint>

#include "kernels/base/error.h"
#include "kernels/cuda/device.h"
#include "kernels/host/host_memory.h"

namespace ft {

// Huge pages asked for, touched, then registered: as engine/runtime/cuda/device_weights.h does with the banks.
struct LockedMemory {
  HostBuffer memory;
  cuda::RegisteredMemory registered;  // destroyed first

  explicit LockedMemory(int64_t bytes, WorkerPool* pool)
      : memory(bytes, pool), registered(memory.data(), memory.bytes()) {}
  const std::byte* device() const { return registered.device(); }
};

// Small lists: take() gives device addresses, host() the same place in a locked mirror, upload() copies all of it.
class MirroredMemory {
 public:
  explicit MirroredMemory(int64_t bytes) : device_(bytes), mirror_(bytes) {}
  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kAlign = 256;
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
    FT_CHECK(used_ <= device_.bytes());
    return reinterpret_cast<T*>(device_.data() + at);
  }
  template <class T>
  T* host(T* device) const {
    return reinterpret_cast<T*>(mirror_.host() + (reinterpret_cast<const std::byte*>(device) - device_.data()));
  }
  void upload(cuda::Stream& stream) const {
    cuda::copy_to_device(device_.data(), mirror_.host(), device_.bytes(), stream.handle());
    stream.synchronize();
  }

 private:
  cuda::DeviceBuffer device_;
  cuda::PinnedBuffer mirror_;
  int64_t used_ = 0;
};

// Seconds that the stream needs for what f() gives it.
template <class F>
double stream_seconds(cuda::Stream& stream, F&& f) {
  cuda::Event begin(true), end(true);
  begin.record(stream.handle());
  f();
  end.record(stream.handle());
  stream.synchronize();
  return end.seconds_since(begin);
}

}  // namespace ft
