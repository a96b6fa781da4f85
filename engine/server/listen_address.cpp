#include "engine/server/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace ft {
namespace {

constexpr const char* kAllowedHosts =
    "an address or a name of this machine, for example 127.0.0.1, or 0.0.0.0 for all of its addresses";

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The error is getaddrinfo's.
Addresses resolve(const std::string& host, int port, int& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, freeaddrinfo};
}

// 0 when it can be listened on, else errno.
int try_listen(const addrinfo& address) {
  const int descriptor = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (descriptor < 0) return errno;
  const int yes = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  int code = 0;
  if (bind(descriptor, address.ai_addr, address.ai_addrlen) != 0 || listen(descriptor, 1) != 0) code = errno;
  close(descriptor);
  return code;
}

// Of the first address, 0 when any works: the server takes the first that works.
int try_listen(const Addresses& addresses) {
  int first = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int code = try_listen(*address);
    if (code == 0) return 0;
    if (first == 0) first = code;
  }
  return first;
}

}  // namespace

std::string address_text(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

void check_listen_host(const std::string& host) {
  int error = 0;
  const Addresses addresses = resolve(host, 0, error);
  if (error != 0) {
    const std::string why = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    throw Error(ErrorKind::kFailed, {"cannot listen (" + why + ")", host, kAllowedHosts, "", "--host"});
  }
  if (const int code = try_listen(addresses); code != 0) throw listen_failure(host, 0, code);
}

Error listen_failure(const std::string& host, int port) {
  int error = 0;
  const Addresses addresses = resolve(host, port, error);
  return listen_failure(host, port, error != 0 ? EADDRNOTAVAIL : try_listen(addresses));
}

Error listen_failure(const std::string& host, int port, int code) {
  const std::string what =
      std::string("cannot listen") + (code == 0 ? "" : " (" + std::string(std::strerror(code)) + ")");
  if (code == EADDRNOTAVAIL || code == EAFNOSUPPORT) {
    return {ErrorKind::kFailed, {what, host, kAllowedHosts, "", "--host"}};
  }
  if (code == EACCES || code == EPERM) {
    return {ErrorKind::kFailed,
            {what, address_text(host, port), "a port that this user may use; those below 1024 need a permission",
             "choose another with --port"}};
  }
  return {ErrorKind::kFailed,
          {what, address_text(host, port), "a free port of this machine", "choose another with --port"}};
}

}  // namespace ft
