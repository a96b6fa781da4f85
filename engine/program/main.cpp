// ft-engine: serves exactly what a profile says.
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/experts/bank_placement.h"
#include "engine/experts/routing_trace.h"
#include "engine/model/checkpoint.h"
#include "engine/model/packed_cache.h"
#include "engine/program/banner.h"
#include "engine/program/drift_config.h"
#include "engine/program/identity.h"
#include "engine/program/load_display.h"
#include "engine/program/log.h"
#include "engine/program/machine.h"
#include "engine/program/serve_config.h"
#include "engine/runtime/cuda/device_weights.h"
#include "engine/runtime/device.h"
#include "engine/runtime/score.h"
#include "engine/server/http_server.h"
#include "engine/server/listen_address.h"
#include "engine/server/metrics.h"
#include "engine/server/service.h"
#include "engine/text/text_model.h"
#include "engine/text/utf8.h"
#include "kernels/base/error.h"
#include "kernels/base/inputs.h"
#include "kernels/base/json.h"
#include "kernels/host/cgroup.h"
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
  CpuBudget cpus;
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
  if (score && options.has("--on-drift")) {
    throw Error(ErrorKind::kUsage, {"--on-drift has no effect with --score", "", "", "leave --on-drift out"});
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
  if (config.numerics == Numerics::kReference && config.device != Device::kHost) {
    throw Error(ErrorKind::kUsage, {"--numerics reference needs the host device, the profile is of cuda", "", "",
                                    "give a profile that was tuned with --device host"});
  }
  if (options.has("--deepseek-arithmetic")) {
    config.deepseek_arithmetic = deepseek_arithmetic_by_name(options.text("--deepseek-arithmetic"));
  }
  config.no_wait = options.flag("--no-wait");
  if (config.no_wait && config.device == Device::kHost) {
    throw Error(ErrorKind::kUsage, {"--no-wait has an effect only on cuda, the profile is of the host device", "", "",
                                    "leave --no-wait out"});
  }
  WeightSource& source = config.weights;
  if (options.has("--weights")) {
    const auto seed = options.synthetic_seed("--weights");
    source.synthetic = seed.has_value();
    source.synthetic_seed = seed.value_or(0);
    if (!source.synthetic) source.routing_preset.clear();
  }
  source.packed_cache = options.optional_text("--packed-cache").value_or("");
  check_packed_cache(source, options.flag("--dry-run"));
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
  const std::optional<std::string> folder = options.optional_text("--model");
  require_recorded_folder(accepted.profile.serve, folder);
  accepted.config = engine_config_from_serve(accepted.profile.serve, folder.value_or(""));
  EngineConfig& config = accepted.config;
  apply_overrides(options, config);
  const ServedModel model = inspect_model(config.weights);
  accepted.family = model.family;
  accepted.formats = model.formats;
  if (options.has("--deepseek-arithmetic") && model.family->geometry().family != "deepseek_v4") {
    throw Error(ErrorKind::kUsage, {"--deepseek-arithmetic has an effect only with deepseek_v4",
                                    model.family->geometry().family, "deepseek_v4", "leave --deepseek-arithmetic out"});
  }
  const ServedHost host = inspect_host(config, start_served_device(config));
  accepted.cpus = host.cpus;
  accepted.memory = host.memory;
  require_identity(accepted.profile.identity, {host.identity, collect_build_identity(), model.identity},
                   options.texts("--accept-mismatch"));
  const ModelGeometry& geometry = accepted.family->geometry();
  accepted.plan = check_serve_fits(geometry, accepted.formats, config, accepted.memory, accepted.cpus);
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
  // Loading is not serving: with all usable cores, however few threads the profile's strategy needs.
  WorkerPool pool({.threads = accepted.cpus.usable_cores, .cpus = accepted.cpus.pinning});
  LoadDisplay display;
  const ProgressFn progress = [&](const LoadProgress& loading) {
    if (interrupted()) throw Error(ErrorKind::kInterrupted, {.what = "interrupted while loading"});
    display.show(loading);
  };
  const NoticeFn notice = [&](std::string_view text, bool warning) {
    display.end_line();
    warning ? log_warning(text) : log_info(text);
  };
  model.weights =
      load_weights(*accepted.family, accepted.config.weights, pool, {.progress = progress, .notice = notice});
  const NumaPlan numa = make_numa_plan(detect_topology(), accepted.config.pinning, accepted.config.threads);
  if (const std::string text = place_bank(model.weights->bank, numa); !text.empty()) log_info("expert banks: " + text);
  if (accepted.config.device == Device::kCuda) {
    model.on_device = upload_weights(*model.weights, progress);
    log_info("expert banks: " + bank_times_text(bank_times(*model.weights, *model.on_device)));
  }
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
  served.on_gpu = accepted.config.device == Device::kCuda;
  served.synthetic_weights = accepted.config.weights.synthetic;
  served.routing_preset = accepted.config.weights.routing_preset;
  return served;
}

