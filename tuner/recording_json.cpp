#include "tuner/recording_json.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr const char* kVersion = "1.0.0";

template <class T>
void set_present(OrderedJson& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

template <class T>
std::optional<T> optional_at(const Json& json, const char* key) {
  const auto at = json.find(key);
  return at == json.end() ? std::nullopt : std::optional<T>(at->get<T>());
}

[[noreturn]] void refuse(const std::string& source, const std::string& path, const std::string& value,
                         const std::string& allowed) {
  throw Error(ErrorKind::kUsage,
              {.what = source + " refused, value refused", .value = value, .allowed = allowed, .path = path});
}

// Runs of equal layers: [layers, KV heads, head dimension], and where there is one the window.
OrderedJson kv_to_json(const std::vector<KvLayer>& layers) {
  OrderedJson runs = OrderedJson::array();
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    runs.push_back({end - i, layers[i].kv_heads, layers[i].head_dim});
    if (layers[i].window > 0) runs.back().push_back(layers[i].window);
    i = end;
  }
  return runs;
}

std::vector<KvLayer> parse_kv(const Json& runs, int layers, const std::string& source) {
  std::vector<KvLayer> kv;
  for (const Json& run : runs) {
    const auto count = run.at(0).get<size_t>();
    if (kv.size() + count > static_cast<size_t>(layers)) {
      refuse(source, "$.geometry.kv", std::to_string(kv.size() + count) + " layers",
             "at most layers, " + std::to_string(layers));
    }
    kv.insert(kv.end(), count, {run.at(1), run.at(2), run.size() > 3 ? run.at(3).get<int64_t>() : 0});
  }
  return kv;
}

// Likewise: [layers, head dimension, window, ratio, overlap, index dimension, index heads, index top k].
OrderedJson compressed_to_json(const std::vector<CompressedLayer>& layers) {
  OrderedJson runs = OrderedJson::array();
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    const CompressedLayer& layer = layers[i];
    runs.push_back({end - i, layer.head_dim, layer.window, layer.ratio, layer.overlap ? 1 : 0, layer.index_dim,
                    layer.index_heads, layer.index_top_k});
    i = end;
  }
  return runs;
}

std::vector<CompressedLayer> parse_compressed(const Json& runs, int layers, const std::string& source) {
  std::vector<CompressedLayer> compressed;
  for (const Json& run : runs) {
    const auto count = run.at(0).get<size_t>();
    if (compressed.size() + count > static_cast<size_t>(layers)) {
      refuse(source, "$.geometry.compressed", std::to_string(compressed.size() + count) + " layers",
             "at most layers, " + std::to_string(layers));
    }
    compressed.insert(compressed.end(), count,
                      {run.at(1), run.at(2), run.at(3), run.at(4).get<int>() != 0, run.at(5), run.at(6), run.at(7)});
  }
  return compressed;
}

OrderedJson geometry_to_json(const ModelGeometry& geometry) {
  OrderedJson json = {{"family", geometry.family},
                      {"layers", geometry.layers},
                      {"moe_layers", geometry.moe_layers},
                      {"experts", geometry.expert.experts},
                      {"top_k", geometry.expert.top_k},
                      {"expert_hidden", geometry.expert.hidden},
                      {"expert_intermediate", geometry.expert.intermediate},
                      {"hidden", geometry.hidden},
                      {"vocab", geometry.vocab},
                      {"max_positions", geometry.max_positions},
                      {"kv", kv_to_json(geometry.kv)},
                      {"state_floats", geometry.state_floats},
                      {"widest_heads", geometry.widest_heads},
                      {"rope_tables", geometry.rope_tables},
                      {"slot_floats", geometry.slot_floats}};
  if (geometry.compressed.empty()) return json;
  json["compressed"] = compressed_to_json(geometry.compressed);
  json["output_groups"] = geometry.output_groups;
  json["output_group_width"] = geometry.output_group_width;
  return json;
}

