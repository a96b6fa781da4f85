// The HTTP face: OpenAI endpoints, health, readiness, stats, metrics. Listens before the model is loaded, so that a
// busy port is an error in the first second and liveness can be asked while weights are read.
//
//   POST /v1/chat/completions, /v1/completions      GET /v1/models
//   GET /health  200 while the process lives         GET /ready  200 when requests are answered, else 503 with a reason
//   GET /v1/stats  JSON                              GET /metrics  Prometheus
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/server/service.h"

namespace ft {

inline constexpr int kHttpThreads = 64;  // handlers; one waits per answer in progress
inline constexpr size_t kMaxRequestBytes = 8u << 20;
inline constexpr int kHttpReadSeconds = 30;
inline constexpr int kHttpWriteSeconds = 30;

class HttpServer {
 public:
  // Binds host:port (0: a free one) and starts to answer. Throws Error(kFailed) naming the address when it is taken.
  HttpServer(const std::string& host, int port);
  ~HttpServer();  // stop()

  int port() const;
  // From now on requests are answered by `service`, which must live until stop() has returned.
  void set_ready(Service& service);
  // Lets no new request in; answers in progress go on.
  void begin_stop();
  // begin_stop(), then waits for the handlers: end the service first (Service::stop), or they wait for their answers.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
