#include "tests/profiles/compare_sample.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/base/random.h"
#include "tests/profiles/sample_profile.h"

namespace {

constexpr double kKernelBytes = 1e6;
constexpr int kKernelRounds = 6 * 31;  // as a tuning spreads them

class Maker {
 public:
  Maker(ft::Profile& profile, const TimeOf& time_of) : profile_(profile), time_of_(time_of) {}

  void add(const std::string& probe, const std::string& name, const std::string& unit, double us, int samples,
           std::map<std::string, double> at) {
    ft::Measurement m;
    m.probe = probe;
    m.name = name;
    m.unit = unit;
    m.stop_reason = "samples";
    m.at = std::move(at);
    for (int round = 0; round < samples; ++round) {
      const double time = time_of_(name, us, round);
      m.values.push_back(unit == "us" ? time : unit == "GB/s" ? kKernelBytes / time * 1e-3 : 1e6 / time);
    }
    profile_.measurements.push_back(std::move(m));
  }
  void yardstick(const std::string& of, int samples, std::map<std::string, double> more = {}) {
    more.insert({{"version", 1}, {"others_share", 0}});
    add("yardstick", "yardstick." + of, "us", 30, samples, std::move(more));
    add("yardstick", "yardstick.all_threads." + of, "us", 31, samples,
        {{"version", 1}, {"threads", 2}, {"others_share", 0}});
  }

 private:
  ft::Profile& profile_;
  const TimeOf& time_of_;
};

}  // namespace

ft::Profile compared_profile(const TimeOf& time_of) {
  ft::Profile profile = sample_profile();
  profile.conditions.reduced = false;
  profile.conditions.throttled_usec = 0;
  profile.measurements.clear();
  Maker maker(profile, time_of);
  maker.add("stream", "copy.threads=2", "GB/s", 500, 31, {{"threads", 2}, {"array_bytes", 1e8}});
  maker.yardstick("copy.threads=2", 31);
  for (const char* kernel : {"gate_up", "down"}) {
    for (const char* isa : {"avx2", "avx512"}) {
      maker.add("expert_single", std::string("nvfp4.") + isa + "." + kernel + ".best", "GB/s", 120, kKernelRounds,
                {{"threads", 1}, {"best_of", 12}});
    }
  }
  maker.add("expert_single", "nvfp4.mem_read.threads=2", "GB/s", 30, kKernelRounds, {{"threads", 2}});
  maker.yardstick("nvfp4.avx2.gate_up.best", kKernelRounds, {{"best_of", 12}});
  for (int hits = 0; hits < 16; ++hits) {
    maker.add("layer_sweep", "h" + std::to_string(hits), "us", 10.0 + 5 * hits, 31,
              {{"hits", hits}, {"threads", 2}, {"layers", 12}});
  }
  maker.yardstick("h0", 31);
  for (const int context : {512, 4096}) {
    const std::string point = ".context=" + std::to_string(context) + ".batch=1";
    const std::string names[] = {"hybrid.slots=48.threads=2", "offload.slots=48.threads=2"};
    for (int candidate = 0; candidate < 2; ++candidate) {
      maker.add("decode", names[candidate] + point, "tok/s", 400 + 100 * candidate, 200,
                {{"candidate", candidate},
                 {"context", context},
                 {"batch", 1},
                 {"threads", 2},
                 {"slots", 48},
                 {"hit_rate", 0.5}});
    }
    maker.yardstick(names[0] + point, 200);
  }
  return profile;
}

ft::Profile quiet_profile(uint64_t seed) {
  ft::Random random(seed);
  return compared_profile([&](const std::string&, double us, int) { return us * (1 + 0.01 * random.uniform()); });
}

ft::Measurement& series_of(ft::Profile& profile, const std::string& probe, const std::string& name) {
  const auto found = std::find_if(profile.measurements.begin(), profile.measurements.end(),
                                  [&](const ft::Measurement& m) { return m.probe == probe && m.name == name; });
  REQUIRE(found != profile.measurements.end());
  return *found;
}

void scale_times(ft::Measurement& measurement, double factor) {
  for (double& value : measurement.values) value *= measurement.unit == "us" ? factor : 1 / factor;
}
