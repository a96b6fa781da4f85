// Checked against: a time line drawn by hand, whose parts can be read off.
#include "tests/bench/step_profile.h"

#include <doctest/doctest.h>

#include <cmath>

namespace {

using namespace ft::bench;

// One step that starts at `at`: a (0 to 10), b that starts under it (4 to 16), a gap to 20, a again (20 to 26), and c
// that lies wholly under it.
std::vector<KernelSpan> step_at(uint64_t at) {
  return {{"a", at, at + 10'000},
          {"b", at + 4'000, at + 16'000},
          {"a", at + 20'000, at + 26'000},
          {"c", at + 21'000, at + 25'000}};
}

const ProfileRow& row_of(const StepProfile& profile, const std::string& name) {
  for (const ProfileRow& row : profile.rows) {
    if (row.name == name) return row;
  }
  FAIL("no row " << name);
  return profile.rows.front();
}

constexpr uint64_t kGap = 50'000;

}  // namespace

TEST_CASE("exposed and idle time sum to the span") {
  std::vector<KernelSpan> kernels;
  for (const uint64_t at : {1'000'000u, 2'000'000u, 3'000'000u}) {
    for (const KernelSpan& kernel : step_at(at)) kernels.push_back(kernel);
  }
  std::swap(kernels[0], kernels[7]);  // a tracer promises no order
  const StepProfile profile = profile_steps(kernels, kGap);
  CHECK(profile.steps == 3);
  CHECK(profile.span_us == doctest::Approx(26));
  const ProfileRow &a = row_of(profile, "a"), &b = row_of(profile, "b"), &c = row_of(profile, "c");
  CHECK(a.launches == doctest::Approx(2));
  CHECK(a.duration_us == doctest::Approx(8));  // the median of 10 and 6
  CHECK(a.exposed_us == doctest::Approx(16));
  CHECK(a.idle_before_us == doctest::Approx(4));
  CHECK(b.exposed_us == doctest::Approx(6));
  CHECK(b.duration_us == doctest::Approx(12));
  CHECK(c.exposed_us == doctest::Approx(0));
  CHECK(profile.rows.front().name == "a");
  double sum = 0;
  for (const ProfileRow& row : profile.rows) sum += row.exposed_us + row.idle_before_us;
  CHECK(sum == doctest::Approx(profile.span_us));
}

TEST_CASE("the copier, which runs beside a whole step, has its duration alone") {
  std::vector<KernelSpan> kernels;
  for (const uint64_t at : {1'000'000u, 2'000'000u, 3'000'000u}) {
    for (const KernelSpan& kernel : step_at(at)) kernels.push_back(kernel);
    kernels.push_back({"ft::cuda::copier_kernel", at + 1'000, at + 25'500});
  }
  const StepProfile profile = profile_steps(kernels, kGap);
  CHECK(profile.span_us == doctest::Approx(26));
  CHECK(row_of(profile, "a").exposed_us == doctest::Approx(16));
  CHECK(row_of(profile, "copier_kernel").exposed_us == doctest::Approx(0));
  CHECK(row_of(profile, "copier_kernel").duration_us == doctest::Approx(24.5));
}

TEST_CASE("steps of another length are left out; gaps at the bound do not split") {
  std::vector<KernelSpan> kernels;
  for (const uint64_t at : {1'000'000u, 2'000'000u, 3'000'000u}) {
    for (const KernelSpan& kernel : step_at(at)) kernels.push_back(kernel);
  }
  kernels.push_back({"graph upload", 5'000'000, 5'900'000});
  CHECK(profile_steps(kernels, kGap).steps == 3);
  CHECK(profile_steps({}, kGap).steps == 0);
  const std::vector<KernelSpan> near = {{"a", 0, 10}, {"b", 10 + kGap, 20 + kGap}};
  CHECK(profile_steps(near, kGap).steps == 1);
  CHECK(profile_steps(near, kGap - 1).steps == 2);
}

TEST_CASE("names are those of the source") {
  CHECK(readable_kernel_name("_ZN2ft4cuda12_GLOBAL__N_17gate_upILi4EEEvPKfi") == "gate_up");
  CHECK(readable_kernel_name("void ft::cuda::(anonymous namespace)::down_one<ft::Nvfp4, 8>(ft::Items)") == "down_one");
  CHECK(readable_kernel_name("merge") == "merge");
  CHECK(readable_kernel_name("").empty());
}
