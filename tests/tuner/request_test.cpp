// Checked against: the rules stated in tuner/request.h, through the real command line parser.
#include "tuner/request.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/runtime/device.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

TuneRequest request(std::vector<const char*> words) {
  words.insert(words.begin(), {"ft-tune", "--model", "some/./model"});
  const ParseResult parsed = parse_command_line(kTuneProgram, "test", static_cast<int>(words.size()), words.data());
  return parse_tune_request(*parsed.options);
}

}  // namespace

TEST_CASE("nothing given: defaults, an absolute model path, nothing pinned") {
  const TuneRequest r = request({});
  CHECK(r.weights.model_path == std::filesystem::current_path().string() + "/some/model");
  CHECK(!r.weights.synthetic);
  CHECK(r.budget_seconds == 120);
  CHECK(r.contexts.empty());
  CHECK(r.batches.empty());
  CHECK(r.forced.empty());
  CHECK(!r.strategy.has_value());
  CHECK(!r.slots.has_value());
  CHECK(!r.threads.has_value());
  CHECK(!r.resume);
  CHECK(!r.dry_run);
}

TEST_CASE("a device is chosen by what was asked and what is there") {
  const auto choose = [](const char* asked, int devices) { return choose_device(asked, devices, "no driver"); };
  CHECK(choose("auto", 0).device == Device::kHost);
  CHECK(choose("auto", 0).reason == "no CUDA device can be used: no driver");
  CHECK(choose("auto", 1).device == Device::kCuda);
  CHECK(choose("auto", 2).reason == "the first of 2 GPUs");
  CHECK(choose("cuda", 1).device == Device::kCuda);
  CHECK(choose("host", 1).device == Device::kHost);
  try {
    choose("cuda", 0);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK(std::string(error.what()) ==
          "no CUDA device can be used (no driver): --device is 'cuda'; allowed: auto or host; use --device host");
  }
  CHECK(link_text(5, 16) == "PCIe 5 x16");
  CHECK(link_text(0, 16).empty());
  cuda::DeviceFacts gpu;
  gpu.free_bytes = kDeviceReserveBytes + 1;
  CHECK(offered_device_bytes(gpu) == 1);
  gpu.free_bytes = kDeviceReserveBytes - 1;
  CHECK(offered_device_bytes(gpu) == 0);
  CHECK(bank_times_text({48'000'000'000, 3, 1}) ==
        "48.0 GB ready in 4.00 s: 12.0 GB/s (filled in 3.00 s, registered in 1.00 s)");
}

TEST_CASE("a slowed link needs a GPU and is a pinned knob") {
  CHECK(request({"--device", "host"}).link_slowdown == 1);
  CHECK_NOTHROW(request({"--device", "host", "--link-slowdown", "1"}));
  CHECK_THROWS_WITH_AS(request({"--device", "host", "--link-slowdown", "2"}), doctest::Contains("only on cuda"), Error);
}

TEST_CASE("points are sorted") {
  const TuneRequest r = request({"--context", "1024,128", "--batch", "8,1"});
  CHECK(r.contexts == std::vector<int64_t>{128, 1024});
  CHECK(r.batches == std::vector<int64_t>{1, 8});
}

TEST_CASE("pinned knobs are noted as they were given") {
  const TuneRequest r = request({"--strategy", "hybrid", "--slots", "50%", "--threads", "2"});
  CHECK(r.strategy == Strategy::kHybrid);
  CHECK(r.slots->percent == 50.0);
  CHECK(r.threads == 2);
  CHECK(r.forced == std::vector<std::string>{"--strategy hybrid", "--slots 50%", "--threads 2"});
}

TEST_CASE("synthetic weights name a routing; with a checkpoint --routing is refused") {
  const TuneRequest r = request({"--weights", "synthetic:9"});
  CHECK(r.weights.synthetic);
  CHECK(r.weights.synthetic_seed == 9);
  CHECK(r.weights.routing_preset == "qwen3-30b");
  CHECK(request({"--weights", "synthetic", "--routing", "glm-4.7-flash"}).weights.routing_preset == "glm-4.7-flash");
  CHECK_THROWS_WITH_AS(request({"--routing", "glm-4.7-flash"}), doctest::Contains("--routing"), Error);
}

TEST_CASE("a device that this build lacks and an output that cannot be written are refused before measuring") {
  std::string why_none;
  if (cuda::device_count(&why_none) == 0) {
    CHECK_THROWS_WITH_AS(request({"--device", "cuda"}), doctest::Contains(why_none.c_str()), Error);
    CHECK(request({}).device == Device::kHost);
    CHECK(request({}).device_reason == "no CUDA device can be used: " + why_none);
  } else {
    CHECK(request({"--device", "cuda"}).device == Device::kCuda);
    CHECK(request({}).device == Device::kCuda);
  }
  CHECK(request({"--device", "host"}).device == Device::kHost);
  CHECK(request({"--device", "host"}).device_reason.empty());
  const auto folder = std::filesystem::temp_directory_path() / ("request_test_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string inside = (folder / "p.json").string(), missing = (folder / "none" / "p.json").string();
  CHECK(request({"--output", inside.c_str()}).output == inside);
  CHECK_THROWS_WITH_AS(request({"--output", missing.c_str()}), doctest::Contains("create the folder first"), Error);
  CHECK_THROWS_WITH_AS(request({"--output", folder.c_str()}), doctest::Contains("where a folder is"), Error);
  CHECK(!std::filesystem::exists(inside));  // asking writes nothing
  std::filesystem::remove(folder);
}

// Every way to name the folder, before it exists and after (a second recording replaces the first), also by a link.
TEST_CASE("a profile inside the folder of the recording, or of its name, would be lost: refused") {
  namespace fs = std::filesystem;
  const fs::path base = fs::temp_directory_path() / ("request_record_" + std::to_string(getpid()));
  const fs::path folder = base / "real", record = folder / "machine", link = base / "link";
  fs::create_directories(folder);
  fs::create_directory_symlink(folder, link);
  const auto refused = [](const std::string& output, const std::string& name) {
    try {
      request({"--output", output.c_str(), "--record", name.c_str()});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUsage);
      return std::string(error.what()).find("--record") != std::string::npos;
    }
    return false;
  };
  const std::string names[] = {"machine", "machine/", "machine//", "./machine/", "./machine"};
  for (const bool exists : {false, true}) {
    if (exists) fs::create_directory(record);
    for (const fs::path& at : {folder, link}) {
      for (const std::string& written : names) {
        const std::string name = at.string() + "/" + written;
        CAPTURE(name);
        CAPTURE(exists);
        for (const fs::path& other : {folder, link}) {
          CHECK(refused(other.string() + "/machine/p.json", name));
          CHECK(refused(other.string() + "/machine/../machine/p.json", name));
          if (!exists) CHECK(refused(other.string() + "/machine", name));
          for (const char* outside : {"/p.json", "/machine.json", "/machine/../p.json", "/machin", "/machine2"}) {
            CAPTURE(outside);
            CHECK_FALSE(refused(other.string() + outside, name));
          }
        }
      }
    }
  }
  fs::remove_all(base);
}

}  // namespace ft
