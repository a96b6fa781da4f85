// The HTTP face: OpenAI endpoints, health, readiness, stats, metrics. Listens before the model is loaded, so that a
// busy port is an error in the first second and liveness can be asked while weights are read.
//
//   POST /v1/chat/completions, /v1/completions      GET /v1/models, /v1/models/ID
//   GET /health  200 while the process lives         GET /ready  200 when requests are answered, else 503 with a reason
//   GET /v1/stats  JSON                              GET /metrics  Prometheus
//
// Errors have OpenAI's form: 404 for an unknown path or model, 405 with an Allow header for another method. A client
// that leaves ends the work for its answer, streamed or not.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/server/service.h"

namespace ft {

// Answers in progress, a full batch and as many requests that wait for it; what comes then is refused with 503 and
// asked to come again. An answer holds one of the handlers to its end: the others are for what must not wait for
// answers, /health, /ready, /metrics, /v1/stats.
inline constexpr int kMaxAnswers = 2 * kMaxBatch;
inline constexpr int kHttpThreads = kMaxAnswers + 16;
// Connections that wait to be accepted. What finds the queue full is asked to come again a second later, or is reset;
// the library's own 5 are fewer than the clients of one burst.
inline constexpr int kListenBacklog = 1024;
inline constexpr size_t kMaxRequestBytes = 8u << 20;
// A connection holds one of the threads from its first byte to its end, and while it waits for a request. Without one
// it is closed after kHttpIdleSeconds, within one (or a byte of it) after kHttpReadSeconds.
inline constexpr int kHttpIdleSeconds = 3;
inline constexpr int kHttpReadSeconds = 10;
inline constexpr int kHttpWriteSeconds = 30;
// For answers to end by themselves when the server stops; then connections that still take theirs are closed.
inline constexpr std::chrono::seconds kShutdownGrace{5};

class HttpServer {
 public:
  // Binds host:port (0: a free one) and starts to answer. Throws Error(kFailed) that tells a wrong host from a port
  // that is taken or needs a permission.
  HttpServer(const std::string& host, int port);
  ~HttpServer();  // stop()

  int port() const;
  // From now on requests are answered by `service`, which must live until stop() has returned.
  void set_ready(Service& service);
  // From now on requests are refused with 503; answers in progress go on.
  void begin_stop();
  // begin_stop(), then waits for the answers in progress, at most kShutdownGrace, and closes. End the service first
  // (Service::stop): its answers then end at once, a stream with an error event, any other with status 503.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
