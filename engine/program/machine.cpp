#include "engine/program/machine.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/model/checkpoint.h"
#include "engine/program/identity.h"
#include "engine/program/serve_config.h"
#include "kernels/base/error.h"
#include "kernels/host/isa.h"

namespace ft {

ServedHost inspect_host(const EngineConfig& config, const std::optional<cuda::DeviceFacts>& gpu) {
  static_cast<void>(active_isa());  // refuses an FT_ISA that the engine would refuse
  const HostTopology topology = detect_topology();
  ServedHost host;
  host.cpus = detect_cpu_budget(topology);
  host.memory = memory_inputs(config, detect_memory_budget(), gpu);
  host.identity = collect_host_identity(topology, host.cpus, gpu);
  return host;
}

ServedModel inspect_model(const WeightSource& source) {
  ServedModel model;
  model.family = make_family(load_model_config(source.model_path));
  model.formats = inspect_formats(*model.family, source);
  model.identity = collect_model_identity(*model.family, source);
  return model;
}

void require_recorded_folder(const Serve& serve, const std::optional<std::string>& model_path) {
  std::error_code ignored;
  if (model_path || serve.model_path.empty() || std::filesystem::exists(serve.model_path, ignored)) return;
  throw Error(ErrorKind::kUsage, {.what = "the profile's model folder is not there",
                                  .value = serve.model_path,
                                  .action = "name the folder where it is now with --model DIR",
                                  .path = "$.serve.model_path"});
}

}  // namespace ft
