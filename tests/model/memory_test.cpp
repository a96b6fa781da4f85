// Checked against: what the kernel counts of a process of its own (/proc/self/status) while it loads a model whose
// experts dominate, and the same content loaded into memory of the caller's.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "kernels/base/error.h"
#include "tests/model/made_model.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // their shadows are memory too
#else
constexpr bool kSanitized = false;
#endif

constexpr double kMostOverBanks = 1.1;

int64_t status_bytes(const char* key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(key)) return std::atoll(line.c_str() + std::strlen(key)) * 1024;
  }
  return -1;
}

// Most resident memory over what was there before, as a share of the banks. A small model is loaded first: what any
// load brings in once (code, a thread's arena) is no memory of the model's, and with it the answer would depend on
// which tests ran before.
double peak_share(const std::string& model, const std::string& cache) {
  const std::string warm_up = golden_folder("qwen3_moe.b");
  int channel[2];
  REQUIRE(::pipe(channel) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    double share = -1;
    try {
      WorkerPool pool(pool_of(2));
      load_weights(*family_of(warm_up), real_weights(warm_up), pool);
      const int64_t before = status_bytes("VmRSS:");
      WeightSource source = real_weights(model);
      source.packed_cache = cache;
      const auto weights = load_weights(*family_of(model), source, pool);
      const auto banks = static_cast<double>(weights->formats.expert_bytes_total);
      share = static_cast<double>(status_bytes("VmHWM:") - before) / banks;
    } catch (...) {
    }
    static_cast<void>(::write(channel[1], &share, sizeof share));
    ::_exit(0);
  }
  double share = -1;
  REQUIRE(::read(channel[0], &share, sizeof share) == sizeof share);
  ::close(channel[0]);
  ::close(channel[1]);
  ::waitpid(child, nullptr, 0);
  return share;
}

}  // namespace

TEST_CASE(
    "loading needs at most a tenth more than the banks, from a checkpoint, while writing and from a packed file") {
  if (kSanitized) {
    MESSAGE("skipped: a sanitizer's own memory is counted too");
    return;
  }
  // 200 MB of banks each, so that staging and the dense part are small beside them, as they are beside a real model's.
  const std::pair<const char*, int> models[] = {{"bf16", 64}, {"nvfp4", 224}, {"fp8_block", 128}};
  for (const auto& [name, experts] : models) {
    const std::string format = name;
    CAPTURE(format);
    const TempFolder model, cache;
    write_made_model({.format = format, .layers = 1, .experts = experts, .hidden = 1024, .intermediate = 512},
                     model.path(), 2);
    for (const std::string& folder : {std::string(), cache.path(), cache.path()}) {
      const double share = peak_share(model.path(), folder);
      CHECK(share >= 1.0);  // the banks are resident: the measure sees them
      CHECK(share <= kMostOverBanks);
    }
  }
}

TEST_CASE("a caller's memory is used for one model after another, and memory that is too small is refused") {
  const std::string large = bundled_model_folder(), small = golden_folder("qwen3_moe.b");
  const auto own_large = load(large), own_small = load(small);
  const auto memory = std::make_shared<HostBuffer>(own_large->formats.expert_bytes_total);
  std::memset(memory->data(), 0xff, static_cast<size_t>(memory->bytes()));
  WorkerPool pool(pool_of(2));
  LoadOptions options;
  options.bank_memory = memory;
  for (int round = 0; round < 2; ++round) {
    for (const auto& [folder, own] : {std::pair{large, own_large}, std::pair{small, own_small}}) {
      const auto weights = load_weights(*family_of(folder), real_weights(folder), pool, options);
      const auto bytes = weights->bank.bytes();
      REQUIRE(bytes.size() == static_cast<size_t>(own->formats.expert_bytes_total));
      CHECK(bytes.data() == memory->data());
      CHECK(std::memcmp(bytes.data(), own->bank.bytes().data(), bytes.size()) == 0);
      const auto made = load_weights(*family_of(folder), synthetic_weights(folder, 3), pool, options);
      CHECK(std::memcmp(made->bank.bytes().data(), load_synthetic(folder, 3)->bank.bytes().data(), bytes.size()) == 0);
    }
  }
  const int64_t bank = own_small->formats.expert_bytes_total;
  options.bank_memory = std::make_shared<HostBuffer>(bank);
  load_weights(*family_of(small), real_weights(small), pool, options);
  options.bank_memory = std::make_shared<HostBuffer>(bank - 4096);  // a page less
  const std::string message = error_of([&] { load_weights(*family_of(small), real_weights(small), pool, options); });
  CHECK(mentions(message, {"memory given for expert banks", std::to_string(bank)}));
}
