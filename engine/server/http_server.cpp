#include "engine/server/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <random>
#include <thread>

#include "engine/server/client_watch.h"
#include "engine/server/listen_address.h"
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

constexpr std::string_view kModelsPath = "/v1/models";

// What the Allow header of a path says; empty: no such endpoint. HEAD is answered wherever GET is.
std::string_view allowed_methods(std::string_view path) {
  static constexpr std::string_view kRead = "GET, HEAD";
  static constexpr std::pair<std::string_view, std::string_view> kMethods[] = {
      {"/health", kRead},         {"/ready", kRead},   {kModelsPath, kRead},
      {"/v1/stats", kRead},       {"/metrics", kRead}, {"/v1/chat/completions", "POST"},
      {"/v1/completions", "POST"}};
  for (const auto& [known, methods] : kMethods) {
    if (path == known) return methods;
  }
  const bool is_model =
      path.size() > kModelsPath.size() + 1 && path.starts_with(kModelsPath) && path[kModelsPath.size()] == '/';
  return is_model ? kRead : std::string_view();
}

// Counts the answers in progress, so that a stop can wait for them.
class Answers {
 public:
  // The answer is in progress while the returned pointer or a copy of it lives. Throws Error(kCapacity) when
  // kMaxAnswers are.
  std::shared_ptr<void> begin() {
    const std::lock_guard lock(mutex_);
    if (count_ == kMaxAnswers) {
      throw Error(ErrorKind::kCapacity, {"too many answers are in progress", std::to_string(count_),
                                         "at most " + std::to_string(kMaxAnswers), "ask again later"});
    }
    ++count_;
    return {this, [](void* self) { static_cast<Answers*>(self)->end(); }};
  }
  void wait_for_none(std::chrono::seconds at_most) {
    std::unique_lock lock(mutex_);
    none_.wait_for(lock, at_most, [this] { return count_ == 0; });
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable none_;
  int count_ = 0;
};

// An answer that is being made. Its request is cancelled when the client leaves.
struct Answer {
  Answer(std::unique_ptr<Generation> made, ClientWatch& watch, const httplib::Request& request)
      : generation(std::move(made)),
        guard(watch.add(find_connection({request.remote_addr, request.remote_port, request.local_port}),
                        [this] { generation->cancel(); })) {}

  std::unique_ptr<Generation> generation;
  std::unique_ptr<ClientWatch::Guard> guard;  // after `generation`, which its callback uses
};

// An answer that is being streamed; owned by httplib's content provider.
struct Stream {
  std::shared_ptr<void> in_progress;
  std::unique_ptr<Answer> answer;
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
      Generation* const generation = answer->generation.get();
      if (generation->next(text)) return text.empty() || send(sink, completion_chunk(head, text, "", false));
      std::string last = completion_chunk(head, "", generation->finish_reason(), false);
      if (usage) last += usage_chunk(head, generation->usage());
      const bool sent = send(sink, last + std::string(kStreamEnd));
      sink.done();
      return sent;
    } catch (const Error& error) {
      const bool sent = send(sink, "data: " + openai_error(error).body + "\n\n");
      sink.done();
      return sent;
    }
  }

 private:
  static bool send(httplib::DataSink& sink, const std::string& bytes) { return sink.write(bytes.data(), bytes.size()); }
};

}  // namespace

struct HttpServer::State {
  // In the order that they are needed: streams that httplib still owns use `answers` and `watch` when it is destroyed.
  ClientWatch watch;
  Answers answers;
  httplib::Server server;
  std::thread thread;
  std::atomic<Service*> service{nullptr};
  std::atomic<bool> stopping{false};
  int port = 0;
  int listener = -1;  // httplib's
  int64_t created = 0;

  void add_routes();
  void add_model_routes();
  void add_error_handlers();
  void complete(Endpoint endpoint, const httplib::Request& request, httplib::Response& response);
  void answer(const CompletionRequest& wanted, const httplib::Request& request, httplib::Response& response);
  Service* service_or_refuse(httplib::Response& response) const;
  bool knows_model(const std::string& name) const;
  HttpError unknown_model(const std::string& name) const;
};

