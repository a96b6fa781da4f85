// ft-tune check: does a profile fit this host, build and model?
#include "tuner/check.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/program/identity.h"
#include "engine/program/log.h"
#include "engine/program/serve_config.h"
#include "engine/text/text_model.h"
#include "kernels/base/error.h"
#include "tuner/commands/commands.h"

namespace ft {
namespace {

// Stands in for a folder that is named nowhere: nothing is read from it.
constexpr std::string_view kNoFolder = "none";

std::optional<cuda::DeviceFacts> served_device(const EngineConfig& config, std::string& refusal) try {
  return start_served_device(config);
} catch (const Error& error) {
  refusal = error.what();
  return std::nullopt;
}

std::optional<ServedModel> served_model(const Serve& serve, const std::optional<std::string>& folder,
                                        const WeightSource& source, std::string& refusal) try {
  if (!folder && serve.model_path.empty()) {
    throw Error(ErrorKind::kUsage,
                {"the profile names no model folder", "", "", "name it with --model DIR", "$.serve.model_path"});
  }
  require_recorded_folder(serve, folder);
  return inspect_model(source);
} catch (const Error& error) {
  refusal = error.what();
  return std::nullopt;
}

std::string text_refusal(const WeightSource& source) try {
  load_text_model(source.model_path);
  return "";
} catch (const Error& error) {
  return error.what();
}

}  // namespace

int run_check(const ParsedOptions& options) {
  const std::string& path = options.positionals.at(0);
  const Profile profile = read_profile(path);
  const std::optional<std::string> folder = options.optional_text("--model");
  const std::string fallback = profile.serve.model_path.empty() ? std::string(kNoFolder) : profile.serve.model_path;
  const EngineConfig config = engine_config_from_serve(profile.serve, folder.value_or(fallback));
  CheckedMachine machine;
  const std::optional<cuda::DeviceFacts> gpu = served_device(config, machine.device_refusal);
  machine.host = inspect_host(config, gpu);
  machine.build = collect_build_identity();
  machine.model = served_model(profile.serve, folder, config.weights, machine.model_refusal);
  if (machine.model) machine.text_refusal = text_refusal(config.weights);
  const CheckReport report = check_profile(profile, config, machine);
  const std::string text =
      options.text("--format") == "json"
          ? check_json(report, path).dump(2, ' ', true, OrderedJson::error_handler_t::replace) + "\n"
          : check_text(report, path);
  std::fputs(text.c_str(), stdout);
  return report.fits() ? kExitDone : kExitFailed;
}

}  // namespace ft
