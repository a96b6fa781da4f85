// Checked against: errno values as bind(2) documents them, and addresses that RFC 5737 and RFC 791 rule out.
#include "engine/server/listen_address.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>

namespace {

std::string host_error(const std::string& host) {
  try {
    ft::check_listen_host(host);
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kFailed);
    CHECK(error.parts().path == "--host");
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a host that is no address, or none of this machine, is a fault of --host and not of the port") {
  CHECK(host_error("127.0.0.1") == "");
  CHECK(host_error("0.0.0.0") == "");
  for (const char* host : {"300.1.1.1", "no such host", "192.0.2.1"}) {
    const std::string message = host_error(host);
    CAPTURE(message);
    CHECK(has(message, (std::string("--host is '") + host + "'").c_str()));
    CHECK(has(message, "an address or a name of this machine"));
    CHECK(!has(message, "--port"));
  }
}

TEST_CASE("a port that is taken and one that needs a permission are different messages") {
  const std::string busy = ft::listen_failure("127.0.0.1", 8080, EADDRINUSE).what();
  CHECK(busy ==
        "cannot listen (Address already in use): '127.0.0.1:8080'; allowed: a free port of this machine; choose "
        "another with --port");
  const std::string forbidden = ft::listen_failure("127.0.0.1", 80, EACCES).what();
  CHECK(has(forbidden, "cannot listen (Permission denied): '127.0.0.1:80'"));
  CHECK(has(forbidden, "below 1024"));
  CHECK(ft::listen_failure("192.0.2.1", 80, EADDRNOTAVAIL).parts().path == "--host");
}

TEST_CASE("an IPv6 address has brackets before its port") {
  CHECK(ft::address_text("127.0.0.1", 80) == "127.0.0.1:80");
  CHECK(ft::address_text("::1", 80) == "[::1]:80");
}
