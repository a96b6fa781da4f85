// Tables that stay on disk, and numbers that a checkpoint repeats.
#include <cstring>

#include "engine/model/detect.h"
#include "engine/model/detect_tensors.h"
#include "kernels/base/error.h"

namespace ft {

using detect::expect;
using detect::refuse_absent;
using detect::refuse_format;
using detect::refuse_tensor;
using detect::shape_text;

// The one scale of `stem`.weight, or of the whole table.
float Detector::row_scale(const std::string& stem, const std::string& whole) const {
  for (const std::string& holder : {stem, whole}) {
    for (const char* ending : {"weight_scale", "weight_scale_2"}) {
      const TensorView* view = checkpoint_.find(holder + ending);
      if (view == nullptr) continue;
      const bool readable = view->dtype == DType::kBf16 || view->dtype == DType::kF16 || view->dtype == DType::kF32;
      if (!readable || view->elements() != 1) refuse_tensor(holder + ending, *view, "one BF16, F16 or F32");
      float scale = 0;
      convert_to_f32(*view, {&scale, 1});
      return scale;
    }
  }
  refuse_format(stem + "weight", "fp8 table without a scale");
}

FoundRows Detector::row_table(const RowTableSpec& spec) const {
  for (const std::string& prefix : spec.prefixes) {
    const bool whole = checkpoint_.find(prefix + "weight") != nullptr;
    if (!whole && checkpoint_.find(prefix + "shard_0.weight") == nullptr) continue;
    const int64_t parts = whole ? 1 : spec.parts;
    FoundRows found;
    for (int64_t part = 0; part < parts; ++part) {
      const std::string stem = whole ? prefix : prefix + "shard_" + std::to_string(part) + ".";
      const std::string name = stem + "weight";
      const TensorView* view = checkpoint_.find(name);
      if (view == nullptr) refuse_absent(name);
      if (part == 0) {
        if (view->dtype != DType::kBf16 && view->dtype != DType::kF8E4M3) {
          refuse_tensor(name, *view, "BF16 or F8_E4M3 " + shape_text({spec.rows / parts, spec.cols}));
        }
        found.dtype = view->dtype;
      }
      expect(name, *view, found.dtype, {spec.rows / parts, spec.cols});
      found.parts.push_back(view->bytes);
      found.scales.push_back(found.dtype == DType::kBf16 ? 1.0f : row_scale(stem, prefix));
    }
    return found;
  }
  refuse_absent(spec.prefixes.front() + "shard_0.weight");
}

void Detector::check_integers(const KnownIntegersSpec& spec) const {
  for (const std::string& name : spec.names) {
    const TensorView* view = checkpoint_.find(name);
    if (view == nullptr) continue;
    expect(name, *view, DType::kI64, {static_cast<int64_t>(spec.values.size())});
    for (size_t i = 0; i < spec.values.size(); ++i) {
      int64_t value = 0;
      std::memcpy(&value, view->bytes.data() + i * sizeof value, sizeof value);
      if (value == spec.values[i]) continue;
      throw Error(ErrorKind::kFailed, {.what = "a number of the checkpoint does not follow from config.json",
                                       .value = std::to_string(value) + " at " + std::to_string(i),
                                       .allowed = std::to_string(spec.values[i]),
                                       .action = "check that config.json and the weights belong together",
                                       .path = name});
    }
  }
}

}  // namespace ft
