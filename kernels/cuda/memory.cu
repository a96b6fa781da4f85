#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/cuda/error.cuh"

namespace ft::cuda {
namespace {

std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Unregisters what register_pieces registered of [begin, begin + bytes).
void unregister_pieces(const std::byte* begin, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kMaxRegisterBytes) {
    cudaHostUnregister(const_cast<std::byte*>(begin) + at);
  }
}

[[noreturn]] void throw_register(cudaError_t code, int64_t at, int64_t bytes) {
  throw_cuda(
      code, "cannot lock host memory for the CUDA device: " + mebibytes(at) + " of " + mebibytes(bytes) + " are locked",
      "raise the limit of locked memory (ulimit -l, in KiB; ulimit -l unlimited), or keep less in host memory");
}

// Returns the device's address of `begin`.
const std::byte* register_pieces(const std::byte* begin, int64_t bytes) {
  const std::byte* device = nullptr;
  for (int64_t at = 0; at < bytes; at += kMaxRegisterBytes) {
    std::byte* piece = const_cast<std::byte*>(begin) + at;
    const int64_t piece_bytes = std::min(kMaxRegisterBytes, bytes - at);
    cudaError_t code =
        cudaHostRegister(piece, static_cast<size_t>(piece_bytes), cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (code != cudaSuccess) {
      unregister_pieces(begin, at);
      throw_register(code, at, bytes);
    }
    void* address = nullptr;
    code = cudaHostGetDevicePointer(&address, piece, 0);
    if (at == 0) device = static_cast<const std::byte*>(address);
    if (code == cudaSuccess && address != device + at) code = cudaErrorNotMapped;
    if (code != cudaSuccess) {
      unregister_pieces(begin, at + piece_bytes);
      throw_cuda(code, "locked host memory is not one range for the CUDA device", "use --device host");
    }
  }
  return device;
}

}  // namespace

DeviceBuffer::DeviceBuffer(int64_t bytes) : bytes_(bytes) {
  FT_CHECK(bytes >= 0);
  if (bytes == 0) return;
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (code != cudaSuccess) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw_cuda(code,
               "cannot allocate " + mebibytes(bytes) + " of device memory, " +
                   mebibytes(static_cast<int64_t>(free_bytes)) + " of " + mebibytes(static_cast<int64_t>(total_bytes)) +
                   " are free",
               "lower the number of slots or the context, or stop what else uses the device");
  }
  data_ = static_cast<std::byte*>(data);
}

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::PinnedBuffer(int64_t bytes) : bytes_(bytes) {
  FT_CHECK(bytes >= 0);
  if (bytes == 0) return;
  void* host = nullptr;
  const cudaError_t code =
      cudaHostAlloc(&host, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped);
  if (code != cudaSuccess) {
    throw_cuda(code, "cannot allocate " + mebibytes(bytes) + " of pinned host memory",
               "raise the limit of locked memory (ulimit -l), or free host memory");
  }
  host_ = static_cast<std::byte*>(host);
  std::memset(host_, 0, static_cast<size_t>(bytes));
  void* device = nullptr;
  const cudaError_t mapped = cudaHostGetDevicePointer(&device, host, 0);
  if (mapped != cudaSuccess) {
    cudaFreeHost(host);
    throw_cuda(mapped, "the CUDA device does not see pinned host memory", "use --device host");
  }
  device_ = static_cast<std::byte*>(device);
}

PinnedBuffer::~PinnedBuffer() { cudaFreeHost(host_); }

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)),
      device_(std::exchange(other.device_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(host_, other.host_);
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RegisteredMemory::RegisteredMemory(const std::byte* begin, int64_t bytes) {
  FT_CHECK(bytes >= 0 && reinterpret_cast<uintptr_t>(begin) % 4096 == 0);
  if (bytes == 0) return;
  device_ = register_pieces(begin, bytes);
  begin_ = begin;
  bytes_ = bytes;
}

RegisteredMemory::~RegisteredMemory() { unregister_pieces(begin_, bytes_); }

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)),
      device_(std::exchange(other.device_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void RegisteredMemory::copy_to_device(void* target, int64_t offset, int64_t bytes, StreamHandle stream) const {
  FT_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= bytes_);
  copy_from_pieces(target, begin_ + offset, begin_, bytes, stream);
}

void copy_from_pieces(void* target, const std::byte* source, const std::byte* begin, int64_t bytes,
                      StreamHandle stream) {
  auto* to = static_cast<std::byte*>(target);
  while (bytes > 0) {
    const int64_t part = std::min(bytes, kMaxRegisterBytes - (source - begin) % kMaxRegisterBytes);
    copy_to_device(to, source, part, stream);
    to += part;
    source += part;
    bytes -= part;
  }
}

void copy_to_device(void* target, const void* source, int64_t bytes, StreamHandle stream) {
  check(cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
        "cannot copy to the CUDA device");
}

void copy_to_host(void* target, const void* source, int64_t bytes, StreamHandle stream) {
  check(cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream),
        "cannot copy from the CUDA device");
}

void copy_on_device(void* target, const void* source, int64_t bytes, StreamHandle stream) {
  check(cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
        "cannot copy on the CUDA device");
}

void fill_zero(void* target, int64_t bytes, StreamHandle stream) {
  check(cudaMemsetAsync(target, 0, static_cast<size_t>(bytes), stream), "cannot clear memory of the CUDA device");
}

}  // namespace ft::cuda
