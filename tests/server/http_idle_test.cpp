// Checked against: the limits named in engine/server/http_server.h. As many connections as the server has threads do
// nothing, or send half a request; they must not keep others out for longer. And that a burst of clients is taken at
// once.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/server/http_server.h"
#include "kernels/base/clock.h"

namespace {

constexpr double kSlack = 5;  // of a busy machine
// Some more than there are threads.
constexpr int kConnections = ft::kHttpThreads + 8;

class Connection {
 public:
  explicit Connection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const timeval limit{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  Connection(Connection&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Connection& operator=(Connection&&) = delete;
  ~Connection() {
    if (socket_ >= 0) close(socket_);
  }
  void send_text(const std::string& text) const {
    REQUIRE(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  // Up to the end that the server makes, or `enough`.
  std::string receive(const std::string& enough = {}) const {
    std::string all;
    char part[512];
    for (ssize_t count = 1; count > 0 && (enough.empty() || all.find(enough) == std::string::npos);) {
      count = ::recv(socket_, part, sizeof part, 0);
      REQUIRE(count >= 0);  // it did end
      all.append(part, static_cast<size_t>(count));
    }
    return all;
  }

 private:
  int socket_ = -1;
};

const std::string kHealth = "GET /health HTTP/1.1\r\nHost: here\r\n\r\n";

double seconds_to_answer(int port) {
  const double begin = ft::now_seconds();
  const Connection asking(port);
  asking.send_text(kHealth);
  CHECK(asking.receive("alive").starts_with("HTTP/1.1 200"));
  return ft::now_seconds() - begin;
}

}  // namespace

TEST_CASE("connections that say nothing keep others out for the idle time at most, and are closed") {
  ft::HttpServer server("127.0.0.1", 0);
  std::vector<Connection> idle;
  for (int i = 0; i < kConnections; ++i) {
    idle.emplace_back(server.port());
    if (i % 2 == 1) idle.back().send_text(kHealth);  // answered, then it stays
  }
  CHECK(seconds_to_answer(server.port()) < ft::kHttpIdleSeconds + kSlack);
  for (size_t i = 0; i < idle.size(); ++i) CHECK(idle[i].receive().empty() == (i % 2 == 0));
}

TEST_CASE("a burst of clients is not asked to come again") {
  ft::HttpServer server("127.0.0.1", 0);
  constexpr double kAgain = 1;  // second, of the kernel's next try where the queue is full
  for (int burst = 0; burst < 3; ++burst) {
    std::vector<Connection> clients;
    const double begin = ft::now_seconds();
    for (int i = 0; i < ft::kListenBacklog / 2; ++i) clients.emplace_back(server.port());
    CHECK(ft::now_seconds() - begin < kAgain);
    for (const Connection& client : clients) client.send_text("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
    for (const Connection& client : clients) CHECK(client.receive().starts_with("HTTP/1.1 200"));
  }
}

TEST_CASE("half a request keeps others out for the time of a read at most") {
  ft::HttpServer server("127.0.0.1", 0);
  std::vector<Connection> halves;
  for (int i = 0; i < kConnections; ++i) {
    halves.emplace_back(server.port());
    halves.back().send_text(i % 2 == 0 ? "GET /hea" : "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  }
  const double seconds = seconds_to_answer(server.port());
  CHECK(seconds > 1);  // the threads were all taken
  CHECK(seconds < ft::kHttpReadSeconds + kSlack);
}