bool HttpServer::State::knows_model(const std::string& name) const {
  return name.empty() || name == "default" || name == service.load()->profile().model_name;
}

HttpError HttpServer::State::unknown_model(const std::string& name) const {
  const std::string here = service.load()->profile().model_name;
  return openai_error(404, "the model '" + name + "' is not served here; this server has '" + here + "'",
                      "model_not_found");
}

// Null when requests cannot be answered yet or any more; the response then says so.
Service* HttpServer::State::service_or_refuse(httplib::Response& response) const {
  Service* const current = service.load();
  if (stopping) {
    reply(response, openai_error(503, "the server is stopping", "not_ready"));
    return nullptr;
  }
  if (current == nullptr) reply(response, openai_error(503, "the model is still loading; ask /ready", "not_ready"));
  return current;
}

void HttpServer::State::answer(const CompletionRequest& wanted, const httplib::Request& request,
                               httplib::Response& response) {
  Service& current = *service.load();
  std::shared_ptr<void> in_progress = answers.begin();
  const AnswerHead head = {wanted.endpoint, answer_id(wanted.endpoint), static_cast<int64_t>(std::time(nullptr)),
                           current.profile().model_name};
  auto made = std::make_unique<Answer>(current.start(wanted), watch, request);
  if (!wanted.stream) {
    Generation& generation = *made->generation;
    std::string text, piece;
    while (generation.next(piece)) text += piece;
    reply(response, 200, completion_response(head, text, generation.finish_reason(), generation.usage()));
    return;
  }
  auto stream = std::make_shared<Stream>();
  stream->in_progress = std::move(in_progress);
  stream->answer = std::move(made);
  stream->head = head;
  stream->usage = wanted.stream_usage;
  response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider("text/event-stream",
                                        [stream](size_t, httplib::DataSink& sink) { return stream->pump(sink); });
}

void HttpServer::State::complete(Endpoint endpoint, const httplib::Request& request, httplib::Response& response) {
  const Service* const current = service_or_refuse(response);
  if (current == nullptr) return;
  try {
    const CompletionRequest wanted =
        parse_completion_request(endpoint, request.body, current->sampling_defaults(), random_word());
    if (!knows_model(wanted.model)) return reply(response, unknown_model(wanted.model));
    answer(wanted, request, response);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCapacity) response.set_header("Retry-After", "1");
    reply(response, openai_error(error));
  }
}

void HttpServer::State::add_model_routes() {
  using httplib::Request;
  using httplib::Response;
  server.Get(std::string(kModelsPath), [this](const Request&, Response& response) {
    const Service* const current = service_or_refuse(response);
    if (current == nullptr) return;
    reply(response, 200, models_response(current->profile().model_name, created, current->max_context()));
  });
  server.Get(std::string(kModelsPath) + "/(.+)", [this](const Request& request, Response& response) {
    const Service* const current = service_or_refuse(response);
    if (current == nullptr) return;
    const std::string name = request.matches[1];
    if (!knows_model(name)) return reply(response, unknown_model(name));
    reply(response, 200, model_response(current->profile().model_name, created, current->max_context()));
  });
}

void HttpServer::State::add_routes() {
  using httplib::Request;
  using httplib::Response;
  server.Get("/health", [](const Request&, Response& response) { reply(response, 200, "{\"status\": \"alive\"}\n"); });
  server.Get("/ready", [this](const Request&, Response& response) {
    if (stopping) return reply(response, 503, "{\"status\": \"stopping\", \"reason\": \"told to stop\"}\n");
    const bool ready = service.load() != nullptr;
    reply(
        response, ready ? 200 : 503,
        ready ? "{\"status\": \"ready\"}\n" : "{\"status\": \"loading\", \"reason\": \"weights are being loaded\"}\n");
  });
  add_model_routes();
  server.Get("/v1/stats", [this](const Request&, Response& response) {
    const Service* const current = service_or_refuse(response);
    if (current != nullptr) reply(response, 200, stats_json(current->profile(), current->stats()));
  });
  server.Get("/metrics", [this](const Request&, Response& response) {
    const Service* const current = service.load();
    if (current == nullptr) return reply(response, 503, "# the model is still loading\n", "text/plain");
    reply(response, 200, prometheus_text(current->profile(), current->stats()), "text/plain; version=0.0.4");
  });
  server.Post("/v1/chat/completions",
              [this](const Request& request, Response& response) { complete(Endpoint::kChat, request, response); });
  server.Post("/v1/completions", [this](const Request& request, Response& response) {
    complete(Endpoint::kCompletion, request, response);
  });
}

