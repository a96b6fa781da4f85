// A request's body for both endpoints: taken with everything within its limits, or refused with an Error(kRequest) that
// names the field and becomes an OpenAI error of status 400.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/server/openai.h"
#include "kernels/base/error.h"

namespace {

void check_taken(const ft::CompletionRequest& request, ft::Endpoint endpoint) {
  FT_CHECK(request.endpoint == endpoint);
  FT_CHECK(!request.max_tokens || *request.max_tokens >= 1);
  FT_CHECK(request.stops.size() <= ft::kMaxStopStrings);
  for (const std::string& stop : request.stops) FT_CHECK(!stop.empty() && stop.size() <= ft::kMaxStopBytes);
  ft::check_sampling(request.sampling);
  if (endpoint == ft::Endpoint::kChat) {
    const ft::OrderedJson& messages = request.template_variables->at("messages");
    FT_CHECK(messages.is_array() && !messages.empty() && messages.size() <= ft::kMaxMessages);
    for (const ft::OrderedJson& message : messages) {
      FT_CHECK(message.at("role").is_string() && message.at("content").is_string());
    }
  } else {
    FT_CHECK(request.prompt_is_ids == !request.prompt_ids.empty());
    for (const int32_t id : request.prompt_ids) FT_CHECK(id >= 0);
  }
}

void check(ft::Endpoint endpoint, std::string_view body) {
  try {
    check_taken(ft::parse_completion_request(endpoint, body, ft::SamplingOptions{}, 7), endpoint);
  } catch (const ft::Error& error) {
    FT_CHECK(error.kind() == ft::ErrorKind::kRequest);
    const ft::HttpError answer = ft::openai_error(error);
    FT_CHECK(answer.status == 400);
    FT_CHECK(ft::OrderedJson::parse(answer.body).at("error").at("message").is_string());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check(ft::Endpoint::kChat, body);
  check(ft::Endpoint::kCompletion, body);
  return 0;
}
