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

TEST_CASE("steps traced one by one stay apart, whatever gaps they have") {
  std::vector<KernelSpan> with_gap = step_at(2'000'000);
  for (size_t i = 2; i < with_gap.size(); ++i) with_gap[i].start_ns += 900'000, with_gap[i].end_ns += 900'000;
  std::swap(with_gap[0], with_gap[3]);
  const StepProfile profile = profile_apart({step_at(1'000'000), with_gap, {}});
  CHECK(profile.steps == 2);
  CHECK(profile.span_us == doctest::Approx((26 + 926) / 2.0));
  CHECK(row_of(profile, "a").idle_before_us == doctest::Approx((4 + 904) / 2.0));
  CHECK(profile_apart({}).steps == 0);
  CHECK(profile_apart({{}}).steps == 0);
}

TEST_CASE("a layer is the difference of two models") {
  // Of `layers` layers: 3 us of "first", then of each layer 10 us of "x", 2 us of nothing, and 5 and 7 us of "y".
  const auto model = [](int layers) {
    uint64_t at = 1000;
    std::vector<KernelSpan> kernels = {{"first", at, at + 3'000}};
    at += 3'000;
    for (int i = 0; i < layers; ++i, at += 24'000) {
      kernels.push_back({"x", at, at + 10'000});
      kernels.push_back({"y", at + 12'000, at + 17'000});
      kernels.push_back({"y", at + 17'000, at + 24'000});
    }
    return profile_apart({kernels});
  };
  const LayerProfile layer = profile_layer(model(2), model(6), 4);
  CHECK(layer.us == doctest::Approx(24));
  CHECK(layer.launches == doctest::Approx(3));
  CHECK(layer.rest_us == doctest::Approx(0));
  REQUIRE(layer.rows.size() == 2);
  CHECK(layer.rows[0].name == "y");
  CHECK(layer.rows[0].us == doctest::Approx(14));
  CHECK(layer.rows[0].launches == doctest::Approx(2));
  CHECK(layer.rows[0].duration_us == doctest::Approx(6));
  CHECK(layer.rows[1].us == doctest::Approx(10));
  // Of one without any of a layer's kernels, the whole is the difference.
  CHECK(profile_layer(model(0), model(4), 4).us == doctest::Approx(24));
}

TEST_CASE("names are those of the source") {
  CHECK(readable_kernel_name("_ZN2ft4cuda12_GLOBAL__N_17gate_upILi4EEEvPKfi") == "gate_up");
  CHECK(readable_kernel_name("void ft::cuda::(anonymous namespace)::down_one<ft::Nvfp4, 8>(ft::Items)") == "down_one");
  CHECK(readable_kernel_name("merge") == "merge");
  CHECK(readable_kernel_name("").empty());
  CHECK(full_kernel_name("_ZN2ft4cuda12_GLOBAL__N_17gate_upILi4EEEvPKfi") == "gate_up<4>");
  CHECK(full_kernel_name("void ft::cuda::(anonymous namespace)::down_one<ft::Nvfp4, 8>(ft::Items)") ==
        "down_one<Nvfp4, 8>");
  CHECK(full_kernel_name("void ft::cuda::(anonymous namespace)::product_kernel<(ft::FormatId)3, "
                         "(ft::cuda::(anonymous namespace)::Kind)1>(ft::cuda::Work)") == "product_kernel<3, 1>");
  // As nvcc names a kernel of an unnamed namespace.
  CHECK(full_kernel_name(
            "_ZN2ft4cuda52_GLOBAL__N__84421d3c_19_prefill_products_cu_e66ca31c14product_kernelILNS_8FormatIdE3"
            "ELNS1_4KindE1EEEvNS1_11ProductWorkE") == "product_kernel<3, 1>");
  CHECK(full_kernel_name("void ft::attend<ft::cuda::Form<256, 256, (bool)1>, true>(ft::Args<1>)") ==
        "attend<Form<256, 256, 1>, true>");
  CHECK(full_kernel_name("ft::cuda::merge(ft::Items<4>)") == "merge");
  CHECK(full_kernel_name("merge") == "merge");
  CHECK(full_kernel_name("").empty());
}
