// Large host buffers: anonymous mappings with huge-page advice, touched in parallel. Owner unmaps. A child that this
// process forks has none of those that hold a huge page or more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ft {

class WorkerPool;

class HostBuffer {
 public:
  HostBuffer() = default;
  // `bytes` is rounded up to the page size; 0 gives an empty buffer. Contents are zero. With a pool the first touch is
  // parallel. Throws Error(kFailed) with the size and what is available when the mapping fails.
  explicit HostBuffer(int64_t bytes, WorkerPool* pool = nullptr);
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A file mapped read-only, private, and, if keep_open, open for reading. Throws Error naming the path.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path, bool keep_open = true);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Has the kernel begin to read a part of bytes(), so that many parts are read from a disk at once. Only a hint.
  void will_read(std::span<const std::byte> part) const;
  // Copies [offset, offset + to.size()) by reading, not through the mapping: for bulk data, which then costs no page
  // faults and no resident memory, and where a file that was cut off or a broken disk is an Error instead of a signal.
  // Of a file that is not kept open through the mapping all the same. REQUIRES the range inside bytes(). Any thread.
  void read(size_t offset, std::span<std::byte> to) const;
  int64_t modified_ns() const { return modified_ns_; }  // when it was opened, since the epoch

 private:
  [[noreturn]] void fail(std::string what, int code) const;

  std::string path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_ns_ = 0;
};

// What the kernel granted: "2 MiB pages: 93 %" style facts for the profile's conditions.
struct PageReport {
  int64_t bytes = 0;
  int64_t huge_bytes = 0;
  std::string huge_page_mode;
};
PageReport page_report(const HostBuffer& buffer);

}  // namespace ft
