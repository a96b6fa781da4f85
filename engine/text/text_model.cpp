#include "engine/text/text_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/text/byte_tokenizer.h"
#include "engine/text/tokenizer_json.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxIds = 64;  // of eos_token_id

// A JSON file of the folder that may be absent.
struct OptionalFile {
  OptionalFile(const fs::path& directory, const char* name) : path((directory / name).string()) {
    if (fs::exists(path)) json = read_json_file(path);
  }
  JsonNode root() const { return {json, path + ": $"}; }

  std::string path;
  Json json;
};

// A token as a string, or as {"content": ...}.
std::string token_text(const JsonNode& config, const char* key) {
  if (!config.has(key)) return {};
  const JsonNode node = config.at(key);
  return node.value.is_object() ? node.at("content").text() : node.text();
}

// eos_token_id: an id or a list of ids; empty when absent.
std::vector<int32_t> eos_ids_of(const JsonNode& config) {
  std::vector<int32_t> ids;
  if (!config.has("eos_token_id")) return ids;
  const JsonNode node = config.at("eos_token_id");
  const auto add = [&ids](const JsonNode& id) { ids.push_back(static_cast<int32_t>(id.integer(0, INT32_MAX))); };
  if (!node.value.is_array()) {
    add(node);
    return ids;
  }
  if (node.size() > kMaxIds)
    node.refuse("too many ids", std::to_string(node.size()), "at most " + std::to_string(kMaxIds));
  for (size_t i = 0; i < node.size(); ++i) add(node.at(i));
  return ids;
}

double number_or(const JsonNode& config, const char* key, double fallback) {
  if (!config.has(key)) return fallback;
  const JsonNode node = config.at(key);
  if (!node.value.is_number()) node.refuse("not a number", node.value.type_name(), "a number");
  return node.value.get<double>();
}

SamplingOptions sampling_of(const JsonNode& config) {
  SamplingOptions options;
  // transformers samples only when do_sample says so, and it is false when left out.
  if (!config.flag_or("do_sample", false)) {
    options.temperature = 0;
    return options;
  }
  options.temperature = number_or(config, "temperature", options.temperature);
  options.top_k = config.has("top_k") ? static_cast<int>(config.at("top_k").integer(0, INT32_MAX)) : options.top_k;
  options.top_p = number_or(config, "top_p", options.top_p);
  options.min_p = number_or(config, "min_p", options.min_p);
  options.repetition_penalty = number_or(config, "repetition_penalty", options.repetition_penalty);
  return options;
}

// A checkpoint's defaults meet the same limits as a request's options.
SamplingOptions checked(const SamplingOptions& options) {
  try {
    check_sampling(options);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.what = "generation_config.json refused, " + parts.what;
    throw Error(ErrorKind::kFailed, std::move(parts));
  }
  return options;
}

}  // namespace

TextModel load_text_model(const std::string& model_directory) {
  const fs::path directory(model_directory);
  TextModel model;
  const OptionalFile generation(directory, "generation_config.json");
  const OptionalFile config(directory, "config.json");
  const OptionalFile tokenizer_config(directory, "tokenizer_config.json");
  model.eos_ids = eos_ids_of(generation.root());
  if (model.eos_ids.empty()) model.eos_ids = eos_ids_of(config.root());
  if (!generation.json.is_null()) model.defaults = checked(sampling_of(generation.root()));
  model.bos_token = token_text(tokenizer_config.root(), "bos_token");
  model.eos_token = token_text(tokenizer_config.root(), "eos_token");

  const std::string tokenizer_path = (directory / "tokenizer.json").string();
  if (!fs::exists(tokenizer_path)) {
    model.missing = "the folder " + model_directory +
                    " has no tokenizer.json, so text cannot be encoded: "
                    "only token ids can be scored and the model tuned; put the model's tokenizer.json there";
    return model;
  }
  model.tokenizer = Tokenizer::load(tokenizer_path);
  model.chat_template = ChatTemplate::load(model_directory);
  return model;
}

bool use_byte_tokenizer(TextModel& text, int64_t vocab) {
  if (text.tokenizer != nullptr || vocab < kByteTokens) return false;
  text.tokenizer = make_byte_tokenizer(vocab);
  text.eos_ids.clear();
  text.missing.clear();
  return true;
}

}  // namespace ft
