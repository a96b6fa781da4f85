// device_test_moe [--bench]: owners, slot table, gather, hand-over and copy engine on the first device. Exit 1 when a
// test failed; without a device it says so and exits 0.
#include <cstring>
#include <exception>

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
  guarded(report, "owners", ft::device_test::test_owners);
  guarded(report, "plan", ft::device_test::test_plan);
  guarded(report, "given plans", ft::device_test::test_given_plans);
  guarded(report, "route", ft::device_test::test_route);
  guarded(report, "copies", ft::device_test::test_copies);
  guarded(report, "hand-over", ft::device_test::test_mailbox);
  guarded(report, "registered memory", ft::device_test::test_registered_memory);
  if (argc > 1 && std::strcmp(argv[1], "--bench") == 0) {
    guarded(report, "bench", [](Report&) { ft::device_test::bench_moe(); });
    guarded(report, "bench of routes", [](Report&) { ft::device_test::bench_route(); });
  }
  std::printf("%d passed, %d failed, %d skipped\n", report.passed, report.failed, report.skipped);
  return report.failed == 0 ? 0 : 1;
}
