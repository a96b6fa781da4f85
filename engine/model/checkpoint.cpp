#include "engine/model/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/random.h"
#include "kernels/host/host_memory.h"

namespace ft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";
constexpr size_t kMaxFiles = 4096;
constexpr size_t kMaxFileNameBytes = 255;
// Of them are kept open for reading; the usual limit of a process is 1024, and the largest known checkpoints have less
// than 200 files.
constexpr size_t kMaxOpenFiles = 512;

std::string in_folder(const std::string& directory, const std::string& name) { return directory + "/" + name; }

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A name from the index becomes a path only when it cannot leave the folder.
void check_file_name(const std::string& name, const std::string& index_path) {
  const bool plain = name.size() > kSuffix.size() && name.size() <= kMaxFileNameBytes && name.ends_with(kSuffix) &&
                     name.find_first_of(std::string("/\\\0", 3)) == std::string::npos &&
                     name.find("..") == std::string::npos;
  if (!plain) {
    throw Error(ErrorKind::kFailed, {.what = "the checkpoint's index names a file that cannot be used",
                                     .value = name,
                                     .allowed = "plain names ending in .safetensors, without path separators or ..",
                                     .path = index_path});
  }
}

// File name -> names of the tensors that the index promises in it.
using Index = std::map<std::string, std::vector<std::string>>;

Index read_index(const std::string& index_path) {
  const Json json = read_json_file(index_path);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object() || map->empty()) {
    throw Error(ErrorKind::kFailed, {.what = "the checkpoint's index has no weight_map",
                                     .allowed = "an object of tensor names to file names",
                                     .path = index_path});
  }
  Index index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      throw Error(ErrorKind::kFailed, {.what = "the checkpoint's index names no file for a tensor",
                                       .value = tensor,
                                       .allowed = "a file name",
                                       .path = index_path});
    }
    const auto& name = file.get_ref<const std::string&>();
    check_file_name(name, index_path);
    index[name].push_back(tensor);
    if (index.size() > kMaxFiles) {
      throw Error(ErrorKind::kFailed, {.what = "the checkpoint's index names too many files",
                                       .allowed = "at most " + std::to_string(kMaxFiles),
                                       .path = index_path});
    }
  }
  return index;
}

Index files_of(const std::string& directory) {
  if (is_there(in_folder(directory, kSingleName))) return {{kSingleName, {}}};
  const std::string index_path = in_folder(directory, kIndexName);
  if (is_there(index_path)) return read_index(index_path);
  throw Error(ErrorKind::kFailed,
              {.what = "no weights in the model folder",
               .allowed = std::string(kSingleName) + " or " + kIndexName,
               .action = "download the checkpoint, or use --weights synthetic to tune from config.json alone",
               .path = directory});
}

void hash_text(Hasher& hasher, std::string_view text) {
  hasher.add(std::as_bytes(std::span(text.data(), text.size())));
}

void hash_number(Hasher& hasher, uint64_t number) { hasher.add(std::as_bytes(std::span(&number, 1))); }

}  // namespace

struct Checkpoint::State {
  std::string directory;
  std::vector<std::string> names;
  std::vector<MappedFile> files;  // in the order of their names
  std::vector<const MappedFile*> by_address;
  TensorMap tensors;

  void add_file(const std::string& name, const std::vector<std::string>& promised) {
    const std::string path = in_folder(directory, name);
    if (!promised.empty() && !is_there(path)) {
      throw Error(ErrorKind::kFailed, {.what = "a file that the checkpoint's index names is not there",
                                       .value = name,
                                       .action = "download that file",
                                       .path = path});
    }
    files.emplace_back(path, files.size() < kMaxOpenFiles);
    names.push_back(name);
    TensorMap found = parse_safetensors(files.back().bytes(), path);
    for (const std::string& tensor : promised) {
      if (!found.contains(tensor)) {
        throw Error(ErrorKind::kFailed, {.what = "a tensor is not in the file that the index names for it",
                                         .value = tensor,
                                         .action = "download that file again",
                                         .path = path});
      }
    }
    tensors.merge(found);
    if (!found.empty()) {  // merge leaves behind what was already there
      throw Error(ErrorKind::kFailed, {.what = "a tensor is in more than one file of the checkpoint",
                                       .value = found.begin()->first,
                                       .allowed = "every tensor once",
                                       .path = path});
    }
  }

  void sort_by_address() {
    for (const MappedFile& file : files) by_address.push_back(&file);
    std::sort(by_address.begin(), by_address.end(), [](const MappedFile* a, const MappedFile* b) {
      return std::less<>()(a->bytes().data(), b->bytes().data());
    });
  }

  const MappedFile& file_of(const std::byte* data) const {
    const auto after =
        std::upper_bound(by_address.begin(), by_address.end(), data,
                         [](const std::byte* p, const auto* f) { return std::less<>()(p, f->bytes().data()); });
    FT_CHECK(after != by_address.begin());
    return **std::prev(after);
  }
};