ModelGeometry parse_geometry(const Json& json, const std::string& source) {
  ModelGeometry geometry;
  geometry.family = json.at("family");
  geometry.layers = json.at("layers");
  geometry.moe_layers = json.at("moe_layers").get<std::vector<int>>();
  geometry.expert = {
      json.at("expert_hidden"), json.at("expert_intermediate"), json.at("experts"), json.at("top_k"), {}};
  geometry.hidden = json.at("hidden");
  geometry.vocab = json.at("vocab");
  geometry.max_positions = json.at("max_positions");
  geometry.kv = parse_kv(json.at("kv"), geometry.layers, source);
  geometry.compressed = parse_compressed(json.value("compressed", Json::array()), geometry.layers, source);
  geometry.output_groups = json.value("output_groups", 0);
  geometry.output_group_width = json.value("output_group_width", int64_t{0});
  geometry.state_floats = json.at("state_floats");
  geometry.widest_heads = json.at("widest_heads");
  geometry.rope_tables = json.value("rope_tables", 1);  // absent in recordings of before there were several
  geometry.slot_floats = json.at("slot_floats");
  int above = -1;
  for (size_t i = 0; i < geometry.moe_layers.size(); ++i) {
    const int layer = geometry.moe_layers[i];
    if (layer <= above || layer >= geometry.layers) {
      refuse(source, "$.geometry.moe_layers[" + std::to_string(i) + "]", std::to_string(layer),
             "above the one before, below layers " + std::to_string(geometry.layers));
    }
    above = layer;
  }
  if (geometry.expert.top_k > geometry.expert.experts) {
    refuse(source, "$.geometry.top_k", std::to_string(geometry.expert.top_k),
           "at most experts " + std::to_string(geometry.expert.experts));
  }
  return geometry;
}

OrderedJson formats_to_json(const ModelFormats& formats) {
  OrderedJson names = OrderedJson::array();
  for (const FormatId id : formats.expert_format) names.push_back(std::string(format_info(id).name));
  return {{"expert", names},
          {"dense", formats.dense},
          {"experts", formats.experts},
          {"dense_bytes", formats.dense_bytes},
          {"dense_bytes_per_token", formats.dense_bytes_per_token},
          {"expert_bytes_max", formats.expert_bytes_max},
          {"expert_bytes_total", formats.expert_bytes_total}};
}

ModelFormats parse_formats(const Json& json, size_t moe_layers, const std::string& source) {
  ModelFormats formats;
  const Json& names = json.at("expert");
  if (names.size() != moe_layers) {
    refuse(source, "$.formats.expert", std::to_string(names.size()) + " items",
           "one for each of the " + std::to_string(moe_layers) + " MoE layers");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const auto name = names[i].get<std::string>();
    const std::optional<FormatId> id = format_by_name(name);
    if (!id) refuse(source, "$.formats.expert[" + std::to_string(i) + "]", name, "a weight format");
    formats.expert_format.push_back(*id);
  }
  formats.dense = json.at("dense");
  formats.experts = json.at("experts");
  formats.dense_bytes = json.at("dense_bytes");
  formats.dense_bytes_per_token = json.at("dense_bytes_per_token");
  formats.expert_bytes_max = json.at("expert_bytes_max");
  formats.expert_bytes_total = json.at("expert_bytes_total");
  return formats;
}

OrderedJson base_to_json(const EngineConfig& base) {
  OrderedJson json = {{"device", std::string(device_name(base.device))},
                      {"threads", base.threads},
                      {"pinning", base.pinning},
                      {"cache_policy", std::string(cache_policy_name(base.cache_policy))},
                      {"max_prefetches_per_layer", base.max_prefetches_per_layer},
                      {"max_batch", base.max_batch},
                      {"max_context", base.max_context},
                      {"prefill_chunk", base.prefill_chunk},
                      {"link_slowdown", base.link_slowdown}};
  set_present(json, "device_memory_limit_bytes", base.device_memory_limit_bytes);
  set_present(json, "host_memory_limit_bytes", base.host_memory_limit_bytes);
  return json;
}

