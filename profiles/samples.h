// Samples without a decision: what an interrupted run of ft-tune leaves behind for --resume, and what ft-probe records.
// schemas/samples.schema.json; the sections are those of a profile.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/json.h"
#include "profiles/profile.h"

namespace ft {

struct SampleRecord {
  std::string version = profile_version_text();
  Identity identity;
  Conditions conditions;
  std::vector<Measurement> measurements;
  std::vector<SkippedProbe> skipped;
};

// The same errors and the same version rules as a profile.
SampleRecord parse_samples(const Json& json, const std::string& source);
SampleRecord read_samples(const std::string& path);
std::string samples_text(const SampleRecord& record);                     // of a file, on one line for each measurement
void write_samples(const std::string& path, const SampleRecord& record);  // atomic; validates what it writes

}  // namespace ft
