// Watches the conditions while ft-tune measures: a reading before and after each probe.
//
// Cost on two cores of a Xeon VM: begin() 0.12 ms, end() 0.38 ms, of which 0.26 are for the clock of a core; a GPU adds
// a dozen calls of NVML to each (not measured).
//
// Thread rule: the thread that runs the probes.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "probes/probe.h"
#include "profiles/profile.h"
#include "tuner/doctor.h"

namespace ft {

class ConditionWatch {
 public:
  // Of the usable cores. gpu_uuid: empty without a GPU.
  ConditionWatch(const CpuBudget& cpus, std::string gpu_uuid);

  void begin();
  // `taken` are the series that the probe gave since begin(): those taken while the machine was disturbed get a remark.
  void end(std::string_view probe, std::span<Measurement> taken);

  // What was found so far; `earlier` are those of a run that this one goes on from.
  std::vector<Finding> findings(std::span<const PlacedMemory> placed, std::span<const Finding> earlier) const;

 private:
  GpuReadings gpu_readings();

  HostSettings settings_;
  std::string gpu_uuid_;
  HostCounters first_, before_, last_;  // of the first begin(), of the last one, of the last end()
  cuda::GpuConditions gpu_before_;
  std::vector<NamedChecks> intervals_;
  std::vector<double> core_ghz_;
  PageReport pages_;
};

// CPUs of the budget that compute when all usable cores do.
std::vector<int> computing_cpus(const CpuBudget& cpus);

// Where the model's banks are and where an engine with base.threads wants them; empty with one node or without a model.
std::vector<PlacedMemory> placed_banks(const ProbeContext& context);

// Adds to `remarks` what a reader of samples must know that were taken in an interval with these checks.
void add_remarks(std::span<const Check> interval, std::vector<std::string>& remarks);

// Findings of both, the worse of each id.
std::vector<Finding> merged_findings(std::span<const Finding> now, std::span<const Finding> earlier);

}  // namespace ft
