// The profile: what ft-tune measured, what it chose and why, and exactly what ft-engine does. One JSON file,
// schemas/profile.schema.json, semantic version in "version".
//
// Version rules. The major version must be ours. A minor version adds keys that may be absent and then mean what was
// before; a change of meaning is a new major version. A file with a newer minor version is read and the keys that we do
// not know are ignored outside `serve`. In a file of our minor version or an older one, and always in `serve`, an
// unknown key is refused: what an older engine cannot do it does not pretend to.
//
// Thread rule: everything here is a pure function of its arguments and the files named.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/json.h"
#include "profiles/identity.h"

namespace ft {

inline constexpr int kProfileMajor = 1;
// 1: identity.model.data_sample_hash. 2: conditions.link and .banks, serve.link_slowdown.
// 3: serve.fetch_mechanism (absent: sm), .cache_policy (absent: lru), .look_ahead (absent: off),
//    .max_prefetches_per_layer
// 4: conditions.findings, candidates[].fetch_mechanism, .max_prefetches_per_layer, .parts, .replays, .gap,
//    .missing_us_per_layer, routing, serve.expected, .fallback, cost_model.parameters[].held_out_error_without
inline constexpr int kProfileMinor = 4;
inline constexpr size_t kMaxProfileBytes = 64u << 20;
std::string profile_version_text();  // "1.4.0": what is written

// Something about the machine that spoils numbers, or could.
struct Finding {
  std::string id;     // "cpu.throttled": stable, for programs
  std::string level;  // "warning": numbers are spoilt; "note": they hold for these conditions only
  std::string what;   // what was seen, with its value
  std::string fix;    // the command that changes it; empty: none is known
};

struct Conditions {
  std::string commit;  // empty when unknown
  bool dirty = false;
  std::string created;  // UTC, ISO 8601
  double budget_seconds = 0;
  double spent_seconds = 0;
  bool reduced = false;  // some probe was shortened
  std::string device;
  std::optional<int64_t> device_memory_limit_bytes;
  std::vector<int64_t> contexts, batches;
  std::string routing_source;
  std::string memory;               // page sizes granted, for people
  std::string link;                 // of a GPU, under load, for people; empty when not measured
  std::string banks;                // of a GPU: how long they took to be ready, for people; empty otherwise
  std::string likwid;               // "used: topology, counters" or why not
  int64_t throttled_usec = 0;       // cgroup throttling while measuring
  std::vector<std::string> forced;  // options that pinned a knob: "--strategy offload"
  std::vector<Finding> findings;
};

// One series of one probe: raw values, never only a mean.
struct Measurement {
  std::string probe;  // "expert_single"
  std::string name;   // "nvfp4.avx512_bf16.threads=2"
  std::string unit;   // "GB/s", "us"
  std::vector<double> values;
  uint64_t discarded = 0;
  std::string stop_reason;  // "samples", "time", "interrupted"
  bool reduced = false;
  std::map<std::string, double> at;  // the point: {"threads": 2, "n": 4}
  std::vector<std::string> remarks;
};
struct SkippedProbe {
  std::string probe, reason;
};

struct Parameter {   // of the cost model
  std::string name;  // "s_c.threads=2"
  std::string unit;
  double value = 0, low = 0, high = 0;
  std::optional<double> held_out_error_without = {};  // of a model that is refitted with this one forced to zero
};
struct CostModelRecord {
  std::vector<Parameter> parameters;
  double held_out_error = 0;  // median relative, of cells that took no part in the fit
  double held_out_error_without_fixed_costs = 0;
  int64_t cells_fitted = 0, cells_held_out = 0;
};

// Where the time of a predicted step goes, one part of it. The parts of a candidate sum to the step.
struct CostPart {
  std::string name;             // "dense", "attention", "experts" (those in slots), "fetch", "cpu", "synchronization",
                                // "merge", "sampling", "idle"
  std::vector<double> seconds;  // per (context, batch), in the order of conditions
};

// What a candidate's cache did in the replay of the routing trace: `times` layers had these counts. Experts are
// distinct ones; picks are expert-token pairs.
struct ReplayedCounts {
  int64_t times = 0;
  int tokens = 1;
  int hits = 0, fetched = 0, cpu = 0, promoted = 0;  // promoted ones are counted in cpu too
  int hit_picks = 0, fetched_picks = 0, cpu_picks = 0;
  int prefetched = 0;
};
struct CandidateReplay {
  int64_t batch = 1;
  double hit_rate = 0;
  std::vector<ReplayedCounts> counts;
};

struct Candidate {
  std::string strategy;
  int threads = 0;
  int64_t slots = 0;
  std::string split;                            // for people: "fetch 1 of 3"
  std::string fetch_mechanism;                  // cuda: "sm" | "copy_engine"; empty where nothing is fetched
  std::optional<int> max_prefetches_per_layer;  // with look-ahead
  // Per (context, batch), in the order of conditions: tokens per second over the whole batch.
  std::vector<double> predicted_tok_s;
  std::vector<double> measured_tok_s;  // empty when it was not run
  std::vector<double> measured_low, measured_high;
  double predicted_hit_rate = 0, measured_hit_rate = 0;
  std::optional<double> gap;                   // measured over predicted time, at filled contexts; absent: none was
  std::optional<double> missing_us_per_layer;  // when the gap is over the stated factor
  bool chosen = false;
  std::string verdict;                   // "chosen", or why not
  std::vector<CostPart> parts;           // empty when it could not be predicted
  std::vector<CandidateReplay> replays;  // per batch; of the candidates worth a decode run, empty for the others
};

// What caches of other sizes would do with the same routing trace and policy.
struct RoutingPoint {
  int64_t slots = 0;
  int64_t batch = 1;
  double hit_rate = 0;
  double optimum_hit_rate = 0;            // of a cache that knows the future
  std::vector<int64_t> misses_histogram;  // [m]: layers with m misses
};
struct RoutingRecord {
  std::string cache_policy;
  std::vector<RoutingPoint> points;  // slots ascending within a batch
};

struct Decision {
  std::string strategy;
  double predicted_tok_s = 0, measured_tok_s = 0;
  std::string runner_up;  // empty: none
  double margin = 0;      // ratio to the runner-up, measured when both were
  double margin_low = 0, margin_high = 0;
  bool tie = false;
  bool forced = false;
  double gap = 0;                   // measured over predicted time of the winner
  double missing_us_per_layer = 0;  // when the gap is over the stated factor, else 0
  std::string reason;               // one sentence
  std::vector<std::string> warnings;
};

// What decode steps of one (context, batch) are expected to be like: what the engine compares itself with in service.
struct ExpectedPart {
  std::string name;  // as in CostPart
  double seconds = 0;
};
struct ExpectedPoint {
  int64_t context = 0, batch = 1;
  double tok_s = 0, low_tok_s = 0, high_tok_s = 0;  // over the whole batch, with its interval: measured or predicted
  double hit_rate = 0;
  double fetched_per_token = 0, cpu_per_token = 0;  // distinct experts of a step, over all layers, by its sequences
  std::vector<ExpectedPart> parts;                  // of a step, they sum to batch / tok_s; empty: not known
};

// What the engine may change to between steps when the choice does not do what was expected: --on-drift fallback. What
// is allocated stays as it is: threads, slots and cache policy are those of `serve`, and so is look-ahead.
struct Fallback {
  std::string strategy;  // "offload"
  std::vector<int> fetch_of_misses;
  int64_t promote_bytes_per_layer = 0;
  std::vector<ExpectedPoint> expected;  // empty: not known
};

// Exactly what the engine consumes. No sentinels, no free text: an absent optional key is absent.
struct Serve {
  std::string device;  // "host" | "cuda"
  std::string strategy;
  std::string model_path;  // at tuning time; blank in recorded reference profiles
  std::optional<uint64_t> synthetic_seed;
  std::optional<std::string> routing_preset;
  int threads = 1;
  std::vector<int> pinning;
  int64_t slots = 0;
  std::vector<int> fetch_of_misses;
  int64_t promote_bytes_per_layer = 0;
  std::optional<std::string> cache_policy;      // "lru" | "lrfu"; absent: lru
  std::optional<std::string> look_ahead;        // "router"; absent: off
  std::optional<int> max_prefetches_per_layer;  // with look_ahead
  int max_batch = 1;
  int64_t max_context = 0;
  int prefill_chunk = 64;
  std::optional<int64_t> device_memory_limit_bytes;
  std::optional<std::string> fetch_mechanism;  // cuda: "sm" | "copy_engine"; absent: "sm"
  std::optional<int> link_slowdown;            // cuda, for tests: the link moves every blob so many times; absent: once
  double predicted_tok_s = 0;                  // batch 1, smallest context: what stats compare with; 0: not tuned
  double ceiling_gbps = 0;  // mem_read with these threads; on cuda see ceiling_gbps() in tuner/measurements.h
  // One per (context, batch) that was tuned, contexts outermost; empty: the rate in service is not judged.
  std::vector<ExpectedPoint> expected;
  std::optional<Fallback> fallback;  // absent: there is none
};

struct Profile {
  std::string version = profile_version_text();
  Identity identity;
  Conditions conditions;
  std::vector<Measurement> measurements;
  std::vector<SkippedProbe> skipped;
  CostModelRecord cost_model;
  std::vector<Candidate> candidates;
  std::optional<RoutingRecord> routing;
  Decision decision;
  Serve serve;
};

// Checks the version, then the schema (keys, types, ranges), then what holds between fields (profiles/rules.cpp).
// Throws Error(kUsage) with the JSON path ("$.serve.threads"), the value and what is allowed. `source` names the file.
Profile parse_profile(const Json& json, const std::string& source);
Profile read_profile(const std::string& path);  // every failure is kUsage: the profile is refused
OrderedJson profile_to_json(const Profile& profile);
// Atomic. Reads back what it is about to write first, so that no profile is written that would be refused.
void write_profile(const std::string& path, const Profile& profile);

// Validates any JSON against one of the schemas built into the program ("profile", "routing_trace", "machine",
// "samples"). Throws Error(kUsage) with the path, the value and what is allowed.
void validate_schema(const Json& json, const std::string& schema, const std::string& source);

}  // namespace ft
