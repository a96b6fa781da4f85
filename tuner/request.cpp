#include "tuner/request.h"

#include <algorithm>
#include <filesystem>

#include "engine/experts/routing_trace.h"
#include "engine/runtime/device.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"
#include "kernels/base/inputs.h"
#include "kernels/base/json.h"
#include "tuner/recording.h"

namespace ft {
namespace {

void read_device(const ParsedOptions& options, TuneRequest& request) {
  const std::string asked = options.text("--device");
  const DeviceChoice choice = choose_device(asked);
  request.device = choice.device;
  if (asked == "auto") request.device_reason = choice.reason;
  request.link_slowdown = static_cast<int>(options.optional_integer("--link-slowdown").value_or(1));
  if (request.link_slowdown == 1 || request.device == Device::kCuda) return;
  throw Error(ErrorKind::kUsage, {.what = "--link-slowdown has an effect only on cuda: the host device has no link",
                                  .action = "leave it out"});
}

// They go into the profile, which is JSON.
void check_utf8(const char* option, const std::string& path) {
  const size_t valid = valid_utf8_bytes(path);
  if (valid == path.size()) return;
  throw Error(ErrorKind::kUsage, {.what = "path that is not UTF-8 from byte " + std::to_string(valid),
                                  .value = replace_invalid_utf8(path),
                                  .allowed = "paths in UTF-8, as the profile names them",
                                  .path = option});
}

// The profile may be served from another folder, so a trace is named by its whole path.
std::string routing_source(const std::string& preset_or_path) {
  std::error_code ignored;
  if (find_routing_preset(preset_or_path) != nullptr || !std::filesystem::exists(preset_or_path, ignored)) {
    return preset_or_path;
  }
  return std::filesystem::absolute(preset_or_path).lexically_normal().string();
}

}  // namespace

namespace {

// What could never prefetch anything: a strategy without a link that fetches, or a preset that predicts nothing.
void check_look_ahead(const TuneRequest& request) {
  if (request.max_prefetches == 0) return;
  const Strategy strategy = request.strategy.value_or(Strategy::kOffload);
  if (strategy != Strategy::kOffload && strategy != Strategy::kHybrid) {
    const std::string pinned = "--strategy " + std::string(strategy_name(strategy));
    throw Error(ErrorKind::kUsage, {.what = "nothing is fetched with " + pinned + ", so nothing ahead of need",
                                    .value = std::to_string(request.max_prefetches),
                                    .allowed = "0 with " + pinned,
                                    .action = "leave --look-ahead out, or give --strategy offload or hybrid",
                                    .path = "--look-ahead"});
  }
  const std::string& routing = request.weights.routing_preset;
  const bool recorded = routing.starts_with('/');  // the file of a trace, which may predict
  if (request.weights.synthetic && !recorded && routing.find("+lookahead:") == std::string::npos) {
    throw Error(ErrorKind::kUsage,
                {.what = "--look-ahead with synthetic weights follows the routing's predictions, and "
                         "this preset makes none",
                 .value = routing,
                 .allowed = "NAME+lookahead:PRECISION/RECALL, such as " + routing + "+lookahead:0.8/0.7",
                 .path = "--routing"});
  }
}

// Links followed as far as the path exists, and no slash at the end: with one, parent_path() is the folder itself or
// its parent, and which of them depends on whether it exists and on the standard library.
std::filesystem::path plain_path(const std::string& given) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path path = fs::absolute(given).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return fs::weakly_canonical(path, ignored);
}

// The folder of a recording is replaced as a whole, and with it whatever else it holds.
void check_apart(const TuneRequest& request) {
  const std::filesystem::path folder = plain_path(request.record);
  for (std::filesystem::path at = plain_path(request.output); at.has_relative_path(); at = at.parent_path()) {
    if (at != folder) continue;
    throw Error(ErrorKind::kUsage, {.what = "--record refused, --output lies in it or has its name",
                                    .value = request.output,
                                    .allowed = "a folder of its own: it is replaced as a whole",
                                    .path = request.record});
  }
}

}  // namespace

std::string samples_path(const std::string& output) { return output + ".samples.json"; }

TuneRequest parse_tune_request(const ParsedOptions& options) {
  TuneRequest request;
  request.weights.model_path = std::filesystem::absolute(options.text("--model")).lexically_normal().string();
  check_utf8("--model", request.weights.model_path);
  request.weights.packed_cache = options.optional_text("--packed-cache").value_or("");
  if (const auto seed = options.synthetic_seed("--weights")) {
    request.weights.synthetic = true;
    request.weights.synthetic_seed = *seed;
    request.weights.routing_preset = routing_source(options.optional_text("--routing").value_or("qwen3-30b"));
    check_utf8("--routing", request.weights.routing_preset);
  } else if (options.has("--routing")) {
    throw Error(ErrorKind::kUsage, {.what = "--routing has an effect only with synthetic weights: a checkpoint's own "
                                            "router chooses its experts",
                                    .action = "add --weights synthetic or leave --routing out"});
  }
  request.output = options.text("--output");
  request.record = options.optional_text("--record").value_or("");
  request.budget_seconds = options.number("--budget");
  request.device_memory_limit_bytes = options.optional_integer("--vram-limit");
  request.host_memory_limit_bytes = options.optional_integer("--host-memory");
  request.contexts = options.integers("--context");
  request.batches = options.integers("--batch");
  std::sort(request.contexts.begin(), request.contexts.end());
  std::sort(request.batches.begin(), request.batches.end());
  if (options.has("--strategy")) request.strategy = strategy_by_name(options.text("--strategy"));
  request.slots = options.count_or_percent("--slots");
  if (request.slots) request.slots_given = options.given.find("--slots")->second;
  if (const auto threads = options.optional_integer("--threads")) request.threads = static_cast<int>(*threads);
  request.resume = options.flag("--resume");
  request.dry_run = options.flag("--dry-run");
  request.cache_policy = cache_policy_by_name(options.text("--cache-policy")).value();
  request.max_prefetches = static_cast<int>(options.optional_integer("--look-ahead").value_or(0));
  check_look_ahead(request);
  for (const char* name : {"--strategy", "--slots", "--threads", "--link-slowdown", "--cache-policy", "--look-ahead"}) {
    if (options.has(name)) request.forced.push_back(std::string(name) + " " + options.given.find(name)->second);
  }
  read_device(options, request);
  if (options.has("--record")) check_apart(request);
  // A tuning takes minutes: find out now whether its results can be written.
  const InputPath inputs[] = {{"--model", request.weights.model_path},
                              {"--routing", request.weights.routing_preset},
                              {"--packed-cache", request.weights.packed_cache}};
  const std::string outputs[] = {request.output, samples_path(request.output)};
  for (const std::string& path : outputs) check_no_input("--output", path, inputs);
  try {
    for (const std::string& path : outputs) check_output("--output", path);
    if (options.has("--record")) check_record_folder(request.record);
  } catch (const Error& error) {
    if (!request.dry_run) throw;
    request.not_writable = error.what();
  }
  return request;
}

}  // namespace ft
