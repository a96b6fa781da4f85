#include "engine/server/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>

#include "engine/server/metrics.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

uint64_t random_word() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

std::string answer_id(Endpoint endpoint) {
  char text[64];
  std::snprintf(text, sizeof text, "%s-%016llx", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl",
                static_cast<unsigned long long>(random_word()));
  return text;
}

void reply(httplib::Response& response, int status, const std::string& body, const char* type = "application/json") {
  response.status = status;
  response.set_content(body, type);
}

void reply(httplib::Response& response, const HttpError& error) { reply(response, error.status, error.body); }

// An answer that is being streamed; owned by httplib's content provider.
struct Stream {
  std::unique_ptr<Generation> generation;
  AnswerHead head;
  bool usage = false;
  bool first = true;

  // Writes what has become available. False: the client is gone.
  bool pump(httplib::DataSink& sink) {
    std::string text;
    try {
      if (first) {
        first = false;
        if (head.endpoint == Endpoint::kChat) return send(sink, completion_chunk(head, "", "", true));
      }
      if (generation->next(text)) return text.empty() || send(sink, completion_chunk(head, text, "", false));
      std::string last = completion_chunk(head, "", generation->finish_reason(), false);
      if (usage) last += usage_chunk(head, generation->usage());
      const bool sent = send(sink, last + std::string(kStreamEnd));
      sink.done();
      return sent;
    } catch (const Error& error) {
      send(sink, "data: " + openai_error(error).body + "\n\n");
      sink.done();
      return false;
    }
  }

 private:
  static bool send(httplib::DataSink& sink, const std::string& bytes) { return sink.write(bytes.data(), bytes.size()); }
};

}  // namespace

struct HttpServer::State {
  httplib::Server server;
  std::thread thread;
  std::atomic<Service*> service{nullptr};
  std::string host;
  int port = 0;
  int64_t created = 0;

  void add_routes();
  void complete(Endpoint endpoint, const httplib::Request& request, httplib::Response& response);
  void answer(const CompletionRequest& wanted, httplib::Response& response);
  bool knows_model(const std::string& name) const;
};

bool HttpServer::State::knows_model(const std::string& name) const {
  return name.empty() || name == "default" || name == service.load()->profile().model_name;
}

void HttpServer::State::answer(const CompletionRequest& wanted, httplib::Response& response) {
  Service& current = *service.load();
  const AnswerHead head = {wanted.endpoint, answer_id(wanted.endpoint), static_cast<int64_t>(std::time(nullptr)),
                           current.profile().model_name};
  std::unique_ptr<Generation> generation = current.start(wanted);
  if (!wanted.stream) {
    std::string text, piece;
    while (generation->next(piece)) text += piece;
    reply(response, 200, completion_response(head, text, generation->finish_reason(), generation->usage()));
    return;
  }
  auto stream = std::make_shared<Stream>();
  stream->generation = std::move(generation);
  stream->head = head;
  stream->usage = wanted.stream_usage;
  response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider("text/event-stream",
                                        [stream](size_t, httplib::DataSink& sink) { return stream->pump(sink); });
}

void HttpServer::State::complete(Endpoint endpoint, const httplib::Request& request, httplib::Response& response) {
  if (service.load() == nullptr) {
    reply(response, openai_error(503, "the model is still loading; ask /ready", "not_ready"));
    return;
  }
  try {
    const CompletionRequest wanted =
        parse_completion_request(endpoint, request.body, service.load()->sampling_defaults(), random_word());
    if (!knows_model(wanted.model)) {
      const std::string here = service.load()->profile().model_name;
      reply(response,
            openai_error(404, "the model '" + wanted.model + "' is not served here; this server has '" + here + "'",
                         "model_not_found"));
      return;
    }
    answer(wanted, response);
  } catch (const Error& error) {
    reply(response, openai_error(error));
  }
}

void HttpServer::State::add_routes() {
  using httplib::Request;
  using httplib::Response;
  server.Get("/health", [](const Request&, Response& response) { reply(response, 200, "{\"status\": \"alive\"}\n"); });
  server.Get("/ready", [this](const Request&, Response& response) {
    const bool ready = service.load() != nullptr;
    reply(
        response, ready ? 200 : 503,
        ready ? "{\"status\": \"ready\"}\n" : "{\"status\": \"loading\", \"reason\": \"weights are being loaded\"}\n");
  });
  server.Get("/v1/models", [this](const Request&, Response& response) {
    Service* current = service.load();
    if (current == nullptr) return reply(response, openai_error(503, "the model is still loading", "not_ready"));
    reply(response, 200, models_response(current->profile().model_name, created, current->max_context()));
  });
  server.Get("/v1/stats", [this](const Request&, Response& response) {
    Service* current = service.load();
    if (current == nullptr) return reply(response, openai_error(503, "the model is still loading", "not_ready"));
    reply(response, 200, stats_json(current->profile(), current->stats()));
  });
  server.Get("/metrics", [this](const Request&, Response& response) {
    Service* current = service.load();
    if (current == nullptr) return reply(response, 503, "# the model is still loading\n", "text/plain");
    reply(response, 200, prometheus_text(current->profile(), current->stats()), "text/plain; version=0.0.4");
  });
  server.Post("/v1/chat/completions",
              [this](const Request& request, Response& response) { complete(Endpoint::kChat, request, response); });
  server.Post("/v1/completions", [this](const Request& request, Response& response) {
    complete(Endpoint::kCompletion, request, response);
  });
  server.set_error_handler([](const Request& request, Response& response) {
    if (!response.body.empty()) return;
    const std::string what = response.status == 404 ? "no such endpoint: " + request.method + " " + request.path
                             : response.status == 413
                                 ? "the request body is larger than 8 MiB, or it is sent as a form: send it with "
                                   "Content-Type: application/json"
                                 : "the request could not be read";
    reply(response, openai_error(response.status, what, response.status == 404 ? "not_found" : ""));
  });
  server.set_exception_handler([](const Request&, Response& response, std::exception_ptr) {
    reply(response, openai_error(500, "internal error", ""));
  });
}

HttpServer::HttpServer(const std::string& host, int port) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.host = host;
  s.created = static_cast<int64_t>(std::time(nullptr));
  s.server.new_task_queue = [] { return new httplib::ThreadPool(kHttpThreads); };
  s.server.set_payload_max_length(kMaxRequestBytes);
  s.server.set_read_timeout(kHttpReadSeconds, 0);
  s.server.set_write_timeout(kHttpWriteSeconds, 0);
  s.server.set_tcp_nodelay(true);
  // The library's default also sets SO_REUSEPORT, with which a second server on the same port would start and share
  // the requests instead of being refused.
  s.server.set_socket_options([](auto socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  s.add_routes();
  s.port = port == 0 ? s.server.bind_to_any_port(host) : (s.server.bind_to_port(host, port) ? port : -1);
  if (s.port <= 0) {
    throw Error(ErrorKind::kFailed, {"cannot listen", host + ":" + std::to_string(port), "a free port of this machine",
                                     "choose another with --port"});
  }
  s.thread = std::thread([&s] { s.server.listen_after_bind(); });
  // A stop() before the thread listens would be lost, and joining it would wait for ever.
  while (!s.server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::port() const { return state_->port; }

void HttpServer::set_ready(Service& service) { state_->service.store(&service); }

void HttpServer::begin_stop() { state_->server.stop(); }

void HttpServer::stop() {
  begin_stop();
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace ft
