// Checked against: file images written out by hand from the format's description, an independent reader
// (tests/model/support.cpp), and the property that whatever parses stays inside the file.
#include "engine/model/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

TensorMap parse(const std::string& image) {
  return parse_safetensors(std::as_bytes(std::span(image.data(), image.size())), "test file");
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// Error of a file with one tensor "t" and `data` bytes of data.
std::string one_tensor(const std::string& description, size_t data) {
  const std::string image = raw_image(R"({"t":)" + description + "}", std::string(data, 'x'));
  return error_of([&] { parse(image); });
}

std::string golden_image() {
  std::ifstream file(golden_folder("qwen3_moe-nvfp4_modelopt") + "/model.safetensors", std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// Throws nothing but Error, and gives no view that leaves the file or does not match its shape.
void check_safe(std::span<const std::byte> file) {
  try {
    for (const auto& [name, view] : parse_safetensors(file, "mutated")) {
      uint64_t bytes = static_cast<uint64_t>(dtype_bytes(view.dtype));
      for (const int64_t size : view.shape) bytes *= static_cast<uint64_t>(size);
      REQUIRE(bytes == view.bytes.size());
      if (bytes == 0) continue;
      REQUIRE(view.bytes.data() >= file.data());
      REQUIRE(view.bytes.data() + view.bytes.size() <= file.data() + file.size());
    }
  } catch (const Error&) {
  }
}

}  // namespace

TEST_CASE("a hand-written file parses to its tensors") {
  const std::string image =
      raw_image(R"({"__metadata__":{"format":"pt"},"a":)" + entry("F32", "[2]", "[0,8]") + R"(,"empty":)" +
                    entry("BF16", "[0,3]", "[8,8]") + R"(,"scalar":)" + entry("I64", "[]", "[10,18]") + "}",
                std::string("\0\0\x80\x3f\0\0\0\x40__\x07\0\0\0\0\0\0\0", 18));
  const TensorMap tensors = parse(image);
  REQUIRE(tensors.size() == 3);
  const TensorView& a = tensors.at("a");
  CHECK(a.dtype == DType::kF32);
  CHECK(a.shape == std::vector<int64_t>{2});
  float values[2];
  std::memcpy(values, a.bytes.data(), sizeof values);
  CHECK(values[0] == 1.0f);
  CHECK(values[1] == 2.0f);
  CHECK(tensors.at("empty").elements() == 0);
  CHECK(tensors.at("scalar").elements() == 1);
  CHECK(tensors.at("scalar").bytes[0] == std::byte{7});
}

TEST_CASE("golden files give the tensors that an independent reader sees") {
  for (const std::string& folder : all_golden_folders()) {
    const std::string path = folder + "/model.safetensors";
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    const std::string image = content.str();
    const TensorMap tensors = parse(image);
    const DiskTensors expected = read_tensors(path);
    REQUIRE(tensors.size() == expected.size());
    for (const auto& [name, tensor] : expected) {
      const TensorView& view = tensors.at(name);
      CHECK(dtype_name(view.dtype) == tensor.dtype);
      CHECK(view.shape == tensor.shape);
      REQUIRE(view.bytes.size() == tensor.bytes.size());
      CHECK(std::memcmp(view.bytes.data(), tensor.bytes.data(), tensor.bytes.size()) == 0);
    }
  }
}

TEST_CASE("every truncation of a real file is refused") {
  const std::string image = golden_image();
  uint64_t header = 0;
  std::memcpy(&header, image.data(), sizeof header);
  for (size_t size = 0; size < 8 + header + 200; size += size < 64 ? 1 : 331) {
    CHECK(error_of([&] { parse(image.substr(0, size)); }) != "no error");
  }
  for (const size_t missing : {1, 2, 7, 100, 4096, 100'000}) {
    const std::string message = error_of([&] { parse(image.substr(0, image.size() - missing)); });
    CHECK(mentions(message, {"data_offsets", "allowed", "download the file again"}));
  }
  CHECK(error_of([&] { parse(image); }) == "no error");
}

TEST_CASE("headers that lie are refused with the tensor and what is allowed") {
  CHECK(mentions(one_tensor(entry("F32", "[2]", "[0,9]"), 9), {"tensor t", "9 bytes", "8 bytes for F32 [2]"}));
  CHECK(mentions(one_tensor(entry("F32", "[2]", "[0,8]"), 7), {"tensor t", "[0,8]", "<= 7"}));
  CHECK(mentions(one_tensor(entry("F32", "[2]", "[8,0]"), 8), {"tensor t", "[8,0]"}));
  CHECK(mentions(one_tensor(entry("F32", "[2]", "[0,18446744073709551615]"), 8), {"data_offsets", "2^63 - 1"}));
  CHECK(mentions(one_tensor(entry("F32", "[2]", "[-1,7]"), 8), {"data_offsets", "-1"}));
  CHECK(mentions(one_tensor(entry("F32", "[2]", "[0.0,8]"), 8), {"data_offsets", "0.0"}));
  CHECK(mentions(one_tensor(entry("F32", "[2]", "[0]"), 8), {"data_offsets", "[begin, end]"}));
  CHECK(mentions(one_tensor(entry("F32", "[-2]", "[0,8]"), 8), {"shape", "-2"}));
  CHECK(mentions(one_tensor(entry("F32", "2", "[0,8]"), 8), {"shape"}));
  CHECK(mentions(one_tensor(entry("F4", "[2]", "[0,8]"), 8), {"dtype", "F4", "F8_E4M3, "}));
  CHECK(mentions(one_tensor(entry("f32", "[2]", "[0,8]"), 8), {"dtype", "f32"}));
  CHECK(mentions(one_tensor("7", 8), {"tensor t", "an object"}));
  CHECK(mentions(one_tensor(R"({"dtype":"F32","shape":[2]})", 8), {"no data_offsets"}));
  CHECK(mentions(one_tensor(R"({"shape":[2],"data_offsets":[0,8]})", 8), {"no dtype"}));
  CHECK(one_tensor(entry("F32", "[2]", "[0,8]"), 8) == "no error");
}

TEST_CASE("shapes whose product overflows are refused, also when a later dimension is 0") {
  CHECK(mentions(one_tensor(entry("U8", "[4294967296,4294967296]", "[0,0]"), 0), {"below 2^64"}));
  CHECK(mentions(one_tensor(entry("F64", "[2305843009213693952]", "[0,0]"), 0), {"below 2^64"}));
  CHECK(mentions(one_tensor(entry("U8", "[4294967296,4294967296,0]", "[0,0]"), 0), {"below 2^64"}));
  CHECK(one_tensor(entry("U8", "[0,4294967296,4294967295]", "[0,0]"), 0) == "no error");
}

TEST_CASE("rank is limited") {
  CHECK(one_tensor(entry("U8", "[1,1,1,1,1,1,1,1]", "[0,1]"), 1) == "no error");
  CHECK(mentions(one_tensor(entry("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), {"9 dimensions", "at most 8"}));
}

TEST_CASE("overlap is refused, gaps and shared empty ranges are not") {
  const auto two = [](const std::string& a, const std::string& b) {
    const std::string image = raw_image("{\"a\":" + a + ",\"b\":" + b + "}", std::string(16, 'x'));
    return error_of([&] { parse(image); });
  };
  CHECK(mentions(two(entry("U8", "[8]", "[0,8]"), entry("U8", "[8]", "[7,15]")), {"overlaps", "tensor a"}));
  CHECK(mentions(two(entry("U8", "[8]", "[0,8]"), entry("U8", "[8]", "[0,8]")), {"overlaps"}));
  CHECK(mentions(two(entry("U8", "[2]", "[4,6]"), entry("U8", "[16]", "[0,16]")), {"overlaps"}));
  CHECK(two(entry("U8", "[8]", "[0,8]"), entry("U8", "[8]", "[8,16]")) == "no error");
  CHECK(two(entry("U8", "[2]", "[0,2]"), entry("U8", "[4]", "[12,16]")) == "no error");
  CHECK(two(entry("U8", "[0]", "[4,4]"), entry("U8", "[16]", "[0,16]")) == "no error");
}

TEST_CASE("header lengths and texts that cannot be") {
  CHECK(mentions(error_of([] { parse(""); }), {"0 bytes", "at least 8"}));
  CHECK(mentions(error_of([] { parse("1234567"); }), {"7 bytes"}));
  CHECK(mentions(error_of([] { parse(std::string(8, '\xff')); }), {"18446744073709551615", "at most 0"}));
  std::string huge = raw_image("{}", std::string(64, 'x'));
  const uint64_t claimed = kMaxSafetensorsHeaderBytes + 1;
  std::memcpy(huge.data(), &claimed, sizeof claimed);
  CHECK(mentions(error_of([&] { parse(huge); }), {"100000001"}));
  CHECK(mentions(error_of([] { parse("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"); }),
                 {"pointer of Git LFS", "git lfs pull"}));
  CHECK(error_of([] { parse(raw_image("[]", "")); }) != "no error");
  CHECK(error_of([] { parse(raw_image("", "")); }) != "no error");
  CHECK(error_of([] { parse(raw_image("{} x", "")); }) != "no error");
  const std::string one = "\"t\":" + entry("U8", "[1]", "[0,1]");
  CHECK(error_of([&] { parse(raw_image("{" + one + "," + one + "}", "x")); }) != "no error");  // the same name twice
  CHECK(error_of([] { parse(raw_image("{}   ", "")); }) == "no error");
}

TEST_CASE("mutated headers are refused or harmless") {
  const std::string image = golden_image().substr(0, 36'000);  // header and the start of the data
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::string mutated = image;
    for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
      mutated[random.below(mutated.size())] = static_cast<char>("0123456789[]{},\":-e"[random.below(19)]);
    }
    check_safe(std::as_bytes(std::span(mutated.data(), mutated.size())));
  }
}

TEST_CASE("what is written reads back, with data on an 8-byte boundary") {
  TempFolder folder;
  const std::vector<float> logits{1.0f, -2.5f, 0.0f, 1e-40f, 3.0f, 4.0f};
  const std::vector<int64_t> ids{1, -9'000'000'000};
  const TensorToWrite tensors[] = {
      {"greedy_ids", {2}, {}, ids}, {"logits", {2, 3}, logits, {}}, {"none", {0, 3}, {}, {}}};
  const std::string path = folder.path() + "/out.safetensors";
  write_safetensors(path, tensors);
  const DiskTensors back = read_tensors(path);
  REQUIRE(back.size() == 3);
  CHECK(back.at("logits").dtype == "F32");
  CHECK(back.at("logits").shape == std::vector<int64_t>{2, 3});
  CHECK(std::memcmp(back.at("logits").bytes.data(), logits.data(), 24) == 0);
  CHECK(back.at("greedy_ids").dtype == "I64");
  CHECK(std::memcmp(back.at("greedy_ids").bytes.data(), ids.data(), 16) == 0);
  CHECK(back.at("none").dtype == "F32");
  std::ifstream file(path, std::ios::binary);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  CHECK(header % 8 == 0);
  CHECK(mentions(error_of([&] { write_safetensors(folder.path() + "/no/such/x", tensors); }), {"/no/such/x"}));
}
