#include <nlohmann/json.hpp>

#include "engine/server/openai.h"

namespace ft {
namespace {

// Generated text is whole UTF-8 by construction; a replacement keeps a bug from ending a stream with an exception.
std::string dump(const OrderedJson& json) { return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

OrderedJson finish_json(std::string_view reason) {
  return reason.empty() ? OrderedJson() : OrderedJson(std::string(reason));
}

OrderedJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

OrderedJson head_json(const AnswerHead& head, std::string_view object) {
  return {{"id", head.id}, {"object", std::string(object)}, {"created", head.created}, {"model", head.model}};
}

OrderedJson model_json(const std::string& model, int64_t created, int64_t max_context) {
  return {
      {"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "local"}, {"max_model_len", max_context}};
}

}  // namespace

std::string completion_response(const AnswerHead& head, std::string_view text, std::string_view finish_reason,
                                const Usage& usage) {
  OrderedJson choice = {{"index", 0}};
  if (head.endpoint == Endpoint::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", std::string(text)}};
  } else {
    choice["text"] = std::string(text);
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_json(finish_reason);
  OrderedJson json = head_json(head, head.endpoint == Endpoint::kChat ? "chat.completion" : "text_completion");
  json["choices"] = OrderedJson::array({choice});
  json["usage"] = usage_json(usage);
  return dump(json);
}

std::string completion_chunk(const AnswerHead& head, std::string_view text, std::string_view finish_reason,
                             bool first) {
  OrderedJson choice = {{"index", 0}};
  if (head.endpoint == Endpoint::kChat) {
    OrderedJson delta = OrderedJson::object();
    if (first) delta["role"] = "assistant";
    if (first || !text.empty()) delta["content"] = std::string(text);
    choice["delta"] = delta;
  } else {
    choice["text"] = std::string(text);
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_json(finish_reason);
  OrderedJson json = head_json(head, head.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = OrderedJson::array({choice});
  return "data: " + dump(json) + "\n\n";
}

std::string usage_chunk(const AnswerHead& head, const Usage& usage) {
  OrderedJson json = head_json(head, head.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = OrderedJson::array();
  json["usage"] = usage_json(usage);
  return "data: " + dump(json) + "\n\n";
}

HttpError openai_error(int status, std::string_view message, std::string_view code) {
  const char* type = status < 500 ? "invalid_request_error" : "server_error";
  const OrderedJson json = {{"error",
                             {{"message", std::string(message)},
                              {"type", type},
                              {"param", nullptr},
                              {"code", code.empty() ? OrderedJson() : OrderedJson(std::string(code))}}}};
  return {status, dump(json)};
}

HttpError openai_error(const Error& error) {
  int status = 500;
  if (error.kind() == ErrorKind::kRequest || error.kind() == ErrorKind::kUsage) status = 400;
  if (error.kind() == ErrorKind::kCapacity) status = 503;
  HttpError http = openai_error(status, error.what(), "");
  if (!error.parts().path.empty()) {
    OrderedJson json = OrderedJson::parse(http.body);
    json["error"]["param"] = error.parts().path;
    http.body = dump(json);
  }
  return http;
}

std::string model_response(const std::string& model, int64_t created, int64_t max_context) {
  return dump(model_json(model, created, max_context));
}

std::string models_response(const std::string& model, int64_t created, int64_t max_context) {
  return dump({{"object", "list"}, {"data", OrderedJson::array({model_json(model, created, max_context)})}});
}

}  // namespace ft