void HttpServer::State::add_error_handlers() {
  using httplib::Request;
  using httplib::Response;
  // A method that may have a body, sent without one and without its length: httplib would read until the connection
  // closes or times out.
  server.set_pre_routing_handler([](const Request& request, Response& response) {
    const bool may_have_body = request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
    if (!may_have_body || request.has_header("Content-Length") || request.has_header("Transfer-Encoding")) {
      return httplib::Server::HandlerResponse::Unhandled;
    }
    if (allowed_methods(request.path) != "POST" || request.method != "POST") {
      response.status = 404;  // the error handler tells a path that is not there from a method that is not
    } else {
      reply(response, openai_error(411, "the request has no body: send JSON and its Content-Length", ""));
    }
    return httplib::Server::HandlerResponse::Handled;
  });
  server.set_error_handler([](const Request& request, Response& response) {
    if (!response.body.empty()) return;
    const std::string asked = request.method + " " + request.path;
    if (response.status == 404) {
      const std::string methods(allowed_methods(request.path));
      if (methods.empty()) return reply(response, openai_error(404, "no such endpoint: " + asked, "not_found"));
      response.set_header("Allow", methods);
      return reply(response,
                   openai_error(405, "no such method here: " + asked + "; allowed: " + methods, "method_not_allowed"));
    }
    const std::string what = response.status == 413
                                 ? "the request body is larger than 8 MiB, or it is sent as a form: send it with "
                                   "Content-Type: application/json"
                                 : "the request could not be read";
    reply(response, openai_error(response.status, what, ""));
  });
  server.set_exception_handler([](const Request&, Response& response, const std::exception_ptr&) {
    reply(response, openai_error(500, "internal error", ""));
  });
}

HttpServer::HttpServer(const std::string& host, int port) : state_(std::make_unique<State>()) {
  check_listen_host(host);
  State& s = *state_;
  s.created = static_cast<int64_t>(std::time(nullptr));
  s.server.new_task_queue = [] { return new httplib::ThreadPool(kHttpThreads); };
  s.server.set_payload_max_length(kMaxRequestBytes);
  s.server.set_keep_alive_timeout(kHttpIdleSeconds);
  s.server.set_read_timeout(kHttpReadSeconds, 0);
  s.server.set_write_timeout(kHttpWriteSeconds, 0);
  s.server.set_tcp_nodelay(true);
  // The library's default also sets SO_REUSEPORT, with which a second server on the same port would start and share
  // the requests instead of being refused.
  s.server.set_socket_options([&s](auto socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    s.listener = socket;  // the last one is what was bound
  });
  s.add_routes();
  s.add_error_handlers();
  s.port = port == 0 ? s.server.bind_to_any_port(host) : (s.server.bind_to_port(host, port) ? port : -1);
  if (s.port <= 0) throw listen_failure(host, port);
  if (listen(s.listener, kListenBacklog) != 0) throw listen_failure(host, port, errno);
  s.thread = std::thread([&s] { s.server.listen_after_bind(); });
  // A stop() before the thread listens would be lost, and joining it would wait for ever.
  while (!s.server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::port() const { return state_->port; }

void HttpServer::set_ready(Service& service) { state_->service.store(&service); }

void HttpServer::begin_stop() { state_->stopping = true; }

void HttpServer::stop() {
  begin_stop();
  // httplib cuts the streams that are open when it is told to stop, so their last event comes before that.
  state_->answers.wait_for_none(kShutdownGrace);
  state_->watch.hang_up();
  state_->server.stop();
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace ft