EngineConfig parse_base(const Json& json) {
  EngineConfig base;
  base.device = json.at("device") == "cuda" ? Device::kCuda : Device::kHost;
  base.threads = json.at("threads");
  base.pinning = json.at("pinning").get<std::vector<int>>();
  base.cache_policy = cache_policy_by_name(json.at("cache_policy").get<std::string>()).value();
  base.max_prefetches_per_layer = json.at("max_prefetches_per_layer");
  base.look_ahead = base.max_prefetches_per_layer > 0 ? LookAhead::kRouter : LookAhead::kOff;
  base.max_batch = json.at("max_batch");
  base.max_context = json.at("max_context");
  base.prefill_chunk = json.at("prefill_chunk");
  base.link_slowdown = json.at("link_slowdown");
  base.device_memory_limit_bytes = optional_at<int64_t>(json, "device_memory_limit_bytes");
  base.host_memory_limit_bytes = optional_at<int64_t>(json, "host_memory_limit_bytes");
  return base;
}

}  // namespace

OrderedJson machine_to_json(const RecordedMachine& machine) {
  const HostTopology& topology = machine.topology;
  OrderedJson nodes = OrderedJson::array();
  for (const NumaNode& node : topology.numa_nodes) {
    nodes.push_back({{"os_index", node.os_index}, {"memory_bytes", node.memory_bytes}, {"cpus", node.cpus}});
  }
  OrderedJson cpus = {{"affinity_cpus", machine.cpus.affinity_cpus}, {"affinity_cores", machine.cpus.affinity_cores}};
  set_present(cpus, "quota_cores", machine.cpus.quota_cores);
  cpus["usable_cores"] = machine.cpus.usable_cores;
  cpus["pinning"] = machine.cpus.pinning;
  OrderedJson memory = {{"total_bytes", machine.memory.total_bytes},
                        {"available_bytes", machine.memory.available_bytes}};
  set_present(memory, "cgroup_limit_bytes", machine.memory.cgroup_limit_bytes);
  set_present(memory, "lockable_bytes", machine.memory.lockable_bytes);
  return {{"version", kVersion},
          {"topology",
           {{"cpu_model", topology.cpu_model},
            {"isa", topology.isa},
            {"packages", topology.packages},
            {"cores", topology.cores},
            {"cpus", topology.cpus},
            {"last_level_cache_bytes", topology.last_level_cache_bytes},
            {"memory_bytes", topology.memory_bytes},
            {"numa_nodes", nodes},
            {"core_cpus", topology.core_cpus}}},
          {"cpu_budget", cpus},
          {"memory_budget", memory}};
}

RecordedMachine parse_machine(const Json& json) {
  RecordedMachine machine;
  const Json &topology = json.at("topology"), &cpus = json.at("cpu_budget"), &memory = json.at("memory_budget");
  machine.topology.cpu_model = topology.at("cpu_model");
  machine.topology.isa = topology.at("isa");
  machine.topology.packages = topology.at("packages");
  machine.topology.cores = topology.at("cores");
  machine.topology.cpus = topology.at("cpus");
  machine.topology.last_level_cache_bytes = topology.at("last_level_cache_bytes");
  machine.topology.memory_bytes = topology.at("memory_bytes");
  for (const Json& node : topology.at("numa_nodes")) {
    machine.topology.numa_nodes.push_back(
        {node.at("os_index"), node.at("memory_bytes"), node.at("cpus").get<std::vector<int>>()});
  }
  machine.topology.core_cpus = topology.at("core_cpus").get<std::vector<std::vector<int>>>();
  machine.cpus.affinity_cpus = cpus.at("affinity_cpus");
  machine.cpus.affinity_cores = cpus.at("affinity_cores");
  machine.cpus.quota_cores = optional_at<double>(cpus, "quota_cores");
  machine.cpus.usable_cores = cpus.at("usable_cores");
  machine.cpus.pinning = cpus.at("pinning").get<std::vector<int>>();
  machine.memory.total_bytes = memory.at("total_bytes");
  machine.memory.available_bytes = memory.at("available_bytes");
  machine.memory.cgroup_limit_bytes = optional_at<int64_t>(memory, "cgroup_limit_bytes");
  machine.memory.lockable_bytes = optional_at<int64_t>(memory, "lockable_bytes");
  return machine;
}

