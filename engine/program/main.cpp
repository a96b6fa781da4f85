// ft-engine: serves exactly what a profile says.
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/experts/routing_trace.h"
#include "engine/model/checkpoint.h"
#include "engine/program/banner.h"
#include "engine/program/identity.h"
#include "engine/program/log.h"
#include "engine/program/serve_config.h"
#include "engine/runtime/score.h"
#include "engine/server/http_server.h"
#include "engine/server/metrics.h"
#include "engine/server/service.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"
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
  MemoryPlan plan;
  std::shared_ptr<const RoutingTrace> routing;  // null with a checkpoint: its own router chooses
};

constexpr int64_t kSyntheticTraceTokens = 2048;  // then it repeats

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

// --weights, --routing and --host-memory in place of what the profile says. Another kind of weights is another
// identity, so it is refused unless the user accepts that difference.
void apply_overrides(const ParsedOptions& options, EngineConfig& config) {
  config.host_memory_limit_bytes = options.optional_integer("--host-memory");
  if (options.has("--numerics")) config.numerics = *numerics_by_name(options.text("--numerics"));
  WeightSource& source = config.weights;
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
  apply_overrides(options, config);
  accepted.family = make_family(load_model_config(config.weights.model_path));
  const HostTopology topology = detect_topology();
  const CpuBudget cpus = detect_cpu_budget(topology);
  const Identity machine = {collect_host_identity(topology, cpus), collect_build_identity(),
                            collect_model_identity(*accepted.family, config.weights)};
  require_identity(accepted.profile.identity, machine, options.texts("--accept-mismatch"));
  accepted.formats = inspect_formats(*accepted.family, config.weights);
  accepted.memory = memory_inputs(config, detect_memory_budget());
  const ModelGeometry& geometry = accepted.family->geometry();
  accepted.plan = check_serve_fits(geometry, accepted.formats, config, accepted.memory, cpus);
  const WeightSource& source = config.weights;
  if (source.synthetic && !source.routing_preset.empty()) {
    accepted.routing = std::make_shared<RoutingTrace>(
        synthetic_routing(source.routing_preset, static_cast<int>(geometry.moe_layers.size()), geometry.expert.experts,
                          geometry.expert.top_k, kSyntheticTraceTokens, source.synthetic_seed));
  }
  return accepted;
}

std::unique_ptr<Engine> load_engine(const Accepted& accepted) {
  LoadedModel model;
  model.family = accepted.family;
  WorkerPool pool({.threads = accepted.config.threads, .cpus = accepted.config.pinning});
  int shown = -1;
  model.weights =
      load_weights(*accepted.family, accepted.config.weights, pool, [&shown](std::string_view stage, double fraction) {
        if (interrupted()) throw Error(ErrorKind::kInterrupted, {.what = "interrupted while loading"});
        const int percent = static_cast<int>(100 * fraction);
        if (percent / 10 == shown / 10 && shown >= 0 && percent < 100) return;
        shown = percent;
        log_info(fmt::format("{}: {} %", stage, percent));
      });
  auto engine = std::make_unique<Engine>(std::move(model), accepted.config, accepted.memory);
  if (accepted.routing != nullptr) engine->set_routing(accepted.routing);
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
  const std::string output = options.text("--output");
  check_writable(output);
  const auto engine = load_engine(accepted);
  write_score(output, score(*engine, input, interrupted), geometry.vocab);
  return kExitDone;
}

int run_prompt(const ParsedOptions& options, const Accepted& accepted) {
  const TextModel text = load_text_model(accepted.config.weights.model_path);
  if (!text.missing.empty()) throw Error(ErrorKind::kFailed, {text.missing});
  const std::string prompt = options.text("--prompt");
  if (const size_t valid = valid_utf8_bytes(prompt); valid != prompt.size()) {
    throw Error(ErrorKind::kUsage, {"text that is not UTF-8 from byte " + std::to_string(valid),
                                    replace_invalid_utf8(prompt), "text in UTF-8", "", "--prompt"});
  }
  const auto engine = load_engine(accepted);
  Service service(*engine, text, served_profile(accepted));
  OrderedJson body;
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

// Whoever stops a server, loaded or not, gets what was asked for.
int run_server(const ParsedOptions& options, const Accepted& accepted) try {
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
} catch (const Error& error) {
  if (error.kind() != ErrorKind::kInterrupted) throw;
  log_info(std::string("stopped: ") + error.what());
  return kExitDone;
}

int run(const ParsedOptions& options) {
  install_interrupt_handler();
  start_log(options.text("--log-level"));
  check_modes(options);
  const Accepted accepted = accept_profile(options);
  log_info(decision_text(accepted.profile));
  if (options.flag("--dry-run")) {
    std::fputs(memory_plan_text(accepted.plan, accepted.config).c_str(), stdout);
    return kExitDone;
  }
  if (options.has("--score")) return run_score(options, accepted);
  if (options.has("--prompt")) return run_prompt(options, accepted);
  return run_server(options, accepted);
}

}  // namespace
}  // namespace ft

int main(int argc, char** argv) { return ft::run_program(ft::kEngineProgram, ft::build_text(), argc, argv, ft::run); }
