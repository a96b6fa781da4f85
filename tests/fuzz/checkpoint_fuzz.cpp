// A checkpoint folder made of arbitrary bytes: opened, detected, inspected, and, when it is small, loaded.
// Input: u16 length of config.json, config.json, u16 length of the index, the index, then a safetensors file. The file
// is model.safetensors when the index is empty, a.safetensors beside model.safetensors.index.json otherwise.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "engine/model/weights.h"
#include "kernels/base/error.h"
#include "kernels/host/worker_pool.h"

namespace {

constexpr int64_t kMaxLoadedBytes = 256 << 10;

// One folder for the life of the process: making one per input would spend the time on the file system.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ft_fuzz_XXXXXX").string();
    FT_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  void write(const char* name, std::string_view content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }
  void remove(const char* name) const { std::remove((path_ + "/" + name).c_str()); }

 private:
  std::string path_;
};

std::string_view take(std::string_view& rest) {
  if (rest.size() < 2) return {};
  const size_t size = static_cast<uint8_t>(rest[0]) | static_cast<size_t>(static_cast<uint8_t>(rest[1])) << 8;
  rest.remove_prefix(2);
  const std::string_view part = rest.substr(0, size);
  rest.remove_prefix(part.size());
  return part;
}

void use(const std::string& directory, bool synthetic) {
  const auto family = ft::make_family(ft::load_model_config(directory));
  ft::WeightSource source;
  source.model_path = directory;
  source.synthetic = synthetic;
  const ft::ModelFormats formats = ft::inspect_formats(*family, source);
  if (formats.dense_bytes + formats.expert_bytes_total > kMaxLoadedBytes) return;
  ft::WorkerPool pool(ft::WorkerPoolOptions{});
  const auto weights = ft::load_weights(*family, source, pool);
  FT_CHECK(weights->formats.dense_bytes == formats.dense_bytes);
}

template <class F>
void refused_or_fine(F&& f) {
  try {
    f();
  } catch (const ft::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  folder.write("config.json", take(rest));
  const std::string_view index = take(rest);
  if (index.empty()) {
    folder.remove("model.safetensors.index.json");
    folder.write("model.safetensors", rest);
  } else {
    folder.remove("model.safetensors");
    folder.write("model.safetensors.index.json", index);
    folder.write("a.safetensors", rest);
  }
  refused_or_fine([&] { ft::Checkpoint::open(folder.path())->index_hash(); });
  refused_or_fine([&] { use(folder.path(), false); });
  refused_or_fine([&] { use(folder.path(), true); });
  return 0;
}
