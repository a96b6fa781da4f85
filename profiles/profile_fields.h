// The JSON keys of every struct of the profile, once, in the order they are written. A reader and a writer walk this
// list, so that what is written is what is read. Internal to profiles/.
//
// V has, for a reader as for a writer:
//   required(key, value)      numbers, texts, vectors, maps, and structs of this list
//   present(key, optional)    an absent key is an empty optional
//   unless_empty(key, value)  an absent key is an empty text or vector
#pragma once

#include <type_traits>

#include "profiles/profile.h"
#include "profiles/samples.h"

namespace ft {

// The same function serves reading into a T and writing from a const T.
template <class T, class Struct>
concept MaybeConst = std::is_same_v<std::remove_const_t<T>, Struct>;

template <class V, MaybeConst<HostIdentity> T>
void fields(V& v, T& host) {
  v.required("cpu_model", host.cpu_model);
  v.required("isa", host.isa);
  v.required("cores", host.cores);
  v.required("affinity_cores", host.affinity_cores);
  v.present("quota_cores", host.quota_cores);
  v.required("numa_nodes", host.numa_nodes);
  v.required("memory_bytes", host.memory_bytes);
  v.unless_empty("gpu_uuid", host.gpu_uuid);
  v.unless_empty("gpu_name", host.gpu_name);
  v.unless_empty("gpu_driver", host.gpu_driver);
  v.unless_empty("gpu_link", host.gpu_link);
}

template <class V, MaybeConst<BuildIdentity> T>
void fields(V& v, T& build) {
  v.required("version", build.version);
  v.required("compiler", build.compiler);
  v.required("code_hash", build.code_hash);
}

template <class V, MaybeConst<ModelIdentity> T>
void fields(V& v, T& model) {
  v.required("config_hash", model.config_hash);
  v.unless_empty("index_hash", model.index_hash);
  v.unless_empty("data_sample_hash", model.data_sample_hash);
  v.required("family", model.family);
  v.required("formats", model.formats);
  v.required("weights", model.weights);
}

template <class V, MaybeConst<Identity> T>
void fields(V& v, T& identity) {
  v.required("host", identity.host);
  v.required("build", identity.build);
  v.required("model", identity.model);
}

template <class V, MaybeConst<Finding> T>
void fields(V& v, T& finding) {
  v.required("id", finding.id);
  v.required("level", finding.level);
  v.required("what", finding.what);
  v.unless_empty("fix", finding.fix);
}

template <class V, MaybeConst<Conditions> T>
void fields(V& v, T& conditions) {
  v.required("commit", conditions.commit);
  v.required("dirty", conditions.dirty);
  v.required("created", conditions.created);
  v.required("budget_seconds", conditions.budget_seconds);
  v.required("spent_seconds", conditions.spent_seconds);
  v.required("reduced", conditions.reduced);
  v.required("device", conditions.device);
  v.present("device_memory_limit_bytes", conditions.device_memory_limit_bytes);
  v.required("contexts", conditions.contexts);
  v.required("batches", conditions.batches);
  v.required("routing_source", conditions.routing_source);
  v.required("memory", conditions.memory);
  v.unless_empty("link", conditions.link);
  v.unless_empty("banks", conditions.banks);
  v.required("likwid", conditions.likwid);
  v.required("throttled_usec", conditions.throttled_usec);
  v.required("forced", conditions.forced);
  v.unless_empty("findings", conditions.findings);
}

template <class V, MaybeConst<Measurement> T>
void fields(V& v, T& measurement) {
  v.required("probe", measurement.probe);
  v.required("name", measurement.name);
  v.required("unit", measurement.unit);
  v.required("at", measurement.at);
  v.required("values", measurement.values);
  v.required("discarded", measurement.discarded);
  v.required("stop_reason", measurement.stop_reason);
  v.required("reduced", measurement.reduced);
  v.required("remarks", measurement.remarks);
}

template <class V, MaybeConst<SkippedProbe> T>
void fields(V& v, T& skipped) {
  v.required("probe", skipped.probe);
  v.required("reason", skipped.reason);
}

template <class V, MaybeConst<Parameter> T>
void fields(V& v, T& parameter) {
  v.required("name", parameter.name);
  v.required("unit", parameter.unit);
  v.required("value", parameter.value);
  v.required("low", parameter.low);
  v.required("high", parameter.high);
  v.present("held_out_error_without", parameter.held_out_error_without);
}

template <class V, MaybeConst<CostModelRecord> T>
void fields(V& v, T& model) {
  v.required("parameters", model.parameters);
  v.required("held_out_error", model.held_out_error);
  v.required("held_out_error_without_fixed_costs", model.held_out_error_without_fixed_costs);
  v.required("cells_fitted", model.cells_fitted);
  v.required("cells_held_out", model.cells_held_out);
}

template <class V, MaybeConst<CostPart> T>
void fields(V& v, T& part) {
  v.required("name", part.name);
  v.required("seconds", part.seconds);
}

template <class V, MaybeConst<ReplayedCounts> T>
void fields(V& v, T& counts) {
  v.required("times", counts.times);
  v.required("tokens", counts.tokens);
  v.required("hits", counts.hits);
  v.required("fetched", counts.fetched);
  v.required("cpu", counts.cpu);
  v.required("promoted", counts.promoted);
  v.required("hit_picks", counts.hit_picks);
  v.required("fetched_picks", counts.fetched_picks);
  v.required("cpu_picks", counts.cpu_picks);
  v.required("prefetched", counts.prefetched);
}

template <class V, MaybeConst<CandidateReplay> T>
void fields(V& v, T& replay) {
  v.required("batch", replay.batch);
  v.required("hit_rate", replay.hit_rate);
  v.required("counts", replay.counts);
}

template <class V, MaybeConst<RoutingPoint> T>
void fields(V& v, T& point) {
  v.required("slots", point.slots);
  v.required("batch", point.batch);
  v.required("hit_rate", point.hit_rate);
  v.required("optimum_hit_rate", point.optimum_hit_rate);
  v.required("misses_histogram", point.misses_histogram);
}

template <class V, MaybeConst<RoutingRecord> T>
void fields(V& v, T& routing) {
  v.required("cache_policy", routing.cache_policy);
  v.required("points", routing.points);
}

template <class V, MaybeConst<Candidate> T>
void fields(V& v, T& candidate) {
  v.required("strategy", candidate.strategy);
  v.required("threads", candidate.threads);
  v.required("slots", candidate.slots);
  v.required("split", candidate.split);
  v.unless_empty("fetch_mechanism", candidate.fetch_mechanism);
  v.present("max_prefetches_per_layer", candidate.max_prefetches_per_layer);
  v.required("predicted_tok_s", candidate.predicted_tok_s);
  v.required("measured_tok_s", candidate.measured_tok_s);
  v.required("measured_low", candidate.measured_low);
  v.required("measured_high", candidate.measured_high);
  v.required("predicted_hit_rate", candidate.predicted_hit_rate);
  v.required("measured_hit_rate", candidate.measured_hit_rate);
  v.present("gap", candidate.gap);
  v.present("missing_us_per_layer", candidate.missing_us_per_layer);
  v.required("chosen", candidate.chosen);
  v.required("verdict", candidate.verdict);
  v.unless_empty("parts", candidate.parts);
  v.unless_empty("replays", candidate.replays);
}

template <class V, MaybeConst<Decision> T>
void fields(V& v, T& decision) {
  v.required("strategy", decision.strategy);
  v.required("predicted_tok_s", decision.predicted_tok_s);
  v.required("measured_tok_s", decision.measured_tok_s);
  v.required("runner_up", decision.runner_up);
  v.required("margin", decision.margin);
  v.required("margin_low", decision.margin_low);
  v.required("margin_high", decision.margin_high);
  v.required("tie", decision.tie);
  v.required("forced", decision.forced);
  v.required("gap", decision.gap);
  v.required("missing_us_per_layer", decision.missing_us_per_layer);
  v.required("reason", decision.reason);
  v.required("warnings", decision.warnings);
}

template <class V, MaybeConst<ExpectedPart> T>
void fields(V& v, T& part) {
  v.required("name", part.name);
  v.required("seconds", part.seconds);
}

template <class V, MaybeConst<ExpectedPoint> T>
void fields(V& v, T& point) {
  v.required("context", point.context);
  v.required("batch", point.batch);
  v.required("tok_s", point.tok_s);
  v.required("low_tok_s", point.low_tok_s);
  v.required("high_tok_s", point.high_tok_s);
  v.required("hit_rate", point.hit_rate);
  v.required("fetched_per_token", point.fetched_per_token);
  v.required("cpu_per_token", point.cpu_per_token);
  v.unless_empty("parts", point.parts);
}

template <class V, MaybeConst<Fallback> T>
void fields(V& v, T& fallback) {
  v.required("strategy", fallback.strategy);
  v.required("fetch_of_misses", fallback.fetch_of_misses);
  v.required("promote_bytes_per_layer", fallback.promote_bytes_per_layer);
  v.unless_empty("expected", fallback.expected);
}

template <class V, MaybeConst<Serve> T>
void fields(V& v, T& serve) {
  v.required("device", serve.device);
  v.required("strategy", serve.strategy);
  v.unless_empty("model_path", serve.model_path);
  v.present("synthetic_seed", serve.synthetic_seed);
  v.present("routing_preset", serve.routing_preset);
  v.required("threads", serve.threads);
  v.unless_empty("pinning", serve.pinning);
  v.required("slots", serve.slots);
  v.unless_empty("fetch_of_misses", serve.fetch_of_misses);
  v.required("promote_bytes_per_layer", serve.promote_bytes_per_layer);
  v.present("cache_policy", serve.cache_policy);
  v.present("look_ahead", serve.look_ahead);
  v.present("max_prefetches_per_layer", serve.max_prefetches_per_layer);
  v.required("max_batch", serve.max_batch);
  v.required("max_context", serve.max_context);
  v.required("prefill_chunk", serve.prefill_chunk);
  v.present("device_memory_limit_bytes", serve.device_memory_limit_bytes);
  v.present("fetch_mechanism", serve.fetch_mechanism);
  v.present("link_slowdown", serve.link_slowdown);
  v.required("predicted_tok_s", serve.predicted_tok_s);
  v.required("ceiling_gbps", serve.ceiling_gbps);
  v.unless_empty("expected", serve.expected);
  v.present("fallback", serve.fallback);
}

template <class V, MaybeConst<Profile> T>
void fields(V& v, T& profile) {
  v.required("version", profile.version);
  v.required("identity", profile.identity);
  v.required("conditions", profile.conditions);
  v.required("serve", profile.serve);
  v.required("decision", profile.decision);
  v.required("candidates", profile.candidates);
  v.present("routing", profile.routing);
  v.required("cost_model", profile.cost_model);
  v.required("skipped", profile.skipped);
  v.required("measurements", profile.measurements);
}

template <class V, MaybeConst<SampleRecord> T>
void fields(V& v, T& record) {
  v.required("version", record.version);
  v.required("identity", record.identity);
  v.required("conditions", record.conditions);
  v.required("skipped", record.skipped);
  v.required("measurements", record.measurements);
}

}  // namespace ft
