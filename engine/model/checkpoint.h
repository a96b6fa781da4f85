// A Hugging Face checkpoint folder: config.json, model.safetensors or the files its index names. Other files are
// ignored.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/safetensors.h"
#include "kernels/base/json.h"

namespace ft {

class Checkpoint {
 public:
  // Maps every needed file. Throws Error naming file and reason.
  static std::unique_ptr<Checkpoint> open(const std::string& directory);
  ~Checkpoint();

  const TensorView* find(std::string_view name) const;  // null when absent
  const TensorMap& tensors() const;
  const std::string& directory() const;
  struct File {
    std::string name;
    int64_t bytes = 0;
    int64_t modified_ns = 0;  // when it was opened
  };
  std::vector<File> files() const;  // in the order of their names

  // Copies a part of a tensor by reading its file, which is how bulk data is loaded (MappedFile::read). `part` lies in
  // one of the mapped files. Any thread. Throws Error naming the file.
  void read(std::span<const std::byte> part, std::byte* to) const;

  // Has the kernel begin to read such a part if it is not in memory. Only a hint. Any thread.
  void will_read(std::span<const std::byte> part) const;

  // Hash over config.json, and over names, dtypes, shapes and file sizes of all tensors (not their data).
  std::string config_hash() const;
  std::string index_hash() const;
  // Hash over samples of the data of every file: kSampledEndBytes at each end and kSampledPlaces of kSampledPlaceBytes
  // between, where depends on the number of the file and its size only. Of a file up to about 128 KiB it sees every
  // byte. It tells another checkpoint of the same layout, not a change that meets no sample. About 150 KiB a file are
  // read, asked for together before the first is needed: 118 files of a 235B model are 18 MiB.
  std::string data_sample_hash() const;
  static constexpr size_t kSampledEndBytes = 64 << 10;
  static constexpr int kSampledPlaces = 4;
  static constexpr size_t kSampledPlaceBytes = 4 << 10;

 private:
  Checkpoint();
  struct State;
  std::unique_ptr<State> state_;
};

// config.json of a folder; of a multimodal model the text part with the quantization settings beside it.
Json load_model_config(const std::string& directory);
std::string model_config_hash(const std::string& directory);

}  // namespace ft
