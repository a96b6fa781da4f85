#include "engine/server/client_watch.h"

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr uint64_t kStopNumber = 0;  // of the event that ends the thread; watched sockets count from 1

struct End {
  std::string address;
  int port = -1;
};

// One end of a socket, by getpeername or getsockname; port -1 when it is no connected internet socket.
End end_of(int socket, int (*name_of)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (name_of(socket, address, &length) != 0) return {};
  if (storage.ss_family != AF_INET && storage.ss_family != AF_INET6) return {};
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  End end{.address = host};
  std::from_chars(port, port + std::strlen(port), end.port);
  return end;
}

}  // namespace

int find_connection(const ConnectionEnds& ends) {
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/self/fd", error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    int socket = -1;
    std::from_chars(name.data(), name.data() + name.size(), socket);
    if (socket < 0) continue;
    const End remote = end_of(socket, getpeername);
    if (remote.port != ends.remote_port || remote.address != ends.remote_address) continue;
    if (end_of(socket, getsockname).port == ends.local_port) return socket;
  }
  return -1;
}

struct ClientWatch::State {
  struct Watched {
    int socket;
    std::function<void()> gone;
  };
  int epoll = -1;
  int stop = -1;
  std::mutex mutex;  // guards what follows; held while `gone` runs, so that a Guard's destructor waits for it
  std::map<uint64_t, Watched> watched;
  uint64_t last_number = kStopNumber;
  std::thread thread;

  ~State() {
    if (epoll >= 0) close(epoll);
    if (stop >= 0) close(stop);
  }

  bool listen_for(int descriptor, uint32_t events, uint64_t number) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
  }

  void loop() {
    std::array<epoll_event, 16> events{};
    for (;;) {
      const int count = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), -1);
      if (count < 0 && errno != EINTR) return;
      const std::lock_guard lock(mutex);
      for (int i = 0; i < count; ++i) {
        const uint64_t number = events[static_cast<size_t>(i)].data.u64;
        if (number == kStopNumber) return;
        // Not there: its guard went between the event and the lock, and the descriptor may mean another socket now.
        if (const auto found = watched.find(number); found != watched.end()) found->second.gone();
      }
    }
  }
};

ClientWatch::ClientWatch() : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.epoll = epoll_create1(EPOLL_CLOEXEC);
  s.stop = eventfd(0, EFD_CLOEXEC);
  if (s.epoll < 0 || s.stop < 0 || !s.listen_for(s.stop, EPOLLIN, kStopNumber)) {
    throw Error(ErrorKind::kFailed, {.what = "cannot watch connections", .value = std::strerror(errno)});
  }
  s.thread = std::thread([&s] { s.loop(); });
}

ClientWatch::~ClientWatch() {
  FT_CHECK(eventfd_write(state_->stop, 1) == 0);
  state_->thread.join();
}

std::unique_ptr<ClientWatch::Guard> ClientWatch::add(int socket, std::function<void()> gone) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const uint64_t number = ++s.last_number;
  // One shot: a hung-up socket stays so, and would wake the thread for ever.
  if (socket >= 0 && s.listen_for(socket, EPOLLRDHUP | EPOLLONESHOT, number)) {
    s.watched.emplace(number, State::Watched{socket, std::move(gone)});
  }
  return std::unique_ptr<Guard>(new Guard(*this, number));
}

void ClientWatch::hang_up() {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [number, watched] : state_->watched) shutdown(watched.socket, SHUT_RDWR);
}

ClientWatch::Guard::~Guard() {
  State& s = *watch_.state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.watched.find(number_);
  if (found == s.watched.end()) return;
  epoll_ctl(s.epoll, EPOLL_CTL_DEL, found->second.socket, nullptr);
  s.watched.erase(found);
}

}  // namespace ft
