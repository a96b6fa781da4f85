// The copy engine for copies that the device chooses. A graph's copy node cannot take an address from a kernel, so a
// kernel posts a list of copies in pinned memory, a host thread gives them to the copy engine on a stream of its own
// and sets a flag in device memory behind them, and a kernel waits for that flag. Same LayerWork, same result as
// gather().
//
// Thread rule: one thread owns the object; the proxy's own thread makes no call that synchronizes. It spins between
// begin() and end() (one core: part of the CPU budget) and sleeps on a futex otherwise.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/moe.h"

namespace ft::cuda {

class CopyProxy {
 public:
  // Uses the calling thread's device. max_copies: of one post; LayerWork's max_distinct is always enough.
  // Throws Error(kFailed) when memory, a stream or a thread cannot be had.
  explicit CopyProxy(int max_copies);
  ~CopyProxy();  // REQUIRES: streams with posts or waits are idle
  CopyProxy(const CopyProxy&) = delete;
  CopyProxy& operator=(const CopyProxy&) = delete;

  // Around steps: before the first launch with a post, and after the stream is idle. Cheap (a wake-up).
  void begin();
  void end();

  // Launches, also inside a capture. post: the fetches (or promotions) of `work`, each of blob_bytes; nothing when
  // there are none. wait: until the last such post has been copied. Both give up after timeout_ns, or at once when
  // something failed before; then check() throws.
  void post(const LayerWork& work, bool promotions, int64_t blob_bytes, uint64_t timeout_ns, StreamHandle stream);
  void wait(bool promotions, uint64_t timeout_ns, StreamHandle stream);

  // Between steps: throws Error(kFailed) when a copy was refused or did not end in time. It stays so: start a new
  // proxy.
  void check() const;
  // True: the flag is a stream memory operation (cuStreamWriteValue32); false: a copy of four bytes.
  bool writes_flag_by_stream_operation() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft::cuda