DriftOptions watched(const ParsedOptions& options, const Accepted& accepted) {
  DriftOptions drift = drift_options(accepted.profile.serve, options.text("--on-drift") == "fallback");
  drift.say = [](std::string_view text, bool warning) { warning ? log_warning(text) : log_info(text); };
  if (cgroup_throttling().throttled_usec) {
    drift.throttled_cpu_seconds = [] {
      return 1e-6 * static_cast<double>(cgroup_throttling().throttled_usec.value_or(0));
    };
  }
  return drift;
}

// Everything but the weights. What the three modes refuse is refused before those are loaded, and by a dry run.
struct Inputs {
  TextModel text;                            // not with --score
  DriftOptions drift;                        // likewise
  std::optional<CompletionRequest> request;  // of --prompt
  std::optional<ScoreInput> score;
};

CompletionRequest prompt_request(const ParsedOptions& options, const TextModel& text) {
  if (!text.missing.empty()) throw Error(ErrorKind::kFailed, {text.missing});
  const std::string prompt = options.text("--prompt");
  if (const size_t valid = valid_utf8_bytes(prompt); valid != prompt.size()) {
    throw Error(ErrorKind::kUsage, {"text that is not UTF-8 from byte " + std::to_string(valid),
                                    replace_invalid_utf8(prompt), "text in UTF-8", "", "--prompt"});
  }
  OrderedJson body;
  const Endpoint endpoint = text.chat_template != nullptr ? Endpoint::kChat : Endpoint::kCompletion;
  if (endpoint == Endpoint::kChat) {
    body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", prompt}}});
  } else {
    body["prompt"] = prompt;
  }
  body["max_tokens"] = options.integer("--max-tokens");
  return parse_completion_request(endpoint, body.dump(-1, ' ', false, OrderedJson::error_handler_t::strict),
                                  text.defaults, 0);
}

// What a prompt is refused for names fields of a request; here an option was given.
void check_prompt(const TextModel& text, const CompletionRequest& request, int64_t max_context) try {
  encode_prompt(text, request, max_context);
} catch (const Error& error) {
  ErrorParts parts = error.parts();
  if (parts.path != "messages" && parts.path != "prompt") throw;
  parts.path = "--prompt";
  parts.action = "shorten it or lower --max-tokens";
  throw Error(error.kind(), std::move(parts));
}

// A file that cannot be read is wrong usage, as a profile is.
Json read_score_file(const std::string& path) try { return read_json_file(path); } catch (const Error& error) {
  ErrorParts parts = error.parts();
  parts.what = "--score refused, " + parts.what;
  throw Error(ErrorKind::kUsage, std::move(parts));
}

