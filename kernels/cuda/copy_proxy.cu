#include <atomic>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/cuda/copy_proxy.h"
#include "kernels/cuda/error.cuh"
#include "kernels/cuda/number.cuh"

namespace ft::cuda {
namespace {

constexpr int kPostThreads = 128;
constexpr uint32_t kLists = 4;       // posts that the host has not read yet; a power of two
constexpr uint32_t kNumbers = 64;    // flags under way when they are copies
constexpr int kSpinsPerYield = 200;  // as in the CPU pool: an oversubscribed host goes on

struct Copy {
  const std::byte* source;
  std::byte* target;
  int64_t bytes;
};

// Pinned. The device writes posted, counts, the lists and failed; the host taken (a list that was read may be written
// again) and broken.
struct Mailbox {
  alignas(128) uint32_t posted;
  int32_t counts[kLists];
  alignas(128) uint32_t taken;
  alignas(128) uint32_t broken;
  alignas(128) uint32_t failed;
};

struct DeviceWords {           // device memory
  alignas(128) uint32_t done;  // the last number whose copies have ended: written by the proxy's stream
  alignas(128) uint32_t number;
  uint32_t ticket[2];  // of the last post that had copies: fetches, promotions; 0: none yet
};

struct View {
  Mailbox* box;
  Copy* lists;  // [kLists][max_copies]
  DeviceWords* words;
  int max_copies;
};

// False: given up.
template <class Reached>
__device__ bool wait_until(Mailbox* box, uint64_t timeout_ns, Reached&& is_reached) {
  constexpr int kPollsPerLook = 16;  // the flags of failure are across the link
  const uint64_t begin = nanoseconds_now();
  for (int polls = 0; !is_reached(); ++polls) {
    if (polls % kPollsPerLook != 0) continue;
    if (load_relaxed_system(&box->broken) != 0 || load_relaxed_system(&box->failed) != 0) return false;
    if (nanoseconds_now() - begin > timeout_ns) {
      store_release_system(&box->failed, 1);
      return false;
    }
  }
  return true;
}

__global__ void __launch_bounds__(kPostThreads)
    post_kernel(View view, const LayerWork work, bool promotions, int64_t blob_bytes, uint64_t timeout_ns) {
  __shared__ bool may_write;
  const int copies = work.copy_counts[promotions ? 1 : 0], first = promotions ? work.copy_counts[0] : 0;
  uint32_t* ticket = &view.words->ticket[promotions ? 1 : 0];
  const uint32_t number = next_number(view.words->number);
  if (threadIdx.x == 0) {
    may_write = copies > 0 && copies <= view.max_copies && wait_until(view.box, timeout_ns, [&] {
                  return reached(load_acquire_system(&view.box->taken), number - kLists);
                });
  }
  __syncthreads();
  if (!may_write) return;
  Copy* list = view.lists + static_cast<int64_t>(number % kLists) * view.max_copies;
  for (int i = static_cast<int>(threadIdx.x); i < copies; i += kPostThreads) {
    list[i] = {work.copy_source[first + i], work.copy_target[first + i], blob_bytes};
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  view.box->counts[number % kLists] = copies;
  __threadfence_system();
  store_release_system(&view.box->posted, number);
  view.words->number = number;
  *ticket = number;
}

__global__ void wait_for_copies_kernel(View view, bool promotions, uint64_t timeout_ns) {
  const uint32_t wanted = view.words->ticket[promotions ? 1 : 0];
  if (wanted == 0) return;
  wait_until(view.box, timeout_ns, [&] { return reached(load_acquire_system(&view.words->done), wanted); });
}

struct FlagCopy {  // a four-byte copy as flag: its source stays as it is until the copy has ended
  PinnedBuffer numbers{kNumbers * sizeof(uint32_t)};
  std::vector<cudaEvent_t> copied;
  FlagCopy() : copied(kNumbers) {
    for (cudaEvent_t& event : copied) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cannot create a CUDA event");
    }
  }
  ~FlagCopy() {
    for (const cudaEvent_t event : copied) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
};

using StreamWriteValue = int (*)(cudaStream_t stream, unsigned long long address, uint32_t value, unsigned flags);

}  // namespace

struct CopyProxy::State {
  enum Activity : uint32_t { kAsleep, kAwake, kStopping };

