// The CUDA runtime as owners: errors become ft::Error, handles are freed by their objects. No CUDA header is needed to
// include this, so the engine, the probes and the tests compile with the host compiler alone.
//
// Thread rule: each object is used by one thread at a time; PinnedBuffer's memory is shared with the device by design.
// Nothing here is called while a step runs, except Graph::launch and Stream::idle, which do not synchronize.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace ft::cuda {

using StreamHandle = CUstream_st*;

// Devices that the driver offers; 0 when there is no driver or no device, and why in `reason`.
int device_count(std::string* reason = nullptr);
// The device that all of this process uses. Throws Error(kFailed) saying what is missing.
void use_device(int index);

struct DeviceFacts {
  std::string name, uuid;      // "NVIDIA H200", "GPU-xxxxxxxx-..."
  std::string driver;          // "580.159.04"; empty when NVML is not there
  int compute_capability = 0;  // 90
  int multiprocessors = 0;
  int64_t memory_bytes = 0, free_bytes = 0;
  int64_t l2_bytes = 0;
  int link_generation_max = 0, link_width_max = 0;  // 0: not known
};
DeviceFacts device_facts(int index);
// DeviceFacts::uuid alone: without memory of its own on the device, which asking for free memory takes.
std::string device_uuid(int index);
// As it is now; under load it is what the link trains to. 0: not known (no NVML).
struct LinkState {
  int generation = 0, width = 0;
};
LinkState link_state(int index);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  StreamHandle handle() const { return handle_; }
  void synchronize();  // throws what went wrong on the device
  // True: nothing is left to do. Throws what went wrong on the device. Does not wait.
  bool idle() const;

 private:
  StreamHandle handle_ = nullptr;
};

class Event {
 public:
  explicit Event(bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(StreamHandle stream);
  void make_wait(StreamHandle stream) const;  // the stream goes on after the event; inside a capture, an edge
  void synchronize();
  double seconds_since(const Event& earlier) const;  // both timed and passed

 private:
  CUevent_st* handle_ = nullptr;
};

// Device memory. Contents are undefined at first. Throws Error(kFailed) with the size and what is free.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Host memory that the device reads and writes in place. Zeroed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  std::byte* host() const { return host_; }
  std::byte* device() const { return device_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as_host() const {
    return reinterpret_cast<T*>(host_);
  }
  template <class T>
  T* as_device() const {
    return reinterpret_cast<T*>(device_);
  }

 private:
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  int64_t bytes_ = 0;
};

// Makes memory that somebody else owns readable by the device in place (banks: touched and filled before, since pages
// cannot become huge afterwards), in pieces of at most kMaxRegisterBytes. Unregisters at the end of its life.
// REQUIRES page-aligned begin. Throws Error(kFailed) with the limit (ulimit -l) when the driver refuses.
inline constexpr int64_t kMaxRegisterBytes = int64_t{16} << 30;
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  RegisteredMemory(const std::byte* begin, int64_t bytes);
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  // What kernels read. One address range: with unified addressing it is the host's own.
  const std::byte* device() const { return device_; }
  const std::byte* begin() const { return begin_; }
  int64_t bytes() const { return bytes_; }
  // Copies [offset, offset + bytes) to device memory by the copy engine.
  void copy_to_device(void* target, int64_t offset, int64_t bytes, StreamHandle stream) const;

 private:
  const std::byte* begin_ = nullptr;
  const std::byte* device_ = nullptr;
  int64_t bytes_ = 0;
};

// Copies to device memory from memory that is registered in pieces from `begin` on, by the copy engine, which refuses a
// range that lies in two of them (kernels do not mind): such a range goes as two copies.
void copy_from_pieces(void* target, const std::byte* source, const std::byte* begin, int64_t bytes,
                      StreamHandle stream);

// Copies in stream order; host sides must be pinned or registered for the copy to be asynchronous.
void copy_to_device(void* target, const void* source, int64_t bytes, StreamHandle stream);
void copy_to_host(void* target, const void* source, int64_t bytes, StreamHandle stream);
void copy_on_device(void* target, const void* source, int64_t bytes, StreamHandle stream);
void fill_zero(void* target, int64_t bytes, StreamHandle stream);

// What a stream was asked to do between begin_capture and end, replayed by one launch. Streams joined by events during
// the capture are part of it.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  explicit operator bool() const { return handle_ != nullptr; }
  void launch(StreamHandle stream) const;
  int64_t nodes() const { return nodes_; }

 private:
  friend class GraphCapture;
  CUgraphExec_st* handle_ = nullptr;
  int64_t nodes_ = 0;
};

class GraphCapture {
 public:
  explicit GraphCapture(StreamHandle stream);
  ~GraphCapture();  // abandons a capture that was not ended
  Graph end();

 private:
  StreamHandle stream_ = nullptr;
  bool ended_ = false;
};

}  // namespace ft::cuda
