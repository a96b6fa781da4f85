#include "tests/device/harness.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

#include "kernels/base/bf16.h"

namespace ft::device_test {
namespace {

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
bool same(float a, float b) { return test::same(a, b); }
bool same(int32_t a, int32_t b) { return a == b; }
bool same(bf16 a, bf16 b) { return a == b || (std::isnan(to_float(a)) && std::isnan(to_float(b))); }
bool same(uint32_t a, uint32_t b) {
  return same(bf16{static_cast<uint16_t>(a)}, bf16{static_cast<uint16_t>(b)}) &&
         same(bf16{static_cast<uint16_t>(a >> 16)}, bf16{static_cast<uint16_t>(b >> 16)});
}

std::string text_of(float x) {
  char text[64];
  std::snprintf(text, sizeof text, "%08x (%.9g)", bits_of(x), static_cast<double>(x));
  return text;
}
std::string text_of(int32_t x) { return std::to_string(x); }
std::string text_of(bf16 x) {
  char text[64];
  std::snprintf(text, sizeof text, "%04x (%.9g)", x.bits, static_cast<double>(to_float(x)));
  return text;
}
std::string text_of(uint32_t x) {
  return text_of(bf16{static_cast<uint16_t>(x)}) + " | " + text_of(bf16{static_cast<uint16_t>(x >> 16)});
}

template <class T>
std::string first_difference(const HostArray<T>& got, const HostArray<T>& expected) {
  if (got.size() != expected.size()) return "sizes differ";
  int64_t count = 0;
  int64_t first = -1;
  for (int64_t i = 0; i < got.size(); ++i) {
    if (same(got[i], expected[i])) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return "";
  return "element " + std::to_string(first) + ": got " + text_of(got[first]) + ", expected " +
         text_of(expected[first]) + "; " + std::to_string(count) + " of " + std::to_string(got.size()) + " differ";
}

bool selected(int argc, char** argv, std::string_view name) {
  bool any_named = false;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] == '-') continue;
    any_named = true;
    if (name == argv[i]) return true;
  }
  return !any_named;
}

bool has_flag(int argc, char** argv, std::string_view flag) {
  for (int i = 1; i < argc; ++i) {
    if (flag == argv[i]) return true;
  }
  return false;
}

void run_list(Context& context, const TestList& test) {
  const auto start = std::chrono::steady_clock::now();
  try {
    test.run(context);
  } catch (const std::exception& error) {
    context.report.check(std::string(test.name), error.what());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%.*s: %.1f s\n", static_cast<int>(test.name.size()), test.name.data(), took.count());
  std::fflush(stdout);
}

}  // namespace

Report::Group& Report::group_of(const std::string& name) {
  const auto [at, is_new] = index_.try_emplace(name, groups_.size());
  if (is_new) groups_.push_back({.name = name, .first_failure = {}, .skipped = {}});
  return groups_[at->second];
}

void Report::check(const std::string& group, const std::string& difference) {
  Group& g = group_of(group);
  ++g.checks;
  if (difference.empty()) return;
  if (g.failures++ > 0) return;
  g.first_failure = difference;
  std::fprintf(stderr, "%s FAILED: %s\n", group.c_str(), difference.c_str());  // also where a later check aborts
}

void Report::skip(const std::string& group, const std::string& reason) { group_of(group).skipped = reason; }

bool Report::failed() const {
  for (const Group& group : groups_) {
    if (group.failures > 0) return true;
  }
  return false;
}

int Report::finish() const {
  int passed = 0, failures = 0, skipped = 0;
  for (const Group& group : groups_) {
    const bool only_skipped = group.checks == 0;
    (only_skipped ? skipped : group.failures > 0 ? failures : passed) += 1;
    const char* word = only_skipped ? "skipped" : group.failures > 0 ? "FAILED" : "passed";
    std::printf("%-44s %-8s", group.name.c_str(), word);
    if (only_skipped) {
      std::printf(" %s\n", group.skipped.c_str());
      continue;
    }
    std::printf(" %6lld comparisons", static_cast<long long>(group.checks));
    if (group.failures > 0) {
      std::printf(", %lld differ\n    first: %s", static_cast<long long>(group.failures), group.first_failure.c_str());
    }
    std::printf("\n");
  }
  std::printf("%d passed, %d failed, %d skipped\n", passed, failures, skipped);
  return failures > 0 ? 1 : 0;
}

