// Checked against: the same tensors in one file and in shards, and folders that are broken in one stated way.
#include "engine/model/checkpoint.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Writes `model` as two shards, tensors alternating, and returns the index.
Json write_shards(const EditableModel& model, const TempFolder& folder) {
  DiskTensors parts[2];
  Json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  size_t turn = 0;
  for (const auto& [name, tensor] : model.tensors) {
    parts[turn % 2][name] = tensor;
    index["weight_map"][name] = turn % 2 == 0 ? kFirst : kSecond;
    ++turn;
  }
  folder.write(kFirst, safetensors_image(parts[0]));
  folder.write(kSecond, safetensors_image(parts[1]));
  folder.write(kIndex, index.dump());
  folder.write("config.json", model.config_text());
  return index;
}

std::string open_error(const TempFolder& folder) {
  return error_of([&] { Checkpoint::open(folder.path()); });
}

// Error of a folder whose index maps one tensor to `file`.
std::string index_error(const std::string& file) {
  TempFolder folder;
  folder.write("ok.safetensors", safetensors_image({{"t", {"U8", {1}, "x"}}}));
  folder.write(kIndex, Json({{"weight_map", {{"t", file}}}}).dump());
  return open_error(folder);
}

}  // namespace

TEST_CASE("two shards and one file load to the same weights") {
  const std::string golden = golden_folder("qwen3_moe-nvfp4_modelopt");
  TempFolder folder;
  write_shards(read_model(golden), folder);
  const auto one = load(golden);
  const auto two = load(folder.path());
  CHECK(same_formats(one->formats, two->formats));
  for (int layer = 0; layer < one->bank.layers(); ++layer) {
    for (int expert = 0; expert < one->bank.experts(); ++expert) {
      const auto bytes = static_cast<size_t>(one->bank.layout(layer).bytes);
      CHECK(std::equal(one->bank.blob(layer, expert), one->bank.blob(layer, expert) + bytes,
                       two->bank.blob(layer, expert)));
    }
  }
  const auto checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint->config_hash() == model_config_hash(folder.path()));
  CHECK(checkpoint->index_hash().size() == 32);
  CHECK(checkpoint->index_hash() != Checkpoint::open(golden)->index_hash());  // other file sizes
}

TEST_CASE("the index hash sees names, dtypes and shapes, not data") {
  const auto hash = [](const DiskTensors& tensors) {
    TempFolder folder;
    folder.write("model.safetensors", safetensors_image(tensors));
    return Checkpoint::open(folder.path())->index_hash();
  };
  const std::string base = hash({{"ab", {"U8", {2, 3}, "abcdef"}}});
  CHECK(hash({{"ab", {"U8", {2, 3}, "ghijkl"}}}) == base);
  CHECK(hash({{"ac", {"U8", {2, 3}, "abcdef"}}}) != base);
  CHECK(hash({{"ab", {"I8", {2, 3}, "abcdef"}}}) != base);
  CHECK(hash({{"ab", {"U8", {3, 2}, "abcdef"}}}) != base);
}

TEST_CASE("the hash of data samples sees every byte of a small file, both ends of a large one, and swapped files") {
  const auto hash = [](const std::string& data, const char* name = "ab") {
    TempFolder folder;
    folder.write("model.safetensors", safetensors_image({{name, {"U8", {static_cast<int64_t>(data.size())}, data}}}));
    return Checkpoint::open(folder.path())->data_sample_hash();
  };
  for (const size_t size : {size_t{0}, size_t{1}, size_t{6}, size_t{4095}, size_t{4096}, size_t{4097}}) {
    std::string data(size, 'a');
    const std::string base = hash(data);
    CHECK(base.size() == 32);
    CHECK(hash(data, "cd") == base);  // the layout is index_hash's
    for (size_t i = 0; i < size; i += 1 + size / 16) {
      data[i] = 'b';
      CHECK(hash(data) != base);
      data[i] = 'a';
    }
    CHECK(hash(data + 'a') != base);
  }
  const size_t ends = Checkpoint::kSampledEndBytes;
  std::string large(3 << 20, 'a');
  const std::string base = hash(large);
  for (const size_t at : {size_t{0}, ends - 1, large.size() - ends, large.size() - 1}) {
    large[at] = 'b';
    CHECK(hash(large) != base);
    large[at] = 'a';
  }
  // Between the ends only the sampled places are seen: four pages of 4 KiB out of 737 are met by few single changes,
  // and by every change of all bytes, which is what another checkpoint is.
  int seen = 0;
  for (size_t at = ends; at < large.size() - ends; at += 64 << 10) {
    large[at] = 'b';
    seen += hash(large) != base ? 1 : 0;
    large[at] = 'a';
  }
  CHECK(seen <= Checkpoint::kSampledPlaces);
  std::fill(large.begin() + static_cast<int64_t>(ends), large.end() - static_cast<int64_t>(ends), 'b');
  CHECK(hash(large) != base);
}

TEST_CASE("swapped weights of one layout differ in the hash of samples only") {
  const auto open = [](const char* first, const char* second) {
    TempFolder folder;
    folder.write(kFirst, safetensors_image({{"a", {"U8", {3}, first}}}));
    folder.write(kSecond, safetensors_image({{"b", {"U8", {3}, second}}}));
    folder.write(kIndex, Json{{"weight_map", {{"a", kFirst}, {"b", kSecond}}}}.dump());
    const auto checkpoint = Checkpoint::open(folder.path());
    return std::pair(checkpoint->index_hash(), checkpoint->data_sample_hash());
  };
  CHECK(open("xyz", "uvw").first == open("uvw", "xyz").first);
  CHECK(open("xyz", "uvw").second != open("uvw", "xyz").second);
  CHECK(open("xyz", "uvw") == open("xyz", "uvw"));
}

