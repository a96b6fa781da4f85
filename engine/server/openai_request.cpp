#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/server/openai.h"

namespace ft {
namespace {

using Object = OrderedJson;

[[noreturn]] void refuse(std::string path, const Object& value, std::string allowed,
                         std::string what = "field refused") {
  constexpr size_t kShownBytes = 80;
  std::string shown = value.dump(-1, ' ', false, Object::error_handler_t::replace);
  if (shown.size() > kShownBytes) shown = shown.substr(0, kShownBytes) + "...";
  throw Error(ErrorKind::kRequest, {std::move(what), std::move(shown), std::move(allowed), "", std::move(path)});
}

const Object* find(const Object& body, const char* key) {
  const auto it = body.find(key);
  return it == body.end() || it->is_null() ? nullptr : &*it;
}

int64_t integer(const Object& value, const char* path, int64_t low, int64_t high) {
  const std::string allowed = "an integer, " + std::to_string(low) + " to " + std::to_string(high);
  if (!value.is_number_integer()) refuse(path, value, allowed);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high)) refuse(path, value, allowed);
  const auto number = value.get<int64_t>();
  if (number < low || number > high) refuse(path, value, allowed);
  return number;
}

double number(const Object& value, const char* path) {
  if (!value.is_number()) refuse(path, value, "a number");
  return value.get<double>();
}

bool boolean(const Object& value, const char* path) {
  if (!value.is_boolean()) refuse(path, value, "true or false");
  return value.get<bool>();
}

std::string text(const Object& value, const std::string& path) {
  if (!value.is_string()) refuse(path, value, "a string");
  return value.get<std::string>();
}

constexpr std::array kCommonFields = {"model",
                                      "max_tokens",
                                      "temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "repetition_penalty",
                                      "presence_penalty",
                                      "frequency_penalty",
                                      "seed",
                                      "stop",
                                      "stream",
                                      "stream_options",
                                      "n",
                                      "logit_bias",
                                      "logprobs"};
constexpr std::array kIgnoredFields = {"user", "metadata", "store", "service_tier", "safety_identifier"};
constexpr std::array kChatFields = {
    "messages",    "max_completion_tokens", "chat_template_kwargs", "top_logprobs",         "tools",
    "tool_choice", "response_format",       "parallel_tool_calls",  "add_generation_prompt"};
constexpr std::array kCompletionFields = {"prompt", "echo", "best_of", "suffix"};

template <class Names>
bool contains(const Names& names, const std::string& key) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const char* name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

void check_fields(Endpoint endpoint, const Object& body) {
  const bool is_chat = endpoint == Endpoint::kChat;
  for (const auto& [key, value] : body.items()) {
    const bool known = contains(kCommonFields, key) || contains(kIgnoredFields, key) ||
                       (is_chat ? contains(kChatFields, key) : contains(kCompletionFields, key));
    if (known) continue;
    const std::string allowed = (is_chat ? listed(kChatFields) : listed(kCompletionFields)) + ", " +
                                listed(kCommonFields) + "; ignored: " + listed(kIgnoredFields);
    refuse(key, value, allowed, is_chat ? "no field of a chat request here" : "no field of a completion request here");
  }
}

// Fields that clients send with their neutral value; any other value would be accepted without an effect.
void check_neutral(const Object& body) {
  const auto only = [&body](const char* key, const Object& neutral, const char* allowed) {
    const Object* value = find(body, key);
    if (value != nullptr && *value != neutral) refuse(key, *value, allowed, "field not supported");
  };
  only("n", 1, "1");
  only("best_of", 1, "1");
  only("echo", false, "false");
  only("suffix", "", "absent");
  only("logit_bias", Object::object(), "absent or empty");
  only("tools", Object::array(), "absent or empty");
  only("parallel_tool_calls", true, "absent");
  only("tool_choice", "none", "absent or \"none\"");
  only("top_logprobs", 0, "absent");
  const Object* logprobs = find(body, "logprobs");
  if (logprobs != nullptr && *logprobs != false)
    refuse("logprobs", *logprobs, "absent or false", "field not supported");
  const Object* format = find(body, "response_format");
  if (format != nullptr && *format != Object{{"type", "text"}}) {
    refuse("response_format", *format, "{\"type\": \"text\"}", "field not supported");
  }
}

void read_sampling(const Object& body, SamplingOptions& sampling) {
  const auto read = [&body](const char* key, double& into) {
    if (const Object* value = find(body, key)) into = number(*value, key);
  };
  read("temperature", sampling.temperature);
  read("top_p", sampling.top_p);
  read("min_p", sampling.min_p);
  read("repetition_penalty", sampling.repetition_penalty);
  read("presence_penalty", sampling.presence_penalty);
  read("frequency_penalty", sampling.frequency_penalty);
  if (const Object* value = find(body, "top_k")) {
    sampling.top_k = static_cast<int>(integer(*value, "top_k", 0, std::numeric_limits<int32_t>::max()));
  }
  if (const Object* value = find(body, "seed")) {
    constexpr int64_t kLow = std::numeric_limits<int64_t>::min(), kHigh = std::numeric_limits<int64_t>::max();
    sampling.seed = static_cast<uint64_t>(integer(*value, "seed", kLow, kHigh));
  }
  check_sampling(sampling);
}

