// Results of the device tests of kernels/cuda/{device,moe,copy_proxy}.h: one line each, and counts.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace ft::device_test {

struct Report {
  int passed = 0, failed = 0, skipped = 0;

  void result(const std::string& name, bool ok, const std::string& detail = {}) {
    ++(ok ? passed : failed);
    print(ok ? "passed" : "FAILED", name, detail);
  }
  void skip(const std::string& name, const std::string& reason) {
    ++skipped;
    print("skipped", name, reason);
  }

 private:
  static void print(const char* word, const std::string& name, const std::string& detail) {
    std::printf("%-8s%-60s %s\n", word, name.c_str(), detail.c_str());
    std::fflush(stdout);  // a hang shows where it is
  }
};

[[gnu::format(printf, 1, 2)]] inline std::string text(const char* format, ...) {
  char buffer[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(buffer, sizeof buffer, format, values);
  va_end(values);
  return buffer;
}

void test_owners(Report& report);
void test_registered_memory(Report& report);
void test_plan(Report& report);
void test_given_plans(Report& report);
void test_route(Report& report);
void test_copies(Report& report);
void test_arrivals(Report& report);
void test_mailbox(Report& report);
void bench_moe();
void bench_route();

}  // namespace ft::device_test