GuardedBytes::GuardedBytes(cuda::StreamHandle stream, int64_t bytes)
    : stream_(stream), bytes_(bytes), buffer_(bytes + 2 * kGuard) {
  const std::vector<uint8_t> mark(kGuard, kPoisonByte ^ 0xff);
  cuda::copy_to_device(buffer_.data(), mark.data(), kGuard, stream_);
  cuda::copy_to_device(buffer_.data() + kGuard + bytes_, mark.data(), kGuard, stream_);
}

// Copies from and to pageable memory: the call returns when the host side is done with, and the stream keeps the order.
void GuardedBytes::write(const void* from) {
  if (bytes_ > 0) cuda::copy_to_device(data(), from, bytes_, stream_);
}

void GuardedBytes::read(void* to) const {
  if (bytes_ > 0) cuda::copy_to_host(to, data(), bytes_, stream_);
}

bool GuardedBytes::intact() const {
  uint8_t mark[2 * kGuard];
  cuda::copy_to_host(mark, buffer_.data(), kGuard, stream_);
  cuda::copy_to_host(mark + kGuard, buffer_.data() + kGuard + bytes_, kGuard, stream_);
  for (const uint8_t byte : mark) {
    if (byte != (kPoisonByte ^ 0xff)) return false;
  }
  return true;
}

std::string difference(const HostArray<float>& got, const HostArray<float>& expected) {
  return first_difference(got, expected);
}
std::string difference(const HostArray<int32_t>& got, const HostArray<int32_t>& expected) {
  return first_difference(got, expected);
}
std::string difference(const HostArray<uint32_t>& got, const HostArray<uint32_t>& expected) {
  return first_difference(got, expected);
}
std::string difference(const HostArray<bf16>& got, const HostArray<bf16>& expected) {
  return first_difference(got, expected);
}

int run_tests(int argc, char** argv, std::span<const TestList> tests, void (*bench)(Context&)) try {
  std::string reason;
  if (cuda::device_count(&reason) == 0) {
    std::printf("skipped: no device (%s)\n", reason.c_str());
    return 0;
  }
  cuda::use_device(0);
  Context context;
  const Isa isa = has_flag(argc, argv, "--scalar") ? Isa::kScalar : active_isa();
  context.cpu = resolve_kernels(isa);
  const cuda::DeviceFacts facts = cuda::device_facts(0);
  std::printf("device: %s, compute capability %d.%d, driver %s; compared with: %s\n", facts.name.c_str(),
              facts.compute_capability / 10, facts.compute_capability % 10, facts.driver.c_str(),
              std::string(isa_name(isa)).c_str());
  if (bench != nullptr && has_flag(argc, argv, "--bench")) {
    bench(context);
    return 0;
  }
  for (const TestList& test : tests) {
    if (selected(argc, argv, test.name)) run_list(context, test);
  }
  return context.report.finish();
} catch (const std::exception& error) {
  std::printf("failed: %s\n", error.what());
  return 1;
}

double replay_seconds(Context& context, int runs, const std::function<void()>& record) {
  cuda::GraphCapture capture(context.stream.handle());
  record();
  const cuda::Graph graph = capture.end();
  std::vector<double> seconds;
  for (int run = 0; run <= runs; ++run) {
    cuda::Event begin(true), end(true);
    begin.record(context.stream.handle());
    graph.launch(context.stream.handle());
    end.record(context.stream.handle());
    end.synchronize();
    if (run > 0) seconds.push_back(end.seconds_since(begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace ft::device_test
