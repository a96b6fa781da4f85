// Checked against: real connections of this process, whose ends the test opens and closes itself.
#include "engine/server/client_watch.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

// Both ends of a connection over the loopback device.
struct Connection {
  int server = -1, client = -1;
  int server_port = 0, client_port = 0;

  Connection() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener, 1) == 0);
    server_port = port_of(listener);
    address.sin_port = htons(static_cast<uint16_t>(server_port));
    client = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    client_port = port_of(client);
    server = accept(listener, nullptr, nullptr);
    REQUIRE(server >= 0);
    close(listener);
  }
  ~Connection() {
    close(server);
    leave();
  }
  void leave() {
    if (client >= 0) close(client);
    client = -1;
  }
  static int port_of(int descriptor) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    REQUIRE(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    return ntohs(address.sin_port);
  }
};

bool becomes(const std::atomic<int>& count, int wanted) {
  for (int i = 0; i < 1000 && count != wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return count == wanted;
}

}  // namespace

TEST_CASE("a connection is found by its ends, and only the side that is ours to serve") {
  const Connection connection;
  CHECK(ft::find_connection({"127.0.0.1", connection.client_port, connection.server_port}) == connection.server);
  CHECK(ft::find_connection({"127.0.0.1", connection.server_port, connection.client_port}) == connection.client);
  CHECK(ft::find_connection({"127.0.0.2", connection.client_port, connection.server_port}) == -1);
  CHECK(ft::find_connection({"127.0.0.1", connection.client_port, connection.client_port}) == -1);
}

TEST_CASE("who leaves is noticed once; who sends or stays is not gone") {
  ft::ClientWatch watch;
  Connection leaves, stays;
  std::atomic<int> left{0}, stayed{0};
  const auto first = watch.add(leaves.server, [&left] { ++left; });
  const auto second = watch.add(stays.server, [&stayed] { ++stayed; });
  REQUIRE(send(stays.client, "x", 1, 0) == 1);
  leaves.leave();
  CHECK(becomes(left, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(left == 1);
  CHECK(stayed == 0);
}

TEST_CASE("who had left before is noticed too; after the guard nobody is") {
  ft::ClientWatch watch;
  Connection connection;
  std::atomic<int> left{0};
  watch.add(connection.server, [&left] { ++left; }).reset();
  connection.leave();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(left == 0);
  const auto guard = watch.add(connection.server, [&left] { ++left; });
  CHECK(becomes(left, 1));
  CHECK_NOTHROW(watch.add(-1, [&left] { ++left; }).reset());
}

TEST_CASE("hanging up ends a write that waits for its reader") {
  ft::ClientWatch watch;
  const Connection connection;
  std::atomic<int> ended{0};
  const auto guard = watch.add(connection.server, [] {});
  std::thread writer([&] {
    const std::string block(1 << 16, 'x');
    while (send(connection.server, block.data(), block.size(), MSG_NOSIGNAL) > 0) {
    }
    ended = 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(ended == 0);  // the buffers are full: it waits
  watch.hang_up();
  CHECK(becomes(ended, 1));
  writer.join();
}
