// device_test_moe [--bench] [LIST ...]: owners, slot table, copies, arrivals and hand-over on the first device. Exit 1
// when a test failed; without a device it says so and exits 0.
#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/cuda/device.h"
#include "tests/device/moe_report.h"

namespace {

using ft::device_test::Report;

void guarded(Report& report, const char* name, void (*test)(Report&)) {
  const double begin = ft::now_seconds();
  try {
    test(report);
  } catch (const std::exception& error) {
    report.result(name, false, error.what());
  }
  std::printf("-- %s: %.1f s\n", name, ft::now_seconds() - begin);
}

}  // namespace

int main(int argc, char** argv) {
  std::string reason;
  if (ft::cuda::device_count(&reason) == 0) {
    std::printf("skipped: no device (%s)\n", reason.c_str());
    return 0;
  }
  Report report;
  try {
    ft::cuda::use_device(0);
  } catch (const std::exception& error) {
    report.result("use_device", false, error.what());
    return 1;
  }
  const auto has = [&](const char* word) {
    return std::any_of(argv + 1, argv + argc, [&](const char* arg) { return std::strcmp(arg, word) == 0; });
  };
  constexpr std::pair<const char*, void (*)(Report&)> kTests[] = {
      {"owners", ft::device_test::test_owners},     {"plan", ft::device_test::test_plan},
      {"given", ft::device_test::test_given_plans}, {"route", ft::device_test::test_route},
      {"copies", ft::device_test::test_copies},     {"arrivals", ft::device_test::test_arrivals},
      {"mailbox", ft::device_test::test_mailbox},   {"registered", ft::device_test::test_registered_memory}};
  const bool bench = has("--bench"), all = argc == (bench ? 2 : 1);
  for (const auto& [name, test] : kTests) {
    if (all || has(name)) guarded(report, name, test);
  }
  if (bench) {
    guarded(report, "bench", [](Report&) { ft::device_test::bench_moe(); });
    guarded(report, "bench of routes", [](Report&) { ft::device_test::bench_route(); });
  }
  std::printf("%d passed, %d failed, %d skipped\n", report.passed, report.failed, report.skipped);
  return report.failed == 0 ? 0 : 1;
}
