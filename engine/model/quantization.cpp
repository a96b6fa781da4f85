#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/model/quantization.h"

#include <pcre2.h>

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "engine/model/config_reader.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr const char* kPrefix = "quantization_config.";
constexpr uint32_t kRegexMatchLimit = 10'000;  // PCRE2 steps: a hostile pattern is an error, not a hang
constexpr size_t kMaxRegexes = 256;
constexpr size_t kMaxGlobs = 4096;  // names without wildcards do not count: they are looked up, not tried
constexpr size_t kMaxGroups = 64;
constexpr std::string_view kRoutedExperts = ".experts.";  // in the name of every matrix of a routed expert

// Index of the ']' that closes the set at pattern[open], or npos (then '[' is an ordinary character).
size_t set_end(std::string_view pattern, size_t open) {
  size_t i = open + 1;
  if (i < pattern.size() && pattern[i] == '!') ++i;
  if (i < pattern.size() && pattern[i] == ']') ++i;
  return pattern.find(']', i);
}

bool in_set(std::string_view set, char c) {
  const bool negated = !set.empty() && set[0] == '!';
  bool found = false;
  for (size_t i = negated ? 1 : 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found |= set[i] <= c && c <= set[i + 2];
      i += 2;
    } else {
      found |= set[i] == c;
    }
  }
  return found != negated;
}

// Length of the pattern element at `p` when it matches one character, 0 when it does not.
size_t match_one(std::string_view pattern, size_t p, char c) {
  if (pattern[p] == '?') return 1;
  if (pattern[p] == '[') {
    const size_t end = set_end(pattern, p);
    if (end != std::string_view::npos) return in_set(pattern.substr(p + 1, end - p - 1), c) ? end - p + 1 : 0;
  }
  return pattern[p] == c ? 1 : 0;
}

// `name` itself, then what encloses it: "a.b.c", "a.b", "a".
bool any_ancestor(std::string_view name, const std::function<bool(std::string_view)>& matches) {
  while (true) {
    if (matches(name)) return true;
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return false;
    name = name.substr(0, dot);
  }
}

class Regex {
 public:
  Regex(const std::string& pattern, const ConfigReader& reader, std::string_view key) {
    int code = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_ANCHORED, &code,
                              &offset, nullptr));
    if (!code_) {
      std::array<PCRE2_UCHAR, 128> message{};
      pcre2_get_error_message(code, message.data(), message.size());
      reader.refuse(
          key, "regular expressions after re:", "'" + pattern + "': " + reinterpret_cast<const char*>(message.data()));
    }
    match_.reset(pcre2_match_data_create(1, nullptr));
    context_.reset(pcre2_match_context_create(nullptr));
    FT_CHECK(match_ && context_);
    pcre2_set_match_limit(context_.get(), kRegexMatchLimit);
    pcre2_set_depth_limit(context_.get(), kRegexMatchLimit);
  }

  bool matches(std::string_view text) const {
    const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, match_.get(),
                               context_.get());
    if (rc >= 0) return true;
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    throw Error(ErrorKind::kFailed, {.what = "a pattern of quantization_config takes too long to match",
                                     .value = std::string(text),
                                     .action = "simplify the re: patterns of its ignore list"});
  }

 private:
  template <auto F>
  struct Free {
    template <class T>
    void operator()(T* object) const {
      F(object);
    }
  };
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code_;
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> match_;
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context_;
};

// A list of module names or patterns, in the language of one scheme.
struct ModuleList {
  std::set<std::string, std::less<>> names;
  std::vector<std::string> globs;
  std::vector<Regex> regexes;

