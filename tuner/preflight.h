// What can be decided before weights are loaded: what to measure, what fits, and every refusal that needs no
// measurement.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/experts/memory_plan.h"
#include "engine/model/family.h"
#include "probes/session.h"
#include "profiles/profile.h"
#include "profiles/samples.h"
#include "tuner/request.h"

namespace ft {

struct Preflight {
  std::shared_ptr<const Family> family;
  ModelFormats formats;
  ProbeSessionOptions options;  // without callbacks
  EngineConfig base;            // what candidates share
  MemoryInputs memory;
  SlotBounds bounds;
  std::optional<int64_t> slots;  // pinned, as a count
  std::string slots_asked;       // the same for people: "96", or "96 (50%)" when a share was asked for
  Identity identity;
  std::optional<cuda::DeviceFacts> gpu;  // on cuda, which this process then uses
};

// loaded: ProbeSessionOptions::loaded. Throws Error: kUsage for pins outside what this machine and model allow, kFailed
// for what does not fit in memory.
Preflight make_preflight(const TuneRequest& request, const LoadedModel& loaded = {});

// What --resume goes on from. That there is nothing is refused: a mistyped --output would measure everything again
// while the user believes that it does not.
SampleRecord kept_samples(const std::string& path, const std::string& output);

// Memory plan, probes and candidates as text; measures nothing.
std::string tune_dry_run(const TuneRequest& request);

}  // namespace ft
