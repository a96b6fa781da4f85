#include "engine/experts/routing_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/engine_config.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr std::string_view kTraceVersion = "1.1.0";
constexpr int kOverlapWindow = 8;
constexpr size_t kMaxSourceBytes = 1024;

[[noreturn]] void refuse(const std::string& what, const std::string& path, const std::string& value,
                         const std::string& allowed) {
  throw Error(ErrorKind::kUsage, {.what = what,
                                  .value = value,
                                  .allowed = allowed,
                                  .action = "record the trace again, or name a routing preset",
                                  .path = path});
}

std::string shown(const Json& value) {
  constexpr size_t kShown = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

int64_t integer_at(const Json& object, const std::string& key, int64_t low, int64_t high, const std::string& what) {
  const std::string allowed = std::to_string(low) + " to " + std::to_string(high);
  const auto found = object.find(key);
  if (found == object.end()) refuse(what, "$." + key, "missing", allowed);
  if (!found->is_number_integer() || (found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX) ||
      found->get<int64_t>() < low || found->get<int64_t>() > high) {
    refuse(what, "$." + key, shown(*found), allowed);
  }
  return found->get<int64_t>();
}

std::string text_at(const Json& object, const std::string& key, const std::string& what) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    refuse(what, "$." + key, found == object.end() ? "missing" : shown(*found), "text");
  }
  return found->get<std::string>();
}

const Json& array_of(const Json& value, int64_t size, const std::string& path, const std::string& what) {
  if (!value.is_array() || static_cast<int64_t>(value.size()) != size) {
    refuse(what, path, value.is_array() ? std::to_string(value.size()) + " items" : shown(value),
           "an array of " + std::to_string(size));
  }
  return value;
}

void check_counts(const RoutingTrace& trace, const std::string& what) {
  if (trace.source.empty() || trace.source.size() > kMaxSourceBytes) {
    refuse(what, "$.source", std::to_string(trace.source.size()) + " bytes",
           "1 to " + std::to_string(kMaxSourceBytes) + " bytes of text");
  }
  const auto require = [&](const char* name, int64_t value, int64_t high) {
    if (value < 1 || value > high) refuse(what, name, std::to_string(value), "1 to " + std::to_string(high));
  };
  require("$.layers", trace.layers, kMaxLayers);
  require("$.experts", trace.experts, kMaxExperts);
  require("$.top_k", trace.top_k, std::min<int64_t>(kMaxTopK, trace.experts));
  require("$.tokens", trace.tokens, kMaxTraceTokens);
  if (trace.predictions < 0 || trace.predictions > std::min(kMaxTracePredictions, trace.experts)) {
    refuse(what, "$.predicted", std::to_string(trace.predictions) + " predictions of a layer",
           "up to " + std::to_string(std::min(kMaxTracePredictions, trace.experts)));
  }
  const int64_t ids = trace.tokens * trace.layers * (trace.top_k + trace.predictions);
  if (ids > kMaxTracePicks) {
    refuse(what, "$.tokens", std::to_string(trace.tokens),
           "tokens * layers * (top_k + predictions) up to " + std::to_string(kMaxTracePicks));
  }
}

constexpr size_t kMaxVersionBytes = 32;

// "1.MINOR.PATCH" in digits.
bool is_version_1(std::string_view text) {
  if (!text.starts_with("1.") || text.size() > kMaxVersionBytes) return false;
  const size_t dot = text.find('.', 2);
  if (dot == std::string_view::npos) return false;
  const auto digits = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return digits(text.substr(2, dot - 2)) && digits(text.substr(dot + 1));
}

}  // namespace