TEST_CASE("a tensor that the index promises must be in that file, and no tensor in two files") {
  const EditableModel model = read_model(golden_folder("qwen3_moe.b"));
  {
    TempFolder folder;
    Json index = write_shards(model, folder);
    index["weight_map"]["not.there"] = kFirst;
    folder.write(kIndex, index.dump());
    CHECK(mentions(open_error(folder), {"not.there", kFirst}));
  }
  {
    TempFolder folder;
    Json index = write_shards(model, folder);
    for (auto& file : index["weight_map"]) file = file == kFirst ? kSecond : kFirst;
    folder.write(kIndex, index.dump());
    CHECK(mentions(open_error(folder), {"not in the file that the index names"}));
  }
  {
    TempFolder folder;
    write_shards(model, folder);
    folder.write(kSecond, safetensors_image(model.tensors));
    CHECK(mentions(open_error(folder), {"more than one file", kSecond}));
  }
}

TEST_CASE("file names in the index cannot leave the folder") {
  CHECK(index_error("ok.safetensors") == "no error");
  for (const char* name : {"../ok.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b.safetensors", "..", "",
                           ".safetensors", "..safetensors", "ok.bin"}) {
    CAPTURE(name);
    CHECK(mentions(index_error(name), {"cannot be used", "plain names"}));
  }
  CHECK(mentions(index_error(std::string("ok.safetensors\0.safetensors", 27)), {"plain names"}));
  CHECK(index_error(std::string(244, 'a') + ".safetensors").find("plain names") != std::string::npos);  // 256 bytes
  CHECK(index_error(std::string(243, 'a') + ".safetensors").find("plain names") == std::string::npos);  // not there
}

TEST_CASE("an index that is not one") {
  for (const char* text : {"[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})", R"({"weight_map": {"t": 3}})",
                           "", "{\"weight_map\""}) {
    CAPTURE(text);
    TempFolder folder;
    folder.write(kIndex, text);
    CHECK(mentions(open_error(folder), {kIndex}));
  }
}

TEST_CASE("missing files are named") {
  TempFolder folder;
  CHECK(mentions(open_error(folder), {folder.path(), "model.safetensors", "synthetic"}));
  CHECK(mentions(error_of([&] { load_model_config(folder.path()); }),
                 {"has no config.json", folder.path(), "allowed: the folder of a checkpoint"}));
  CHECK(mentions(index_error("gone.safetensors"),
                 {"gone.safetensors", "index names is not there", "download that file"}));
  folder.write("config.json", "[1]");
  CHECK(mentions(error_of([&] { load_model_config(folder.path()); }), {"config.json", "object"}));
  CHECK(mentions(error_of([&] { load_model_config(folder.path() + "/gone"); }), {"no such model folder", "gone"}));
  CHECK(mentions(error_of([&] { load_model_config(folder.path() + "/config.json"); }), {"is a file", "folder"}));
}

TEST_CASE("other files in the folder are ignored") {
  TempFolder folder;
  read_model(golden_folder("qwen3_moe.b")).write(folder);
  folder.write("consolidated.safetensors", "not a file");
  folder.write("pytorch_model.bin", "neither");
  folder.write(kIndex, "broken");  // model.safetensors comes first
  CHECK(open_error(folder) == "no error");
}

TEST_CASE("parts of tensors are read from the file they lie in, also of more files than are kept open") {
  constexpr int kFiles = 515;  // 512 are
  TempFolder folder;
  Json map = Json::object();
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = "t" + std::to_string(i), file = name + ".safetensors";
    folder.write(file, safetensors_image({{name, {"U8", {6}, "abc" + std::to_string(100 + i)}}}));
    map[name] = file;
  }
  folder.write(kIndex, Json({{"weight_map", map}}).dump());
  const auto checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint->files().size() == size_t{kFiles});
  for (const auto& [name, view] : checkpoint->tensors()) {
    std::string bytes(4, '-');
    checkpoint->read(view.bytes.subspan(2), reinterpret_cast<std::byte*>(bytes.data()));
    CHECK(bytes == "c" + std::to_string(100 + std::stoi(name.substr(1))));
    checkpoint->read(view.bytes.first(0), nullptr);
  }
}

TEST_CASE("a file that is cut off while it is open is an error that names it") {
  TempFolder folder;
  folder.write("model.safetensors", safetensors_image({{"t", {"U8", {100'000}, std::string(100'000, 'x')}}}));
  const auto checkpoint = Checkpoint::open(folder.path());
  const std::string path = folder.path() + "/model.safetensors";
  CHECK(checkpoint->files().front().bytes == static_cast<int64_t>(std::filesystem::file_size(path)));
  std::filesystem::resize_file(path, 50'000);
  std::vector<std::byte> bytes(100'000);
  const std::string message = error_of([&] { checkpoint->read(checkpoint->find("t")->bytes, bytes.data()); });
  CHECK(mentions(message, {"became shorter", "model.safetensors"}));
}
