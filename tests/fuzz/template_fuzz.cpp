// A chat template from arbitrary bytes, rendered with a conversation, within the limits or an Error. Bytes after a NUL,
// when they are JSON, are more variables.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/text/chat_template.h"
#include "kernels/base/error.h"

namespace {

const ft::OrderedJson& conversation() {
  static const ft::OrderedJson variables = ft::OrderedJson::parse(R"({
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "é\n<x>"},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}}],
    "add_generation_prompt": true, "bos_token": "<s>"})");
  return variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t nul = input.find('\0');
  try {
    const auto chat_template = ft::ChatTemplate::compile(input.substr(0, nul));
    ft::OrderedJson variables = conversation();
    if (nul != std::string_view::npos) {
      const ft::OrderedJson more = ft::parse_ordered_json(input.substr(nul + 1), "variables");
      if (more.is_object()) variables.update(more);
    }
    static_cast<void>(chat_template->render(variables, 0));
  } catch (const ft::Error&) {
  }
  return 0;
}
