#include "engine/text/chat_template.h"

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/parser.h"
#include "engine/text/tokenizer_json.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// "chat_template" is a string, or a list of {name, template} of which "default" counts.
std::optional<std::string> template_of_config(const JsonNode& config) {
  if (!config.has("chat_template")) return {};
  const JsonNode node = config.at("chat_template");
  if (node.value.is_string()) return node.text();
  for (size_t i = 0; i < node.size(); ++i) {
    if (node.at(i).at("name").text() == "default") return node.at(i).at("template").text();
  }
  return {};
}

}  // namespace

struct ChatTemplate::State {
  std::unique_ptr<const jinja::CompiledTemplate> compiled;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

std::unique_ptr<ChatTemplate> ChatTemplate::compile(std::string_view source) {
  std::unique_ptr<ChatTemplate> result(new ChatTemplate);
  result->state_ = std::make_unique<State>();
  result->state_->compiled = jinja::parse_template(source);
  return result;
}

std::unique_ptr<ChatTemplate> ChatTemplate::load(const std::string& directory) {
  namespace fs = std::filesystem;
  const fs::path file = fs::path(directory) / "chat_template.jinja";
  if (fs::exists(file)) return compile(read_text_file(file.string(), jinja::kMaxTemplateBytes));
  const fs::path config = fs::path(directory) / "tokenizer_config.json";
  if (!fs::exists(config)) return nullptr;
  const Json json = read_json_file(config.string());
  const std::optional<std::string> source = template_of_config({json, config.string() + ": $"});
  return source.has_value() ? compile(*source) : nullptr;
}

std::string ChatTemplate::render(const OrderedJson& variables, std::optional<int64_t> now_unix_seconds) const {
  if (!variables.is_object()) {
    throw Error(ErrorKind::kRequest,
                {"template variables are not an object", variables.type_name(), "an object", "", ""});
  }
  const int64_t now = now_unix_seconds.has_value() ? *now_unix_seconds : static_cast<int64_t>(std::time(nullptr));
  jinja::Interpreter interpreter(*state_->compiled, variables, now);
  try {
    return interpreter.run();
  } catch (const jinja::Failure& failure) {
    std::string what = "chat template, line " + std::to_string(interpreter.line());
    what.append(failure.raised_by_template ? ", refuses the messages: " : ": ").append(failure.message);
    throw Error(ErrorKind::kRequest, {std::move(what), "", "", "", ""});
  }
}

}  // namespace ft