Checkpoint::Checkpoint() : state_(std::make_unique<State>()) {}
Checkpoint::~Checkpoint() = default;

std::unique_ptr<Checkpoint> Checkpoint::open(const std::string& directory) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->state_->directory = directory;
  for (const auto& [name, promised] : files_of(directory)) checkpoint->state_->add_file(name, promised);
  checkpoint->state_->sort_by_address();
  return checkpoint;
}

std::vector<Checkpoint::File> Checkpoint::files() const {
  std::vector<File> files;
  for (size_t i = 0; i < state_->files.size(); ++i) {
    const MappedFile& file = state_->files[i];
    files.push_back({state_->names[i], static_cast<int64_t>(file.bytes().size()), file.modified_ns()});
  }
  return files;
}

void Checkpoint::read(std::span<const std::byte> part, std::byte* to) const {
  if (part.empty()) return;
  const MappedFile& file = state_->file_of(part.data());
  file.read(static_cast<size_t>(part.data() - file.bytes().data()), {to, part.size()});
}

void Checkpoint::will_read(std::span<const std::byte> part) const {
  if (!part.empty()) state_->file_of(part.data()).will_read(part);
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto it = state_->tensors.find(name);
  return it == state_->tensors.end() ? nullptr : &it->second;
}

const TensorMap& Checkpoint::tensors() const { return state_->tensors; }
const std::string& Checkpoint::directory() const { return state_->directory; }
std::string Checkpoint::config_hash() const { return model_config_hash(state_->directory); }

std::string Checkpoint::index_hash() const {
  Hasher hasher;
  for (const MappedFile& file : state_->files) hash_number(hasher, file.bytes().size());
  for (const auto& [name, tensor] : state_->tensors) {
    // Lengths go before what varies in length, so that two different lists cannot give one byte sequence.
    hash_number(hasher, name.size());
    hash_text(hasher, name);
    hash_number(hasher, static_cast<uint64_t>(tensor.dtype));
    hash_number(hasher, tensor.shape.size());
    for (const int64_t size : tensor.shape) hash_number(hasher, static_cast<uint64_t>(size));
  }
  return hasher.hex();
}

namespace {

// The data of a safetensors file: what follows its header, whose length was checked when it was parsed.
std::span<const std::byte> data_of(const MappedFile& file) {
  uint64_t header = 0;
  std::memcpy(&header, file.bytes().data(), sizeof header);
  return file.bytes().subspan(sizeof header + header);
}

// Ascending in no order, inside data, and overlapping only when it is small.
std::vector<std::span<const std::byte>> samples_of(std::span<const std::byte> data, size_t file) {
  const size_t end = std::min(Checkpoint::kSampledEndBytes, data.size());
  std::vector<std::span<const std::byte>> samples = {data.first(end), data.last(end)};
  if (data.size() < Checkpoint::kSampledPlaceBytes) return samples;
  Random random(mix64(data.size()) + file);
  for (int i = 0; i < Checkpoint::kSampledPlaces; ++i) {
    const size_t at = random.below(data.size() - Checkpoint::kSampledPlaceBytes + 1);
    samples.push_back(data.subspan(at, Checkpoint::kSampledPlaceBytes));
  }
  return samples;
}

}  // namespace

std::string Checkpoint::data_sample_hash() const {
  std::vector<std::vector<std::span<const std::byte>>> samples;
  for (const MappedFile& file : state_->files) {
    samples.push_back(samples_of(data_of(file), samples.size()));
    for (const auto& sample : samples.back()) file.will_read(sample);
  }
  Hasher hasher;
  for (const auto& of_file : samples) {
    for (const auto& sample : of_file) {
      hash_number(hasher, sample.size());
      hasher.add(sample);
    }
  }
  return hasher.hex();
}

Json load_model_config(const std::string& directory) {
  const std::string path = in_folder(directory, kConfigName);
  const auto refuse_folder = [&](const char* what) {
    throw Error(ErrorKind::kUsage,
                {.what = what, .value = directory, .allowed = "the folder of a checkpoint, with config.json in it"});
  };
  if (!is_there(directory)) refuse_folder("no such model folder");
  if (!fs::is_directory(directory)) refuse_folder("the model is a file");
  if (!is_there(path)) refuse_folder("the model's folder has no config.json");
  Json config = read_json_file(path);
  if (!config.is_object()) {
    throw Error(ErrorKind::kFailed, {.what = "config.json refused", .allowed = "a JSON object", .path = path});
  }
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return config;
  Json merged = std::move(*text);
  const auto quantization = config.find("quantization_config");
  if (quantization != config.end()) merged["quantization_config"] = std::move(*quantization);
  return merged;
}

std::string model_config_hash(const std::string& directory) {
  return hash_hex(std::string_view(read_text_file(in_folder(directory, kConfigName))));
}

}  // namespace ft