  void add_regexes(const std::vector<std::string>& entries, const ConfigReader& reader, std::string_view key) {
    for (const std::string& entry : entries) {
      if (entry.starts_with("re:")) {
        if (regexes.size() == kMaxRegexes) reader.refuse(key, "at most " + std::to_string(kMaxRegexes) + " patterns");
        regexes.emplace_back(entry.substr(3), reader, key);
      } else {
        names.insert(entry);
      }
    }
  }
  void add_globs(const std::vector<std::string>& entries, const ConfigReader& reader, std::string_view key) {
    for (const std::string& entry : entries) {
      if (entry.find_first_of("*?[") == std::string::npos) {
        names.insert(entry);
      } else {
        if (globs.size() == kMaxGlobs) reader.refuse(key, "at most " + std::to_string(kMaxGlobs) + " patterns");
        globs.push_back(entry);
      }
    }
  }
  bool has_name(std::string_view module) const { return names.find(module) != names.end(); }
  bool has_regex(std::string_view module) const {
    for (const Regex& regex : regexes) {
      if (regex.matches(module)) return true;
    }
    return false;
  }
  bool has_glob(std::string_view module) const {
    for (const std::string& glob : globs) {
      if (glob_match(glob, module)) return true;
    }
    return false;
  }
};

std::vector<std::string> read_list(const ConfigReader& reader, std::string_view key) {
  std::vector<std::string> entries = reader.texts(key, kMaxModulePatterns);
  for (const std::string& entry : entries) {
    if (entry.size() > kMaxPatternBytes) {
      reader.refuse(key, "entries of at most " + std::to_string(kMaxPatternBytes) + " bytes");
    }
  }
  return entries;
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0;
  size_t star = std::string_view::npos, star_text = 0;  // last '*', and where its match ends for now
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
      continue;
    }
    const size_t step = p < pattern.size() ? match_one(pattern, p, text[t]) : 0;
    if (step != 0) {
      p += step;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

struct QuantizationRules::State {
  FormatId format = FormatId::kBf16;
  FormatId expert_format = FormatId::kBf16;  // of routed experts
  ModuleList ignored;
  ModuleList targets;                        // compressed-tensors; "Linear" means all
  bool ancestors = false, suffixes = false;  // a name in `ignored` also covers what it encloses; or ends with it

  void read_modelopt(const ConfigReader& reader) {
    const std::string algorithm = reader.text("quant_algo", {"NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN"});
    if (algorithm == "NVFP4") reader.integer("group_size", 16, 16, 16);
    format = algorithm == "NVFP4" ? FormatId::kNvfp4 : algorithm == "FP8" ? FormatId::kFp8Block : FormatId::kFp8Channel;
    expert_format = format;
    for (const char* key : {"ignore", "exclude_modules"}) ignored.add_globs(read_list(reader, key), reader, key);
    ancestors = true;
  }

  // Of a group of compressed-tensors: what a matrix has in the scheme of `packed`. Returns its format.
  static FormatId group_format(FormatId packed, const ConfigReader& reader, const Json& weights) {
    const bool fp8 = packed == FormatId::kFp8Block;
    const int bits = fp8 ? 8 : 4;
    reader.integer("num_bits", bits, bits, bits);
    reader.text("type", {"float"}, "float");
    if (!fp8) {
      const int group_size = format_info(packed).group;
      reader.integer("group_size", group_size, group_size, group_size);
      return packed;
    }
    const std::string strategy = reader.text("strategy", {"tensor", "channel", "block"}, "tensor");
    if (strategy == "channel") return FormatId::kFp8Channel;
    const char* key = "block_structure";
    if (strategy == "block" && weights.value(key, Json()) != Json::array({128, 128})) reader.refuse(key, "[128, 128]");
    return packed;
  }

  void read_compressed_tensors(const ConfigReader& reader) {
    const std::string scheme =
        reader.text("format", {"nvfp4-pack-quantized", "mxfp4-pack-quantized", "float-quantized"});
    format = FormatId::kFp8Block;
    if (scheme == "nvfp4-pack-quantized") format = FormatId::kNvfp4;
    if (scheme == "mxfp4-pack-quantized") format = FormatId::kMxfp4;
    const FormatId packed = expert_format = format;
    ignored.add_regexes(read_list(reader, "ignore"), reader, "ignore");
    const Json* groups = reader.object("config_groups");
    if (groups == nullptr) {
      targets.names.insert("Linear");
      return;
    }
    if (groups->size() > kMaxGroups) reader.refuse("config_groups", "at most " + std::to_string(kMaxGroups));
    std::optional<FormatId> of_all;
    for (const auto& [name, group] : groups->items()) {
      const ConfigReader group_reader(group, std::string(kPrefix) + "config_groups." + name + ".");
      targets.add_regexes(read_list(group_reader, "targets"), group_reader, "targets");
      if (const Json* weights = group_reader.object("weights")) {
        const ConfigReader weights_reader(*weights, std::string(kPrefix) + "config_groups." + name + ".weights.");
        const FormatId own = group_format(packed, weights_reader, *weights);
        if (of_all.value_or(own) != own) weights_reader.refuse("strategy", "what the groups before it have");
        of_all = own;
      }
    }
    format = expert_format = of_all.value_or(packed);
  }

  void read_fp8(const ConfigReader& reader, const Json& config) {
    check_fp8_block_size(config);
    if (!reader.has("weight_block_size")) reader.refuse("weight_block_size", "[128, 128]");
    reader.text("fmt", {"e4m3"}, "e4m3");
    format = expert_format = FormatId::kFp8Block;
    for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
      for (std::string& name : read_list(reader, key)) ignored.names.insert(std::move(name));
    }
    ancestors = suffixes = true;
  }

  void read_mxfp4(const ConfigReader& reader) {
    expert_format = FormatId::kMxfp4;
    const char* key = "modules_to_not_convert";
    ignored.add_globs(read_list(reader, key), reader, key);
    ancestors = true;
  }

  // Where DeepSeek-V4 says it: beside quantization_config, or in it.
  void read_expert_dtype(const ConfigReader& reader) {
    if (!reader.has("expert_dtype")) return;
    if (reader.text("expert_dtype", {"fp4", "fp8"}) == "fp4") expert_format = FormatId::kMxfp4;
  }

  bool is_ignored(std::string_view module) const {
    if (ignored.has_regex(module)) return true;
    const auto listed = [&](std::string_view name) { return ignored.has_name(name) || ignored.has_glob(name); };
    if (ancestors ? any_ancestor(module, listed) : listed(module)) return true;
    for (size_t dot = module.find('.'); suffixes && dot != std::string_view::npos; dot = module.find('.', dot + 1)) {
      if (ignored.has_name(module.substr(dot + 1))) return true;
    }
    return false;
  }

  bool is_target(std::string_view module) const {
    if (targets.names.empty() && targets.regexes.empty()) return true;
    return targets.has_name("Linear") || targets.has_name(module) || targets.has_regex(module);
  }
};

