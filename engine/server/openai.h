// The OpenAI wire types that are served: requests in, responses and errors out. No HTTP here.
//
// A field that would be accepted without an effect is refused instead; `user`, `metadata`, `store`, `service_tier` and
// `safety_identifier` are the exceptions: they address a hosted service's bookkeeping and are ignored.
// Source: OpenAI API reference, chat completions and completions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/sampler.h"
#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft {

inline constexpr size_t kMaxMessages = 4096;

enum class Endpoint : uint8_t { kChat, kCompletion };

struct CompletionRequest {
  Endpoint endpoint{};
  std::string model;                                // as the client named it
  std::shared_ptr<OrderedJson> template_variables;  // chat: messages and chat_template_kwargs for the template
  std::string prompt_text;                          // completion with a string prompt
  std::vector<int32_t> prompt_ids;                  // completion with ids
  bool prompt_is_ids = false;
  std::optional<int64_t> max_tokens;  // absent: the rest of the context (chat), 16 (completion)
  std::vector<std::string> stops;
  SamplingOptions sampling;  // the model's defaults, overridden by what was given
  bool stream = false;
  bool stream_usage = false;
};

// `body` is the text of the request. Throws Error(kRequest) whose path is the field.
CompletionRequest parse_completion_request(Endpoint endpoint, std::string_view body, const SamplingOptions& defaults,
                                           uint64_t default_seed);

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

// Everything that names one answer; the same in all of its chunks.
struct AnswerHead {
  Endpoint endpoint{};
  std::string id;
  int64_t created = 0;
  std::string model;
};

std::string completion_response(const AnswerHead& head, std::string_view text, std::string_view finish_reason,
                                const Usage& usage);
// One server-sent event, "data: {...}\n\n". finish_reason empty: null. first: chat chunks carry the role.
std::string completion_chunk(const AnswerHead& head, std::string_view text, std::string_view finish_reason, bool first);
std::string usage_chunk(const AnswerHead& head, const Usage& usage);
inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

struct HttpError {
  int status = 500;
  std::string body;  // {"error": {"message", "type", "param", "code"}}
};
HttpError openai_error(const Error& error);
HttpError openai_error(int status, std::string_view message, std::string_view code);
std::string model_response(const std::string& model, int64_t created, int64_t max_context);
std::string models_response(const std::string& model, int64_t created, int64_t max_context);

}  // namespace ft