OrderedJson inputs_to_json(const Recording& recording) {
  const AnalysisInput& inputs = recording.inputs;
  OrderedJson pins = OrderedJson::object();
  if (inputs.strategy) pins["strategy"] = std::string(strategy_name(*inputs.strategy));
  set_present(pins, "slots", inputs.slots);
  if (!inputs.slots_asked.empty()) pins["slots_asked"] = inputs.slots_asked;
  set_present(pins, "threads", inputs.threads);
  pins["forced"] = inputs.forced;
  return {{"version", kVersion},
          {"about", recording.about},
          {"values_per_series", recording.values_per_series},
          {"tokens_of_routing", recording.tokens_of_routing},
          {"geometry", geometry_to_json(inputs.geometry)},
          {"formats", formats_to_json(inputs.formats)},
          {"base", base_to_json(inputs.base)},
          {"memory",
           {{"device_memory_bytes", inputs.memory.device_memory_bytes},
            {"host_memory_bytes", inputs.memory.host_memory_bytes}}},
          {"pins", pins}};
}

void parse_inputs(const Json& json, const std::string& source, Recording& recording) {
  recording.about = json.at("about");
  recording.values_per_series = json.at("values_per_series");
  recording.tokens_of_routing = json.at("tokens_of_routing");
  AnalysisInput& inputs = recording.inputs;
  inputs.geometry = parse_geometry(json.at("geometry"), source);
  inputs.formats = parse_formats(json.at("formats"), inputs.geometry.moe_layers.size(), source);
  inputs.base = parse_base(json.at("base"));
  const Json &memory = json.at("memory"), &pins = json.at("pins");
  inputs.memory = {inputs.base.device, memory.at("device_memory_bytes"), memory.at("host_memory_bytes")};
  if (const auto strategy = optional_at<std::string>(pins, "strategy")) inputs.strategy = strategy_by_name(*strategy);
  inputs.slots = optional_at<int64_t>(pins, "slots");
  inputs.slots_asked = pins.value("slots_asked", std::string());
  inputs.threads = optional_at<int>(pins, "threads");
  inputs.forced = pins.at("forced");
}

OrderedJson decision_to_json(const RecordedDecision& decision) {
  OrderedJson confirmed = OrderedJson::array();
  for (const ConfirmedCandidate& candidate : decision.confirmed) {
    confirmed.push_back({{"strategy", candidate.strategy},
                         {"threads", candidate.threads},
                         {"slots", candidate.slots},
                         {"fetch_of_misses", candidate.fetch_of_misses},
                         {"promotions", candidate.promotions.per_plan()},
                         {"fetch_mechanism", candidate.fetch_mechanism},
                         {"max_prefetches_per_layer", candidate.max_prefetches_per_layer},
                         {"predicted_tok_s", candidate.predicted_tok_s}});
  }
  return {{"version", kVersion},   {"strategy", decision.strategy},   {"runner_up", decision.runner_up},
          {"ties", decision.ties}, {"tolerance", decision.tolerance}, {"confirmed", confirmed}};
}

RecordedDecision parse_decision(const Json& json) {
  RecordedDecision decision;
  decision.strategy = json.at("strategy");
  decision.runner_up = json.at("runner_up");
  decision.ties = json.at("ties").get<std::vector<std::string>>();
  decision.tolerance = json.at("tolerance");
  for (const Json& candidate : json.at("confirmed")) {
    decision.confirmed.push_back({candidate.at("strategy"), candidate.at("threads"), candidate.at("slots"),
                                  candidate.at("fetch_of_misses").get<SplitTable>(),
                                  PromotionRate::of_experts(candidate.at("promotions")),
                                  candidate.at("fetch_mechanism"), candidate.at("max_prefetches_per_layer"),
                                  candidate.at("predicted_tok_s").get<std::vector<double>>()});
  }
  return decision;
}

}  // namespace ft