Inputs read_inputs(const ParsedOptions& options, const Accepted& accepted) {
  Inputs inputs;
  if (options.has("--score")) {
    inputs.score = parse_score_input(read_score_file(options.text("--score")), accepted.family->geometry().vocab,
                                     accepted.config.max_context, accepted.config.max_batch);
    const std::string output = options.text("--output");
    const WeightSource& source = accepted.config.weights;
    const InputPath read[] = {{"--score", options.text("--score")},
                              {"--profile", options.text("--profile")},
                              {"--model", source.model_path},
                              {"--routing", source.routing_preset},
                              {"--packed-cache", source.packed_cache}};
    check_no_input("--output", output, read);
    try {
      check_output("--output", output);
    } catch (const Error& error) {
      if (!options.flag("--dry-run")) throw;
      log_warning(std::string("without --dry-run: ") + error.what());
    }
    return inputs;
  }
  inputs.drift = watched(options, accepted);
  const WeightSource& source = accepted.config.weights;
  inputs.text = load_text_model(source.model_path);
  if (source.synthetic && use_byte_tokenizer(inputs.text, accepted.family->geometry().vocab)) {
    log_info("no tokenizer.json: every byte of a text is a token, other ids read <id>");
  }
  if (options.has("--prompt")) {
    inputs.request = prompt_request(options, inputs.text);
    check_prompt(inputs.text, *inputs.request, accepted.config.max_context);
  } else {
    check_listen_host(options.text("--host"));
  }
  return inputs;
}

int run_score(const ParsedOptions& options, const Accepted& accepted, const ScoreInput& input) {
  const auto engine = load_engine(accepted);
  write_score(options.text("--output"), score(*engine, input, interrupted), accepted.family->geometry().vocab);
  return kExitDone;
}

// The answer on stdout ends with a newline, its own or ours, before anything is said on stderr.
int run_prompt(const Accepted& accepted, const Inputs& inputs) {
  const auto engine = load_engine(accepted);
  Service service(*engine, inputs.text, served_profile(accepted), inputs.drift);
  const auto generation = service.start(*inputs.request);
  std::string piece;
  char last = '\0';
  bool stopped = false;
  while (!stopped && generation->next(piece)) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    if (!piece.empty()) last = piece.back();
    stopped = interrupted();
  }
  if (last != '\n') std::fputc('\n', stdout);
  std::fflush(stdout);
  if (stopped) return kExitInterrupted;
  service.stop();  // its last act is to publish the counters
  log_info(stats_line(service.profile(), service.stats()));
  return kExitDone;
}

// Whoever stops a server, loaded or not, gets what was asked for.
int run_server(const ParsedOptions& options, const Accepted& accepted, const Inputs& inputs) try {
  const std::string host = options.text("--host");
  HttpServer server(host, static_cast<int>(options.integer("--port")));
  log_info(fmt::format("listening on http://{}, loading", address_text(host, server.port())));
  if (!inputs.text.missing.empty()) log_warning(inputs.text.missing);
  const auto engine = load_engine(accepted);
  auto service = std::make_unique<Service>(*engine, inputs.text, served_profile(accepted), inputs.drift);
  server.set_ready(*service);
  log_info("ready");
  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  log_info("stopping");
  server.begin_stop();
  service->stop();
  server.stop();
  log_info(stats_line(service->profile(), service->stats()));
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
  const Inputs inputs = read_inputs(options, accepted);
  log_info(decision_text(accepted.profile));
  if (!inputs.score) log_info(watch_text(inputs.drift));
  if (options.flag("--dry-run")) {
    std::fputs(memory_plan_text(accepted.plan, accepted.config).c_str(), stdout);
    std::fputs(packed_cache_text(*accepted.family, accepted.config.weights).c_str(), stdout);
    return kExitDone;
  }
  if (inputs.score) return run_score(options, accepted, *inputs.score);
  if (inputs.request) return run_prompt(accepted, inputs);
  return run_server(options, accepted, inputs);
}

}  // namespace
}  // namespace ft

int main(int argc, char** argv) {
  const ft::HelpLine lines[] = {{"--routing", "Presets: " + ft::routing_preset_names() + "."}};
  ft::ProgramSpec program = ft::kEngineProgram;
  program.more_help = lines;
  return ft::run_program(program, ft::build_text(), argc, argv, ft::run);
}