void check_routing_trace(const RoutingTrace& trace, const std::string& what) {
  check_counts(trace, what);
  const int64_t picks = trace.tokens * trace.layers * trace.top_k;
  if (static_cast<int64_t>(trace.ids.size()) != picks) {
    refuse(what, "$.ids", std::to_string(trace.ids.size()) + " ids", std::to_string(picks) + " ids");
  }
  const int64_t predicted = trace.tokens * trace.layers * trace.predictions;
  if (static_cast<int64_t>(trace.predicted.size()) != predicted) {
    refuse(what, "$.predicted", std::to_string(trace.predicted.size()) + " ids", std::to_string(predicted) + " ids");
  }
  std::vector<int64_t> last_seen(static_cast<size_t>(trace.experts), -1);
  int64_t list = 0;
  const auto check_list = [&](std::span<const int16_t> ids, const char* name, int64_t token, int layer, bool may_end) {
    const std::string path =
        std::string("$.") + name + "[" + std::to_string(token) + "][" + std::to_string(layer) + "]";
    bool ended = false;
    for (const int16_t id : ids) {
      ended = ended || (may_end && id == -1);
      if (ended && id == -1) continue;
      if (ended || id < 0 || id >= trace.experts) {
        refuse(what, path, std::to_string(id), "0 to " + std::to_string(trace.experts - 1));
      }
      if (may_end && last_seen[static_cast<size_t>(id)] == list) {
        refuse(what, path, std::to_string(id), "each expert once");
      }
      last_seen[static_cast<size_t>(id)] = list;
    }
    ++list;
  };
  for (int64_t token = 0; token < trace.tokens; ++token) {
    for (int layer = 0; layer < trace.layers; ++layer) {
      check_list(trace.at(token, layer), "ids", token, layer, false);
      check_list(trace.predicted_at(token, layer), "predicted", token, layer, true);
    }
  }
}

PredictionStatistics prediction_statistics(const RoutingTrace& trace) {
  PredictionStatistics result;
  if (trace.predictions == 0) return result;
  for (int64_t token = 0; token < trace.tokens; ++token) {
    for (int layer = 0; layer < trace.layers; ++layer) {
      const auto predicted = trace.predicted_at(token, layer), chosen = trace.at(token, layer);
      if (predicted[0] < 0) continue;
      result.picks += trace.top_k;
      for (const int16_t id : predicted) {
        if (id < 0) break;
        ++result.predicted;
        result.right += std::find(chosen.begin(), chosen.end(), id) != chosen.end() ? 1 : 0;
      }
    }
  }
  return result;
}

TraceStatistics trace_statistics(const RoutingTrace& trace) {
  TraceStatistics result;
  if (trace.tokens < 2) return result;
  int64_t next = 0, within = 0, picks = 0;
  // last_use[layer][expert]: token that picked it last, -1 never.
  std::vector<int64_t> last_use(static_cast<size_t>(trace.layers) * static_cast<size_t>(trace.experts), -1);
  for (int64_t token = 0; token < trace.tokens; ++token) {
    const int64_t oldest = std::max<int64_t>(0, token - kOverlapWindow);
    for (int layer = 0; layer < trace.layers; ++layer) {
      for (const int16_t id : trace.at(token, layer)) {
        int64_t& last =
            last_use[static_cast<size_t>(layer) * static_cast<size_t>(trace.experts) + static_cast<size_t>(id)];
        if (token > 0) {
          ++picks;
          next += last == token - 1 ? 1 : 0;
          within += last >= oldest ? 1 : 0;
        }
        last = token;
      }
    }
  }
  result.next_token_overlap = static_cast<double>(next) / static_cast<double>(picks);
  result.within_8 = static_cast<double>(within) / static_cast<double>(picks);
  return result;
}

namespace {

int16_t expert_id(const Json& id, int experts, const std::string& path, const std::string& what) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(experts)) {
    refuse(what, path, shown(id), "0 to " + std::to_string(experts - 1));
  }
  return static_cast<int16_t>(id.get<uint64_t>());
}

// f(list of ids, path, token, layer) over [token][layer] of a trace's member.
template <class F>
void for_each_list(const Json& tokens, const std::string& name, const RoutingTrace& trace, const std::string& what,
                   F&& f) {
  array_of(tokens, trace.tokens, "$." + name, what);
  for (size_t token = 0; token < tokens.size(); ++token) {
    const std::string token_path = "$." + name + "[" + std::to_string(token) + "]";
    const Json& layers = array_of(tokens[token], trace.layers, token_path, what);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      f(layers[layer], token_path + "[" + std::to_string(layer) + "]");
    }
  }
}

