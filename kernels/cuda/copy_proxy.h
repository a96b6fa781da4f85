// The copy engine for copies that the device chooses. A graph's copy node cannot take an address from a kernel, so the
// launch that fetches posts its list in pinned memory (CopyPost in arrival.h), a host thread gives the copies to the
// copy engine on a stream of its own, and behind each blob sets its arrival counters. Same Fetch, same result as the
// gather.
//
// Thread rule: one thread owns the object; the proxy's own thread makes no call that synchronizes. It spins between
// begin() and end() (one core: part of the CPU budget) and sleeps on a futex otherwise.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/arrival.h"

namespace ft::cuda {

inline constexpr uint32_t kCopyLists = 4;  // posts that the host has not read yet; a power of two

// Pinned. The device writes posted, counts, pending, the lists and failed; the host taken (a list that was read may be
// written again) and broken.
struct CopyMailbox {
  alignas(128) uint32_t posted;
  int32_t count[kCopyLists];
  uint32_t* pending[kCopyLists];
  alignas(128) uint32_t taken;
  alignas(128) uint32_t broken;
  alignas(128) uint32_t failed;
};

class CopyProxy {
 public:
  // Uses the calling thread's device. max_copies: of one post. pieces: what all copies come from is registered in
  // pieces from here on (RegisteredMemory::device()); null: in one.
  // Throws Error(kFailed) when memory, a stream or a thread cannot be had.
  explicit CopyProxy(int max_copies, const std::byte* pieces = nullptr);
  ~CopyProxy();  // REQUIRES: streams with posts are idle
  CopyProxy(const CopyProxy&) = delete;
  CopyProxy& operator=(const CopyProxy&) = delete;

  // Around steps: before the first launch with a post, and after the stream is idle. Cheap (a wake-up).
  void begin();
  void end();

  // Between steps: until everything posted has been copied, or copying has failed. For who writes the targets itself.
  void finish();

  // For a Fetch. A post that finds no free list for timeout_ns gives up, at once when something failed before; then
  // check() throws.
  CopyPost post(uint64_t timeout_ns) const;

  // Between steps: throws Error(kFailed) when a copy was refused or did not end in time. It stays so: start a new
  // proxy.
  void check() const;
  // True: counters are set by stream memory operations (cuStreamWriteValue); false: by copies of a few bytes.
  bool signals_by_stream_operation() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft::cuda
