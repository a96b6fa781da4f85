// Checked against: the API reference's field names, types and ranges, written out by hand.
#include "engine/server/openai.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace {

using ft::Endpoint;

ft::SamplingOptions defaults() {
  ft::SamplingOptions sampling;
  sampling.temperature = 0.7;
  sampling.top_p = 0.9;
  return sampling;
}

ft::CompletionRequest chat(const std::string& fields) {
  return ft::parse_completion_request(
      Endpoint::kChat,
      R"({"messages": [{"role": "user", "content": "hi"}])" + (fields.empty() ? "" : ", " + fields) + "}", defaults(),
      42);
}

ft::CompletionRequest completion(const std::string& body) {
  return ft::parse_completion_request(Endpoint::kCompletion, body, defaults(), 42);
}

// The path of the Error that a body causes; "" when it is taken.
std::string refused(Endpoint endpoint, const std::string& body) {
  try {
    ft::parse_completion_request(endpoint, body, defaults(), 1);
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kRequest);
    return error.parts().path.empty() ? "?" : error.parts().path;
  }
  return "";
}

std::string refused_chat(const std::string& fields) {
  return refused(Endpoint::kChat, R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}");
}

}  // namespace

TEST_CASE("what is not given comes from the model's defaults") {
  const ft::CompletionRequest request = chat("");
  CHECK(request.sampling.temperature == 0.7);
  CHECK(request.sampling.top_p == 0.9);
  CHECK(request.sampling.seed == 42);
  CHECK(!request.max_tokens);
  CHECK(!request.stream);
  CHECK((*request.template_variables)["messages"][0]["content"] == "hi");
  CHECK((*request.template_variables)["add_generation_prompt"] == true);
}

TEST_CASE("every field is read") {
  const ft::CompletionRequest request = chat(
      R"("model": "m", "max_tokens": 5, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": -1,
         "repetition_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2, "stop": ["a", "b"], "stream": true,
         "stream_options": {"include_usage": true}, "n": 1, "user": "u", "logprobs": false, "tools": [],
         "chat_template_kwargs": {"enable_thinking": false})");
  CHECK(request.model == "m");
  CHECK(*request.max_tokens == 5);
  CHECK(request.sampling.temperature == 0);
  CHECK(request.sampling.top_k == 3);
  CHECK(request.sampling.seed == ~uint64_t{0});
  CHECK(request.sampling.presence_penalty == -2);
  CHECK(request.stops == std::vector<std::string>{"a", "b"});
  CHECK(request.stream);
  CHECK(request.stream_usage);
  CHECK((*request.template_variables)["enable_thinking"] == false);
  CHECK(*chat(R"("max_completion_tokens": 9)").max_tokens == 9);
}

TEST_CASE("null is as good as absent") {
  CHECK_NOTHROW(chat(R"("stop": null, "seed": null, "temperature": null, "logit_bias": null, "tools": null)"));
}

TEST_CASE("contents: strings, text parts, developer as system, an assistant without content") {
  const ft::CompletionRequest request = ft::parse_completion_request(
      Endpoint::kChat,
      R"({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": null}, {"role": "user", "content": "é"}]})",
      defaults(), 1);
  const ft::OrderedJson& messages = (*request.template_variables)["messages"];
  CHECK(messages[0]["role"] == "system");
  CHECK(messages[0]["content"] == "ab");
  CHECK(messages[1]["content"] == "");
  CHECK(messages[2]["content"] == "é");
}

TEST_CASE("what cannot be honoured is refused and the field named") {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature": 2.01)", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("temperature": "1")", "temperature"},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.01)", "top_p"},
      {R"("min_p": 1)", "min_p"},
      {R"("top_k": -1)", "top_k"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("presence_penalty": 2.1)", "presence_penalty"},
      {R"("frequency_penalty": -2.1)", "frequency_penalty"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 99999999999)", "max_tokens"},
      {R"("seed": 1.5)", "seed"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("n": 2)", "n"},
      {R"("logprobs": true)", "logprobs"},
      {R"("logit_bias": {"1": 2})", "logit_bias"},
      {R"("tools": [{}])", "tools"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": {"x": 1})", "stream_options.x"},
      {R"("stop": [])", ""},
      {R"("stop": "")", "stop"},
      {R"("stop": [1])", "stop"},
      {R"("response_format": {"type": "json_object"})", "response_format"},
      {R"("best_of": 1)", "best_of"},
      {R"("nonsense": 1)", "nonsense"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs.messages"},
  };
  for (const auto& [given, path] : cases) {
    const std::string fields = given;
    CAPTURE(fields);
    CHECK(refused_chat(fields) == path);
  }
}

TEST_CASE("messages are checked one by one") {
  CHECK(refused(Endpoint::kChat, "{}") == "messages");
  CHECK(refused(Endpoint::kChat, R"({"messages": []})") == "messages");
  CHECK(refused(Endpoint::kChat, R"({"messages": [1]})") == "messages[0]");
  CHECK(refused(Endpoint::kChat, R"({"messages": [{"role": "user", "content": "a"}, {"content": "b"}]})") ==
        "messages[1]");
  CHECK(refused(Endpoint::kChat, R"({"messages": [{"role": "robot", "content": "b"}]})") == "messages[0].role");
  CHECK(refused(Endpoint::kChat, R"({"messages": [{"role": "user"}]})") == "messages[0].content");
  for (const char* part : {R"({"type": "image_url"})", R"({"type": 1, "text": "a"})", R"({"type": null, "text": "a"})",
                           R"({"text": "a"})", R"({"type": "text"})", R"({"type": "text", "text": 1})", "1"}) {
    CAPTURE(part);
    const std::string body = R"({"messages": [{"role": "user", "content": [)" + std::string(part) + "]}]}";
    CHECK(refused(Endpoint::kChat, body) == "messages[0].content");
  }
}

TEST_CASE("stop strings at the bound and one past it") {
  const auto stops = [](size_t count, size_t bytes) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += (i == 0 ? "\"" : ", \"") + std::string(bytes, 'x') + "\"";
    return "\"stop\": [" + list + "]";
  };
  CHECK(refused_chat(stops(ft::kMaxStopStrings, ft::kMaxStopBytes)).empty());
  CHECK(refused_chat(stops(ft::kMaxStopStrings + 1, 1)) == "stop");
  CHECK(refused_chat(stops(1, ft::kMaxStopBytes + 1)) == "stop");
}

