// Builds small checkpoint folders for tests, and reads safetensors files independently of the code under test.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/family.h"
#include "engine/model/weights.h"
#include "kernels/base/json.h"
#include "kernels/host/worker_pool.h"

namespace ft::test {

// One tensor as it is on disk: dtype in safetensors' spelling, any bytes.
struct DiskTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using DiskTensors = std::map<std::string, DiskTensor>;

// A whole file image. `header_pad` spaces more than the 8-byte alignment needs: an odd number misaligns the data.
std::string safetensors_image(const DiskTensors& tensors, size_t header_pad = 0);
// A file image with this header text, whatever it says.
std::string raw_image(const std::string& header, const std::string& data);
DiskTensors read_tensors(const std::string& path);

// A folder under the system's temporary one, removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

// A model that a test edits before it is written.
struct EditableModel {
  std::unique_ptr<Json> config;  // a pointer so that this header needs no JSON library
  DiskTensors tensors;
  std::string config_text() const;
  void write(const TempFolder& folder, size_t header_pad = 0) const;
};
EditableModel read_model(const std::string& directory);

// How a checkpoint calls MXFP4 matrices.
enum class Mxfp4Names {
  kCompressedTensors,  // .weight_packed U8, .weight_scale U8
  kDeepseek,           // .weight I8, .scale F8_E8M0
};
// Rounds the BF16 matrices whose names hold `part` to MXFP4: of each 32 values the largest ends as 4 or 6 (E2M1's
// largest binade), the others at the nearest code.
void to_mxfp4(DiskTensors& tensors, std::string_view part, Mxfp4Names names);
// What to_mxfp4 made, as BF16 again. Exact, for scales as it chooses them: code times power of two has two significant
// bits. Written from kernels/base/fp_codes.h alone.
void mxfp4_to_bf16(DiskTensors& tensors);

// Folders of the golden cases that are there, of `names`; the reason is printed for the others.
std::vector<std::string> golden_folders(std::initializer_list<std::string_view> names);
std::string golden_folder(std::string_view name);  // of those in tests/data
std::vector<std::string> all_golden_folders();
std::string bundled_model_folder();

// Message of the Error that f throws; "no error" when none.
std::string error_of(const std::function<void()>& f);
// Every part is in the message.
bool mentions(const std::string& message, std::initializer_list<std::string_view> parts);

// A configuration as JSON text with some keys replaced; a null in `changes` removes the key.
Json config_of(const char* base, const char* changes);
// Why a family refuses a configuration.
std::string refusal_of(const Json& config);

WeightSource real_weights(const std::string& directory);
WeightSource synthetic_weights(const std::string& directory, uint64_t seed = 0);
WorkerPoolOptions pool_of(int threads);

std::unique_ptr<Family> family_of(const std::string& directory);
std::shared_ptr<const ModelWeights> load(const std::string& directory, int threads = 2);
std::shared_ptr<const ModelWeights> load_synthetic(const std::string& directory, uint64_t seed, int threads = 2);

bool same_formats(const ModelFormats& a, const ModelFormats& b);

}  // namespace ft::test
