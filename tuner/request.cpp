#include "tuner/request.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "kernels/base/error.h"

namespace ft {
namespace {

void check_device(const std::string& device) {
  if (device != "cuda") return;
  throw Error(ErrorKind::kUsage, {.what = "this build has no CUDA device",
                                  .value = device,
                                  .allowed = "auto or host",
                                  .action = "use --device host",
                                  .path = "--device"});
}

// A tuning takes minutes: find out now whether its result can be written.
void check_output(const std::string& output) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::absolute(output).parent_path();
  std::error_code ignored;
  std::string why;
  if (fs::is_directory(output, ignored)) why = "it is a folder";
  if (!fs::is_directory(folder, ignored)) why = "folder " + folder.string() + " does not exist";
  if (why.empty() && access(folder.c_str(), W_OK) != 0) why = "no permission to write in " + folder.string();
  if (why.empty()) return;
  throw Error(ErrorKind::kUsage, {.what = "the profile cannot be written (" + why + ")",
                                  .value = output,
                                  .allowed = "a file in a folder that can be written",
                                  .action = "choose another with -o",
                                  .path = "--output"});
}

void check_pins(const TuneRequest& request) {
  if (request.strategy != Strategy::kResident || !request.slots) return;
  if (request.slots->percent == 100.0) return;
  throw Error(ErrorKind::kUsage, {.what = "resident keeps every expert in a slot",
                                  .value = request.slots->count ? std::to_string(*request.slots->count)
                                                                : std::to_string(*request.slots->percent) + "%",
                                  .allowed = "100% with --strategy resident",
                                  .action = "leave --slots out",
                                  .path = "--slots"});
}

}  // namespace

TuneRequest parse_tune_request(const ParsedOptions& options) {
  TuneRequest request;
  request.weights.model_path = std::filesystem::absolute(options.text("--model")).lexically_normal().string();
  if (const auto seed = options.synthetic_seed("--weights")) {
    request.weights.synthetic = true;
    request.weights.synthetic_seed = *seed;
    request.weights.routing_preset = options.optional_text("--routing").value_or("qwen3-30b");
  } else if (options.has("--routing")) {
    throw Error(ErrorKind::kUsage, {.what = "--routing has an effect only with synthetic weights: a checkpoint's own "
                                            "router chooses its experts",
                                    .action = "add --weights synthetic or leave --routing out"});
  }
  request.output = options.text("--output");
  request.budget_seconds = options.number("--budget");
  request.device_memory_limit_bytes = options.optional_integer("--vram-limit");
  request.host_memory_limit_bytes = options.optional_integer("--host-memory");
  request.contexts = options.integers("--context");
  request.batches = options.integers("--batch");
  std::sort(request.contexts.begin(), request.contexts.end());
  std::sort(request.batches.begin(), request.batches.end());
  if (options.has("--strategy")) request.strategy = strategy_by_name(options.text("--strategy"));
  request.slots = options.count_or_percent("--slots");
  if (const auto threads = options.optional_integer("--threads")) request.threads = static_cast<int>(*threads);
  request.resume = options.flag("--resume");
  request.dry_run = options.flag("--dry-run");
  for (const char* name : {"--strategy", "--slots", "--threads"}) {
    if (options.has(name)) request.forced.push_back(std::string(name) + " " + options.given.find(name)->second);
  }
  check_device(options.text("--device"));
  check_output(request.output);
  check_pins(request);
  return request;
}

}  // namespace ft