TEST_CASE("prompts: text, ids, a list with one of either") {
  CHECK(completion(R"({"prompt": "a"})").prompt_text == "a");
  CHECK(completion(R"({"prompt": ["a"]})").prompt_text == "a");
  CHECK(completion(R"({"prompt": [1, 2]})").prompt_ids == std::vector<int32_t>{1, 2});
  CHECK(completion(R"({"prompt": [[1, 2]]})").prompt_ids == std::vector<int32_t>{1, 2});
  CHECK(completion(R"({"prompt": [7]})").prompt_is_ids);
  for (const char* body : {R"({})", R"({"prompt": []})", R"({"prompt": ["a", "b"]})", R"({"prompt": [[1], [2]]})",
                           R"({"prompt": [-1]})", R"({"prompt": [1.5]})", R"({"prompt": {}})"}) {
    CAPTURE(body);
    CHECK(refused(Endpoint::kCompletion, body) == "prompt");
  }
  CHECK(refused(Endpoint::kCompletion, R"({"prompt": "a", "messages": []})") == "messages");
  CHECK(refused(Endpoint::kCompletion, R"({"prompt": "a", "echo": true})") == "echo");
}

TEST_CASE("a body that is no JSON object, too deep or bad UTF-8 is a request error") {
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string("1"), std::string(100000, '['),
        std::string("{\"prompt\": \"\xff\"}"), std::string("{\"prompt\": NaN}"), std::string()}) {
    CHECK(!refused(Endpoint::kCompletion, body).empty());
  }
}

TEST_CASE("responses carry what clients read") {
  const ft::AnswerHead head = {Endpoint::kChat, "chatcmpl-1", 5, "m"};
  const auto json = ft::OrderedJson::parse(ft::completion_response(head, "a\"b", "stop", {3, 4}));
  CHECK(json["object"] == "chat.completion");
  CHECK(json["choices"][0]["message"]["content"] == "a\"b");
  CHECK(json["choices"][0]["finish_reason"] == "stop");
  CHECK(json["usage"]["total_tokens"] == 7);
  const std::string chunk = ft::completion_chunk(head, "x", "", false);
  CHECK(chunk.starts_with("data: "));
  CHECK(chunk.ends_with("\n\n"));
  const auto event = ft::OrderedJson::parse(chunk.substr(6));
  CHECK(event["choices"][0]["delta"]["content"] == "x");
  CHECK(event["choices"][0]["finish_reason"].is_null());
  const ft::AnswerHead plain = {Endpoint::kCompletion, "cmpl-1", 5, "m"};
  CHECK(ft::OrderedJson::parse(ft::completion_response(plain, "t", "length", {}))["choices"][0]["text"] == "t");
}

TEST_CASE("errors map to status and OpenAI's form") {
  const auto status = [](ft::ErrorKind kind) {
    return ft::openai_error(ft::Error(kind, {"w", "v", "a", "do", "field"})).status;
  };
  CHECK(status(ft::ErrorKind::kRequest) == 400);
  CHECK(status(ft::ErrorKind::kCapacity) == 503);
  CHECK(status(ft::ErrorKind::kFailed) == 500);
  const auto json =
      ft::OrderedJson::parse(ft::openai_error(ft::Error(ft::ErrorKind::kRequest, {"w", "v", "a", "", "field"})).body);
  CHECK(json["error"]["type"] == "invalid_request_error");
  CHECK(json["error"]["param"] == "field");
  CHECK(json["error"]["message"] == "w: field is 'v'; allowed: a");
}

TEST_CASE("an unknown field is named, with the fields of its endpoint") {
  const auto message = [](Endpoint endpoint, const char* body) -> std::string {
    try {
      ft::parse_completion_request(endpoint, body, defaults(), 1);
    } catch (const ft::Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string chat_error = message(Endpoint::kChat, R"({"functions": []})");
  CHECK(chat_error.starts_with("no field of a chat request here: functions is '[]'; allowed: messages, "));
  CHECK(chat_error.find(", max_tokens, ") != std::string::npos);
  CHECK(chat_error.find("best_of") == std::string::npos);  // of completions only
  const std::string completion_error = message(Endpoint::kCompletion, R"({"messages": 1})");
  CHECK(completion_error.starts_with("no field of a completion request here: messages is '1'; allowed: prompt, "));
}

TEST_CASE("one model answers as an entry of the list does") {
  const ft::OrderedJson list = ft::OrderedJson::parse(ft::models_response("m", 5, 64));
  CHECK(ft::OrderedJson::parse(ft::model_response("m", 5, 64)) == list["data"][0]);
  CHECK(list["data"].size() == 1);
  CHECK(list["data"][0]["object"] == "model");
}