QuantizationRules::QuantizationRules(const Json& config) : state_(std::make_unique<State>()) {
  const ConfigReader whole(config);
  const Json* settings = whole.object("quantization_config");
  if (settings == nullptr) {
    state_->read_expert_dtype(whole);
    return;
  }
  const ConfigReader reader(*settings, kPrefix);
  const std::string method = reader.text("quant_method", {"modelopt", "compressed-tensors", "fp8", "mxfp4"});
  if (method == "modelopt") state_->read_modelopt(reader);
  if (method == "compressed-tensors") state_->read_compressed_tensors(reader);
  if (method == "fp8") state_->read_fp8(reader, config);
  if (method == "mxfp4") state_->read_mxfp4(reader);
  state_->read_expert_dtype(whole);
  state_->read_expert_dtype(reader);
}

QuantizationRules::~QuantizationRules() = default;

FormatId QuantizationRules::format_of(std::string_view module) const {
  if (!state_->is_target(module) || state_->is_ignored(module)) return FormatId::kBf16;
  return module.find(kRoutedExperts) != std::string_view::npos ? state_->expert_format : state_->format;
}

void check_fp8_block_size(const Json& config) {
  const Json* settings = ConfigReader(config).object("quantization_config");
  if (settings == nullptr) return;
  const ConfigReader reader(*settings, kPrefix);
  if (!reader.has("weight_block_size")) return;
  const Json& size = (*settings)["weight_block_size"];
  if (size == Json::array({128, 128})) return;
  throw Error(ErrorKind::kFailed, {.what = "the fp8 scale blocks of this checkpoint are not supported",
                                   .value = size.size() <= 4 ? size.dump() : std::string(size.type_name()),
                                   .allowed = "[128, 128]",
                                   .path = std::string(kPrefix) + "weight_block_size"});
}

}  // namespace ft
