#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>

#include "kernels/cuda/copy_proxy.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/error.cuh"
#include "kernels/cuda/number.cuh"

namespace ft::cuda {
namespace {

constexpr int kSpinsPerYield = 200;  // as in the CPU pool: an oversubscribed host goes on

using StreamWrite32 = int (*)(cudaStream_t stream, unsigned long long address, uint32_t value, unsigned flags);
using StreamWrite64 = int (*)(cudaStream_t stream, unsigned long long address, uint64_t value, unsigned flags);

struct Signals {  // pinned: what the counters are set to where it takes a copy
  uint32_t all[kArrivalParts] = {kAllArrived, kAllArrived};
  uint32_t none = 0;
};

unsigned long long address_of(const void* pointer) { return reinterpret_cast<unsigned long long>(pointer); }

void check_write(int code) {
  if (code != 0) throw_cuda(static_cast<cudaError_t>(code), "cannot write a word in stream order");
}

}  // namespace

struct CopyProxy::State {
  enum Activity : uint32_t { kAsleep, kAwake, kStopping };

  State(int most, const std::byte* pieces_begin)
      : mailbox(sizeof(CopyMailbox)),
        lists(int64_t{kCopyLists} * most * sizeof(Copy)),
        signals(sizeof(Signals)),
        number(2 * sizeof(uint64_t)),
        max_copies(most),
        pieces(pieces_begin) {
    ft::cuda::check(cudaGetDevice(&device), "cannot tell which CUDA device is in use");
    *signals.as_host<Signals>() = Signals();
    fill_zero(number.data(), number.bytes(), stream.handle());
    write_32 = reinterpret_cast<StreamWrite32>(driver_function("cuStreamWriteValue32"));
    write_64 = reinterpret_cast<StreamWrite64>(driver_function("cuStreamWriteValue64"));
    const auto scratch = address_of(number.as<uint64_t>() + 1);
    if (write_32 == nullptr || write_64 == nullptr || write_32(stream.handle(), scratch, 0, 0) != 0 ||
        write_64(stream.handle(), scratch, 0, 0) != 0) {
      write_32 = nullptr;
    }
    stream.synchronize();
    try {
      thread = std::thread([this] { serve(); });
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::kFailed, {.what = "cannot start the thread of the copy engine", .value = error.what()});
    }
  }
  ~State() {
    set_activity(kStopping);
    thread.join();
    cudaStreamSynchronize(stream.handle());
  }

  void set_activity(Activity value) {
    activity.store(value, std::memory_order_release);
    activity.notify_one();
  }

  void serve() {
    try {
      ft::cuda::check(cudaSetDevice(device), "cannot use the CUDA device");
      while (serve_once()) {
      }
    } catch (const std::exception& failure) {
      const std::lock_guard lock(mutex);
      error = failure.what();
      std::atomic_ref(mailbox.as_host<CopyMailbox>()->broken).store(1, std::memory_order_release);
    }
  }
  // Posts first, then what the owner asks for: end() is called when all posts are there, so none is left behind.
  bool serve_once() {
    const uint32_t seen = activity.load(std::memory_order_acquire);
    CopyMailbox& box = *mailbox.as_host<CopyMailbox>();
    int spins = 0;
    while (std::atomic_ref(box.posted).load(std::memory_order_acquire) == taken) {
      const uint32_t now = activity.load(std::memory_order_acquire);
      if (now != seen) return true;
      if (now == kStopping) return false;
      if (now == kAsleep) {
        activity.wait(kAsleep, std::memory_order_acquire);
        return true;
      }
      if (++spins % kSpinsPerYield == 0) std::this_thread::yield();
    }
    copy_list(next_number(taken), box);
    return true;
  }
  void copy_list(uint32_t post, CopyMailbox& box) {
    const Copy* list = lists.as_host<Copy>() + static_cast<int64_t>(post % kCopyLists) * max_copies;
    const int32_t count = box.count[post % kCopyLists];
    uint32_t* pending = box.pending[post % kCopyLists];
    for (int32_t i = 0; i < count; ++i) {
      const int64_t bytes = list[i].units.all * kUnitBytes;
      const std::byte* begin = pieces == nullptr ? list[i].source : pieces;
      copy_from_pieces(list[i].target, list[i].source, begin, bytes, stream.handle());
      // Before the last signal: whoever has seen it may begin another fetch.
      if (i + 1 == count && pending != nullptr) signal_none_pending(pending);
      signal_arrived(list[i].arrived);
    }
    taken = post;
    std::atomic_ref(box.taken).store(post, std::memory_order_release);
  }
  void signal_none_pending(uint32_t* pending) {
    if (write_32 != nullptr) return check_write(write_32(stream.handle(), address_of(pending), 0, 0));
    copy_to_device(pending, &signals.as_host<Signals>()->none, sizeof(uint32_t), stream.handle());
  }
  void signal_arrived(uint32_t* arrived) {
    constexpr uint64_t kAll = uint64_t{kAllArrived} << 32 | kAllArrived;
    if (write_32 != nullptr) return check_write(write_64(stream.handle(), address_of(arrived), kAll, 0));
    copy_to_device(arrived, signals.as_host<Signals>()->all, kArrivalParts * sizeof(uint32_t), stream.handle());
  }