  explicit State(int max_copies)
      : mailbox(sizeof(Mailbox)), lists(int64_t{kLists} * max_copies * sizeof(Copy)), words(sizeof(DeviceWords)) {
    view = {mailbox.as_device<Mailbox>(), lists.as_device<Copy>(), words.as<DeviceWords>(), max_copies};
    ft::cuda::check(cudaGetDevice(&device), "cannot tell which CUDA device is in use");
    fill_zero(words.data(), words.bytes(), stream.handle());
    write_value = reinterpret_cast<StreamWriteValue>(driver_function("cuStreamWriteValue32"));
    if (write_value != nullptr && write_value(stream.handle(), flag_address(), 0, 0) != 0) write_value = nullptr;
    stream.synchronize();
    if (write_value == nullptr) flag_copy.emplace();
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
  unsigned long long flag_address() const { return reinterpret_cast<unsigned long long>(&view.words->done); }

  void serve() {
    try {
      ft::cuda::check(cudaSetDevice(device), "cannot use the CUDA device");
      while (serve_once()) {
      }
    } catch (const std::exception& failure) {
      const std::lock_guard lock(mutex);
      error = failure.what();
      std::atomic_ref(mailbox.as_host<Mailbox>()->broken).store(1, std::memory_order_release);
    }
  }
  // Posts first, then what the owner asks for: end() is called when all posts are there, so none is left behind.
  bool serve_once() {
    const uint32_t seen = activity.load(std::memory_order_acquire);
    Mailbox& box = *mailbox.as_host<Mailbox>();
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
  void copy_list(uint32_t number, Mailbox& box) {
    const Copy* list = lists.as_host<Copy>() + static_cast<int64_t>(number % kLists) * view.max_copies;
    for (int32_t i = 0; i < box.counts[number % kLists]; ++i) {
      copy_to_device(list[i].target, list[i].source, list[i].bytes, stream.handle());
    }
    set_flag(number);
    taken = number;
    std::atomic_ref(box.taken).store(number, std::memory_order_release);
  }
  void set_flag(uint32_t number) {
    if (write_value != nullptr) {
      const int code = write_value(stream.handle(), flag_address(), number, 0);
      if (code != 0) throw_cuda(static_cast<cudaError_t>(code), "cannot write a word in stream order");
      return;
    }
    const uint32_t i = number % kNumbers;
    while (cudaEventQuery(flag_copy->copied[i]) == cudaErrorNotReady) std::this_thread::yield();
    flag_copy->numbers.as_host<uint32_t>()[i] = number;
    copy_to_device(&view.words->done, flag_copy->numbers.as_host<uint32_t>() + i, sizeof number, stream.handle());
    ft::cuda::check(cudaEventRecord(flag_copy->copied[i], stream.handle()), "cannot record a CUDA event");
  }

  PinnedBuffer mailbox, lists;
  DeviceBuffer words;
  Stream stream;
  View view{};
  int device = 0;
  StreamWriteValue write_value = nullptr;
  std::optional<FlagCopy> flag_copy;
  std::atomic<uint32_t> activity{kAsleep};
  uint32_t taken = 0;  // the proxy thread's
  mutable std::mutex mutex;
  std::string error;
  std::thread thread;
};

CopyProxy::CopyProxy(int max_copies) {
  FT_CHECK(max_copies >= 1);
  state_ = std::make_unique<State>(max_copies);
}

CopyProxy::~CopyProxy() = default;

void CopyProxy::begin() { state_->set_activity(State::kAwake); }

void CopyProxy::end() { state_->set_activity(State::kAsleep); }

void CopyProxy::post(const LayerWork& work, bool promotions, int64_t blob_bytes, uint64_t timeout_ns,
                     StreamHandle stream) {
  post_kernel<<<1, kPostThreads, 0, stream>>>(state_->view, work, promotions, blob_bytes, timeout_ns);
  require_launched("post_copies");
}

void CopyProxy::wait(bool promotions, uint64_t timeout_ns, StreamHandle stream) {
  wait_for_copies_kernel<<<1, 1, 0, stream>>>(state_->view, promotions, timeout_ns);
  require_launched("wait_for_copies");
}

void CopyProxy::check() const {
  const Mailbox& box = *state_->mailbox.as_host<Mailbox>();
  if (std::atomic_ref(const_cast<uint32_t&>(box.broken)).load(std::memory_order_acquire) != 0) {
    const std::lock_guard lock(state_->mutex);
    throw Error(ErrorKind::kFailed, {.what = "the copy engine's thread gave up", .value = state_->error});
  }
  if (std::atomic_ref(const_cast<uint32_t&>(box.failed)).load(std::memory_order_acquire) != 0) {
    throw Error(ErrorKind::kFailed, {.what = "the copy engine did not copy experts in time",
                                     .action = "see whether the host is overloaded; use the gather mechanism"});
  }
}

bool CopyProxy::writes_flag_by_stream_operation() const { return state_->write_value != nullptr; }

}  // namespace ft::cuda