void parse_predictions(const Json& json, const std::string& what, RoutingTrace& trace) {
  size_t most = 0;
  const auto bound = static_cast<size_t>(std::min(kMaxTracePredictions, trace.experts));
  for_each_list(json, "predicted", trace, what, [&](const Json& list, const std::string& path) {
    if (!list.is_array() || list.size() > bound) {
      refuse(what, path, list.is_array() ? std::to_string(list.size()) + " ids" : shown(list),
             "an array of up to " + std::to_string(bound));
    }
    most = std::max(most, list.size());
  });
  trace.predictions = static_cast<int>(most);
  check_counts(trace, what);
  trace.predicted.reserve(static_cast<size_t>(trace.tokens * trace.layers) * most);
  for_each_list(json, "predicted", trace, what, [&](const Json& list, const std::string& path) {
    for (const Json& id : list) trace.predicted.push_back(expert_id(id, trace.experts, path, what));
    trace.predicted.insert(trace.predicted.end(), most - list.size(), int16_t{-1});
  });
}

// [[[1,2],[3]],...] with one token a line, so that differences stay readable. A list ends at its first -1.
template <class At>
std::string lists_text(const RoutingTrace& trace, At&& at) {
  std::string text;
  for (int64_t token = 0; token < trace.tokens; ++token) {
    text += token == 0 ? "[" : ",\n[";
    for (int layer = 0; layer < trace.layers; ++layer) {
      text += layer == 0 ? "[" : ",[";
      bool first = true;
      for (const int16_t id : at(token, layer)) {
        if (id < 0) break;
        if (!first) text += ",";
        first = false;
        text += std::to_string(id);
      }
      text += "]";
    }
    text += "]";
  }
  return text;
}

}  // namespace

RoutingTrace parse_routing_trace(const Json& json, const std::string& source) {
  const std::string what = "routing trace " + source + " refused";
  if (!json.is_object()) refuse(what, "$", shown(json), "an object");
  for (const auto& [key, value] : json.items()) {
    constexpr std::string_view kKeys[] = {"version", "source", "layers", "experts",
                                          "top_k",   "tokens", "ids",    "predicted"};
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      refuse(what, "$." + key, shown(value), "version, source, layers, experts, top_k, tokens, ids, predicted");
    }
  }
  const std::string version = text_at(json, "version", what);
  if (!is_version_1(version)) refuse(what, "$.version", version, "1.MINOR.PATCH");
  RoutingTrace trace;
  trace.source = text_at(json, "source", what);
  trace.layers = static_cast<int>(integer_at(json, "layers", 1, kMaxLayers, what));
  trace.experts = static_cast<int>(integer_at(json, "experts", 1, kMaxExperts, what));
  trace.top_k = static_cast<int>(integer_at(json, "top_k", 1, std::min<int64_t>(kMaxTopK, trace.experts), what));
  trace.tokens = integer_at(json, "tokens", 1, kMaxTraceTokens, what);
  check_counts(trace, what);

  const auto ids = json.find("ids");
  if (ids == json.end()) refuse(what, "$.ids", "missing", "[token][layer][top_k]");
  trace.ids.reserve(static_cast<size_t>(trace.tokens * trace.layers * trace.top_k));
  for_each_list(*ids, "ids", trace, what, [&](const Json& list, const std::string& path) {
    for (const Json& id : array_of(list, trace.top_k, path, what)) {
      trace.ids.push_back(expert_id(id, trace.experts, path, what));
    }
  });
  if (json.contains("predicted")) parse_predictions(json["predicted"], what, trace);
  check_routing_trace(trace, what);
  return trace;
}

RoutingTrace read_routing_trace(const std::string& path) { return parse_routing_trace(read_json_file(path), path); }

void write_routing_trace(const std::string& path, const RoutingTrace& trace) {
  check_routing_trace(trace, "routing trace cannot be written to " + path);
  std::string text = "{\"version\": \"" + std::string(kTraceVersion) + "\",\n \"source\": ";
  text += Json(trace.source).dump(-1, ' ', true, Json::error_handler_t::replace);
  text += ",\n \"layers\": " + std::to_string(trace.layers) + ", \"experts\": " + std::to_string(trace.experts);
  text += ", \"top_k\": " + std::to_string(trace.top_k) + ", \"tokens\": " + std::to_string(trace.tokens);
  text += ",\n \"ids\": [\n";
  text += lists_text(trace, [&](int64_t token, int layer) { return trace.at(token, layer); });
  if (trace.predictions > 0) {
    text += "\n],\n \"predicted\": [\n";
    text += lists_text(trace, [&](int64_t token, int layer) { return trace.predicted_at(token, layer); });
  }
  text += "\n]}\n";
  write_file_atomically(path, text);
}

}  // namespace ft