  PinnedBuffer mailbox, lists, signals;
  DeviceBuffer number;  // of the last post; and a word to try writes on
  Stream stream;
  int max_copies = 0;
  const std::byte* pieces = nullptr;
  int device = 0;
  StreamWrite32 write_32 = nullptr;  // null: signals are copies
  StreamWrite64 write_64 = nullptr;
  std::atomic<uint32_t> activity{kAsleep};
  uint32_t taken = 0;  // the proxy thread's
  mutable std::mutex mutex;
  std::string error;
  std::thread thread;
};

CopyProxy::CopyProxy(int max_copies, const std::byte* pieces) {
  FT_CHECK(max_copies >= 1);
  state_ = std::make_unique<State>(max_copies, pieces);
}

CopyProxy::~CopyProxy() = default;

void CopyProxy::begin() { state_->set_activity(State::kAwake); }

void CopyProxy::end() { state_->set_activity(State::kAsleep); }

void CopyProxy::finish() {
  CopyMailbox& box = *state_->mailbox.as_host<CopyMailbox>();
  state_->set_activity(State::kAwake);
  const uint32_t posted = std::atomic_ref(box.posted).load(std::memory_order_acquire);
  while (std::atomic_ref(box.taken).load(std::memory_order_acquire) != posted &&
         std::atomic_ref(box.broken).load(std::memory_order_acquire) == 0) {
    std::this_thread::yield();
  }
  state_->set_activity(State::kAsleep);
  state_->stream.synchronize();
}

CopyPost CopyProxy::post(uint64_t timeout_ns) const {
  return {state_->mailbox.as_device<CopyMailbox>(), state_->lists.as_device<Copy>(), state_->number.as<uint32_t>(),
          state_->max_copies, timeout_ns};
}

void CopyProxy::check() const {
  const CopyMailbox& box = *state_->mailbox.as_host<CopyMailbox>();
  if (std::atomic_ref(const_cast<uint32_t&>(box.broken)).load(std::memory_order_acquire) != 0) {
    const std::lock_guard lock(state_->mutex);
    throw Error(ErrorKind::kFailed, {.what = "the copy engine's thread gave up", .value = state_->error});
  }
  if (std::atomic_ref(const_cast<uint32_t&>(box.failed)).load(std::memory_order_acquire) != 0) {
    throw Error(ErrorKind::kFailed, {.what = "the copy engine did not copy experts in time",
                                     .action = "see whether the host is overloaded; use the gather mechanism"});
  }
}

bool CopyProxy::signals_by_stream_operation() const { return state_->write_32 != nullptr; }

}  // namespace ft::cuda
