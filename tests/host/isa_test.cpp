// Checked against: the compiler's own CPU detection (__builtin_cpu_supports) and /proc/cpuinfo.
#include "kernels/host/isa.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "kernels/base/error.h"

namespace {

// FT_ISA with a value for a scope.
class WithFtIsa {
 public:
  explicit WithFtIsa(const char* value) {
    if (const char* before = std::getenv("FT_ISA")) before_ = before;
    if (value == nullptr) {
      ::unsetenv("FT_ISA");
    } else {
      ::setenv("FT_ISA", value, 1);
    }
  }
  ~WithFtIsa() {
    if (before_.has_value()) {
      ::setenv("FT_ISA", before_->c_str(), 1);
    } else {
      ::unsetenv("FT_ISA");
    }
  }
  WithFtIsa(const WithFtIsa&) = delete;
  WithFtIsa& operator=(const WithFtIsa&) = delete;

 private:
  std::optional<std::string> before_;
};

bool kernel_lists(const std::string& flag) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word == flag) return true;
    }
    return false;
  }
  return false;
}

}  // namespace

TEST_CASE("names and values go both ways") {
  for (int i = 0; i < ft::kIsaCount; ++i) {
    const auto isa = static_cast<ft::Isa>(i);
    CHECK(ft::isa_by_name(ft::isa_name(isa)) == isa);
  }
  for (const char* name : {"", "avx", "AVX2", "avx2 ", "avx512bf16"}) CHECK_FALSE(ft::isa_by_name(name).has_value());
}

TEST_CASE("the detected ISA is what compiler and kernel see") {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && kernel_lists("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && kernel_lists("avx512_bf16");
  const ft::Isa expected = bf16     ? ft::Isa::kAvx512Bf16
                           : avx512 ? ft::Isa::kAvx512
                           : avx2   ? ft::Isa::kAvx2
                                    : ft::Isa::kScalar;
  CHECK(ft::detect_isa() == expected);
}

TEST_CASE("FT_ISA caps, and names what is wrong with it") {
  {
    const WithFtIsa unset(nullptr);
    CHECK(ft::active_isa() == ft::detect_isa());
  }
  {
    const WithFtIsa empty("");
    CHECK(ft::active_isa() == ft::detect_isa());
  }
  for (int i = 0; i < ft::kIsaCount; ++i) {
    const auto isa = static_cast<ft::Isa>(i);
    const WithFtIsa set(std::string(ft::isa_name(isa)).c_str());
    if (isa <= ft::detect_isa()) {
      CHECK(ft::active_isa() == isa);
    } else {
      CHECK_THROWS_AS(ft::active_isa(), ft::Error);
    }
  }
  const WithFtIsa wrong("sse9");
  try {
    ft::active_isa();
    FAIL("accepted");
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kUsage);
    CHECK(std::string(error.what()).find("'sse9'; allowed: scalar") != std::string::npos);
  }
}
