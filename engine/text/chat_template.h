// A checkpoint's chat template (Jinja, as transformers renders it): compiled once, rendered per request. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/json.h"

namespace ft {

class ChatTemplate {
 public:
  // Throws Error naming the construct and its line when the template uses something unsupported.
  static std::unique_ptr<ChatTemplate> compile(std::string_view source);
  // From tokenizer_config.json ("chat_template" as string or list with "default") or chat_template.jinja in the folder;
  // null when there is none.
  static std::unique_ptr<ChatTemplate> load(const std::string& directory);
  ~ChatTemplate();

  // variables: messages, tools, add_generation_prompt, bos_token, ..., as one object. Bounded in work and output
  // (jinja/limits.h); what the template raises (raise_exception) or cannot do is an Error(kRequest) that names the
  // line. now_unix_seconds: what strftime_now shows, in local time; the current time when left out.
  std::string render(const OrderedJson& variables, std::optional<int64_t> now_unix_seconds = {}) const;

 private:
  ChatTemplate();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ft