std::vector<std::string> read_stops(const Object& body) {
  const Object* value = find(body, "stop");
  if (value == nullptr) return {};
  const std::string allowed = "a string or up to " + std::to_string(kMaxStopStrings) + " strings, each of 1 to " +
                              std::to_string(kMaxStopBytes) + " bytes";
  std::vector<std::string> stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array() && value->size() <= kMaxStopStrings) {
    for (const Object& stop : *value) {
      if (!stop.is_string()) refuse("stop", *value, allowed);
      stops.push_back(stop.get<std::string>());
    }
  } else {
    refuse("stop", *value, allowed);
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) refuse("stop", *value, allowed);
  }
  return stops;
}

// A message's content: a string, or parts of type text, which are joined.
std::string content_text(const Object& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  const std::string allowed = "a string or parts of type \"text\"";
  if (!content.is_array()) refuse(path, content, allowed);
  std::string joined;
  for (const Object& part : content) {
    const Object* type = part.is_object() ? find(part, "type") : nullptr;
    const Object* words = part.is_object() ? find(part, "text") : nullptr;
    if (type == nullptr || *type != "text" || words == nullptr || !words->is_string()) {
      refuse(path, part, allowed, "content part not supported");
    }
    joined += words->get<std::string>();
  }
  return joined;
}

Object read_message(const Object& message, const std::string& path) {
  static constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (!message.is_object()) refuse(path, message, "an object with role and content");
  if (!message.contains("role")) refuse(path, message, "an object with role and content");
  const std::string role = text(message["role"], path + ".role");
  if (!contains(kRoles, role)) refuse(path + ".role", message["role"], "system, developer, user, assistant or tool");
  Object read = message;
  read["role"] = role == "developer" ? "system" : role;
  const bool has_content = message.contains("content") && !message["content"].is_null();
  if (!has_content && role != "assistant") refuse(path + ".content", Object(), "a string or parts of type \"text\"");
  read["content"] = has_content ? content_text(message["content"], path + ".content") : "";
  return read;
}

void read_chat(const Object& body, CompletionRequest& request) {
  const Object* messages = find(body, "messages");
  if (messages == nullptr) refuse("messages", Object(), "a list of messages", "field missing");
  const std::string allowed = "a list of 1 to " + std::to_string(kMaxMessages) + " messages";
  if (!messages->is_array() || messages->empty() || messages->size() > kMaxMessages)
    refuse("messages", *messages, allowed);
  Object variables = Object::object();
  variables["messages"] = Object::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    variables["messages"].push_back(read_message((*messages)[i], "messages[" + std::to_string(i) + "]"));
  }
  variables["add_generation_prompt"] = true;
  if (const Object* value = find(body, "add_generation_prompt")) {
    variables["add_generation_prompt"] = boolean(*value, "add_generation_prompt");
  }
  if (const Object* kwargs = find(body, "chat_template_kwargs")) {
    if (!kwargs->is_object()) refuse("chat_template_kwargs", *kwargs, "an object");
    for (const auto& [key, value] : kwargs->items()) {
      if (key == "messages") refuse("chat_template_kwargs.messages", value, "any other name");
      variables[key] = value;
    }
  }
  request.template_variables = std::make_shared<Object>(std::move(variables));
}

void read_prompt(const Object& body, CompletionRequest& request) {
  const Object* prompt = find(body, "prompt");
  const std::string allowed = "a string, or a list of token ids, or a list with one of either";
  if (prompt == nullptr) refuse("prompt", Object(), allowed, "field missing");
  if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) prompt = &prompt->front();
  if (prompt->is_string()) {
    request.prompt_text = prompt->get<std::string>();
    return;
  }
  if (!prompt->is_array() || prompt->empty()) refuse("prompt", *prompt, allowed);
  request.prompt_is_ids = true;
  for (const Object& id : *prompt) {
    if (!id.is_number_integer()) refuse("prompt", *prompt, allowed);
    request.prompt_ids.push_back(static_cast<int32_t>(integer(id, "prompt", 0, std::numeric_limits<int32_t>::max())));
  }
}

Object parse_body(std::string_view text) {
  try {
    Object body = parse_ordered_json(text, "request body");
    if (!body.is_object()) refuse("body", body, "a JSON object");
    return body;
  } catch (const Error& error) {
    throw Error(ErrorKind::kRequest, error.parts());  // what is wrong with a body's text is the request's fault
  }
}

}  // namespace

CompletionRequest parse_completion_request(Endpoint endpoint, std::string_view text_of_body,
                                           const SamplingOptions& defaults, uint64_t default_seed) {
  const Object body = parse_body(text_of_body);
  check_fields(endpoint, body);
  check_neutral(body);
  CompletionRequest request;
  request.endpoint = endpoint;
  request.sampling = defaults;
  request.sampling.seed = default_seed;
  if (const Object* value = find(body, "model")) request.model = text(*value, "model");
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (const Object* value = find(body, key)) {
      request.max_tokens = integer(*value, key, 1, std::numeric_limits<int32_t>::max());
    }
  }
  read_sampling(body, request.sampling);
  request.stops = read_stops(body);
  if (const Object* value = find(body, "stream")) request.stream = boolean(*value, "stream");
  if (const Object* value = find(body, "stream_options")) {
    if (!value->is_object()) refuse("stream_options", *value, "an object");
    for (const auto& [key, option] : value->items()) {
      if (key != "include_usage") refuse("stream_options." + key, option, "include_usage");
      request.stream_usage = boolean(option, "stream_options.include_usage");
    }
  }
  if (endpoint == Endpoint::kChat) {
    read_chat(body, request);
  } else {
    read_prompt(body, request);
  }
  return request;
}

}  // namespace ft
