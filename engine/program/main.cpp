// ft-engine: serves exactly what a profile says.
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/model/checkpoint.h"
#include "engine/program/banner.h"
#include "engine/program/identity.h"
#include "engine/program/log.h"
#include "engine/program/serve_config.h"
#include "engine/runtime/score.h"
#include "engine/server/http_server.h"
#include "engine/server/metrics.h"
#include "engine/server/service.h"
#include "kernels/base/error.h"
#include "kernels/host/worker_pool.h"
#include "profiles/build_info.h"
#include "schemas/command_line.h"

namespace ft {
namespace {

// A profile that was read and fits this host, build and model.
struct Accepted {
  Profile profile;
  EngineConfig config;
  MemoryInputs memory;
  std::shared_ptr<const Family> family;
  ModelFormats formats;
};

void check_modes(const ParsedOptions& options) {
  const bool score = options.has("--score");
  if (score && !options.has("--output")) {
    throw Error(ErrorKind::kUsage, {"--score needs a place for its logits", "", "", "add --output OUT.safetensors"});
  }
  for (const char* name : {"--output", "--numerics"}) {
    if (options.has(name) && !score) {
      throw Error(ErrorKind::kUsage,
                  {std::string(name) + " has an effect only with --score", "", "", "add --score IN.json"});
    }
  }
  if (score && options.has("--prompt")) throw Error(ErrorKind::kUsage, {"--score and --prompt exclude each other"});
  if (options.has("--max-tokens") && !options.has("--prompt")) {
    throw Error(ErrorKind::kUsage, {"--max-tokens has an effect only with --prompt", "", "", "add --prompt TEXT"});
  }
}

Profile required_profile(const ParsedOptions& options) {
  const auto path = options.optional_text("--profile");
  if (path) return read_profile(*path);
  const std::string model = options.optional_text("--model").value_or("DIR");
  throw Error(ErrorKind::kUsage, {"no profile: ft-engine does what a profile says and nothing else", "", "",
                                  "make one with: ft-tune --model " + model + " -o profile.json"});
}

// --weights and --routing, in place of the profile's. Another kind of weights is another identity, so it is refused
// unless the user accepts that difference.
void override_weights(const ParsedOptions& options, WeightSource& source) {
  if (options.has("--weights")) {
    const auto seed = options.synthetic_seed("--weights");
    source.synthetic = seed.has_value();
    source.synthetic_seed = seed.value_or(0);
    if (!source.synthetic) source.routing_preset.clear();
  }
  if (!options.has("--routing")) return;
  if (!source.synthetic) {
    throw Error(ErrorKind::kUsage, {"--routing has an effect only with synthetic weights: a checkpoint's own router "
                                    "chooses its experts",
                                    "", "", "leave --routing out"});
  }
  source.routing_preset = options.text("--routing");
}

Accepted accept_profile(const ParsedOptions& options) {
  Accepted accepted;
  accepted.profile = required_profile(options);
  accepted.config = engine_config_from_serve(accepted.profile.serve, options.optional_text("--model").value_or(""));
  EngineConfig& config = accepted.config;
  override_weights(options, config.weights);
  if (options.has("--numerics")) config.numerics = *numerics_by_name(options.text("--numerics"));
  accepted.family = make_family(load_model_config(config.weights.model_path));
  const HostTopology topology = detect_topology();
  const CpuBudget cpus = detect_cpu_budget(topology);
  const Identity machine = {collect_host_identity(topology, cpus), collect_build_identity(),
                            collect_model_identity(*accepted.family, config.weights)};
  require_identity(accepted.profile.identity, machine, options.texts("--accept-mismatch"));
  accepted.formats = inspect_formats(*accepted.family, config.weights);
  accepted.memory = memory_inputs(config, detect_memory_budget());
  return accepted;
}

std::unique_ptr<Engine> load_engine(const Accepted& accepted) {
  LoadedModel model;
  model.family = accepted.family;
  WorkerPool pool({.threads = accepted.config.threads, .cpus = accepted.config.pinning});
  int shown = -1;
  model.weights =
      load_weights(*accepted.family, accepted.config.weights, pool, [&shown](std::string_view stage, double fraction) {
        const int percent = static_cast<int>(100 * fraction);
        if (percent / 10 == shown / 10 && shown >= 0 && percent < 100) return;
        shown = percent;
        log_info(fmt::format("{}: {} %", stage, percent));
      });
  auto engine = std::make_unique<Engine>(std::move(model), accepted.config, accepted.memory);
  const WeightSource& source = accepted.config.weights;
  if (source.synthetic && !source.routing_preset.empty()) {
    engine->set_routing(std::make_shared<RoutingTrace>(
        routing_for(source.routing_preset, accepted.family->geometry(), source.synthetic_seed)));
  }
  return engine;
}

ServedProfile served_profile(const Accepted& accepted) {
  const Profile& profile = accepted.profile;
  ServedProfile served;
  served.model_name = std::filesystem::path(accepted.config.weights.model_path).lexically_normal().filename().string();
  if (served.model_name.empty()) served.model_name = "default";
  served.strategy = profile.serve.strategy;
  served.runner_up = profile.decision.runner_up;
  served.margin = profile.decision.margin;
  served.predicted_tok_s = profile.serve.predicted_tok_s;
  served.ceiling_gbps = profile.serve.ceiling_gbps;
  served.synthetic_weights = accepted.config.weights.synthetic;
  served.routing_preset = accepted.config.weights.routing_preset;
  return served;
}

int run_score(const ParsedOptions& options, const Accepted& accepted) {
  const Json json = read_json_file(options.text("--score"));
  const ModelGeometry& geometry = accepted.family->geometry();
  const ScoreInput input =
      parse_score_input(json, geometry.vocab, accepted.config.max_context, accepted.config.max_batch);
  const auto engine = load_engine(accepted);
  write_score(options.text("--output"), score(*engine, input), geometry.vocab);
  return kExitDone;
}

int run_prompt(const ParsedOptions& options, const Accepted& accepted) {
  const TextModel text = load_text_model(accepted.config.weights.model_path);
  if (!text.missing.empty()) throw Error(ErrorKind::kFailed, {text.missing});
  const auto engine = load_engine(accepted);
  Service service(*engine, text, served_profile(accepted));
  OrderedJson body;
  const std::string prompt = options.text("--prompt");
  const Endpoint endpoint = service.has_chat_template() ? Endpoint::kChat : Endpoint::kCompletion;
  if (endpoint == Endpoint::kChat) {
    body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  } else {
    body["prompt"] = prompt;
  }
  body["max_tokens"] = options.integer("--max-tokens");
  const CompletionRequest request = parse_completion_request(
      endpoint, body.dump(-1, ' ', false, OrderedJson::error_handler_t::strict), text.defaults, 0);
  const auto generation = service.start(request);
  std::string piece;
  while (generation->next(piece)) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    if (interrupted()) return kExitInterrupted;
  }
  std::fputc('\n', stdout);
  log_info(stats_line(service.profile(), service.stats()));
  return kExitDone;
}

int run_server(const ParsedOptions& options, const Accepted& accepted) {
  HttpServer server(options.text("--host"), static_cast<int>(options.integer("--port")));
  log_info(fmt::format("listening on http://{}:{}, loading", options.text("--host"), server.port()));
  const TextModel text = load_text_model(accepted.config.weights.model_path);
  if (!text.missing.empty()) log_warning(text.missing);
  const auto engine = load_engine(accepted);
  auto service = std::make_unique<Service>(*engine, text, served_profile(accepted));
  server.set_ready(*service);
  log_info("ready");
  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  log_info("stopping");
  const std::string last = stats_line(service->profile(), service->stats());
  server.begin_stop();
  service->stop();
  server.stop();
  log_info(last);
  return kExitDone;
}

int run(const ParsedOptions& options) {
  install_interrupt_handler();
  start_log(options.text("--log-level"));
  check_modes(options);
  const Accepted accepted = accept_profile(options);
  const MemoryPlan plan = plan_memory(accepted.family->geometry(), accepted.formats, accepted.config, accepted.memory);
  log_info(decision_text(accepted.profile));
  if (options.flag("--dry-run")) {
    std::fputs(memory_plan_text(plan, accepted.config).c_str(), stdout);
    return kExitDone;
  }
  if (options.has("--score")) return run_score(options, accepted);
  if (options.has("--prompt")) return run_prompt(options, accepted);
  return run_server(options, accepted);
}

}  // namespace
}  // namespace ft

int main(int argc, char** argv) { return ft::run_program(ft::kEngineProgram, ft::build_text(), argc, argv, ft::run); }
