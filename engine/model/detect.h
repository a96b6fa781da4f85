// Which tensors of a checkpoint make up one weight, and in which format: decided by the tensors that are there, never
// by config.json alone. Looks at names, dtypes and shapes only; data is read when raw() is called.
//
// stem.weight BF16                                                      -> bf16
// stem.weight U8, .weight_scale F8_E4M3, .weight_scale_2 F32            -> nvfp4 (modelopt; weight_scale_2 multiplies)
// stem.weight_packed U8, .weight_scale F8_E4M3, .weight_global_scale    -> nvfp4 (compressed-tensors; divides)
// stem.weight F8_E4M3, .weight_scale_inv F32 or BF16 per 128x128 block  -> fp8_block (multiplies, despite its name)
// stem.weight_packed U8, .weight_scale U8 (e8m0)                        -> mxfp4 (compressed-tensors)
// stem.weight I8 or U8, .scale F8_E8M0                                  -> mxfp4 (DeepSeek-V4)
// Anything else that is recognized (GPTQ, MXFP8, ...) is an Error that names it and lists these.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/weights.h"
#include "kernels/formats/format.h"

namespace ft {

// A matrix of the checkpoint: spans into its mapped files.
struct FoundMatrix {
  FormatId format{};
  std::string name;  // of the tensor that holds the codes, for messages
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> codes;
  std::span<const std::byte> scales;
  DType scale_dtype{};
  std::span<const std::byte> global;  // one F32, or empty
  bool global_divides = false;
};

// Spans of the result point into the file, whatever their alignment there, or, where BF16 scales had to become F32,
// into `scales`. Throws Error when the global scale is not usable.
RawMatrix raw_matrix(const FoundMatrix& found, std::vector<float>& scales);

struct FoundExpert {
  FoundMatrix gate, up, down;
};

class Detector {
 public:
  // Both outlive the detector.
  Detector(const Checkpoint& checkpoint, const Json& config) : checkpoint_(checkpoint), config_(config) {}

  // All throw Error naming the tensor, its dtype and shape, and what was wanted.
  FoundMatrix matrix(const MatrixSpec& spec) const;
  const TensorView& vector(const VectorSpec& spec) const;  // BF16, F16 or F32 [size]
  const TensorView& table(const TableSpec& spec) const;    // BF16 [rows, cols]
  // All experts of one layer; they have one format.
  std::vector<FoundExpert> experts(const ExpertLayerSpec& spec, const ExpertGeometry& geometry) const;

 private:
  struct Endings;
  static const Endings kWithWeight, kBare;
  bool try_stack(const std::string& stem, const Endings& endings, int experts, int64_t rows, int64_t cols,
                 FoundMatrix& found) const;
  bool try_packed(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const;
  bool try_weight(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const;
  void take_fp4(FormatId format, const std::string& codes, DType code_dtype, const std::string& scales,
                DType scale_dtype, int experts, FoundMatrix& found) const;
  void take_nvfp4(const std::string& codes, const std::string& scales, const std::string& global, int experts,
                  FoundMatrix& found) const;
  void take_fp8(const std::string& codes, const std::string& scales, int experts, FoundMatrix& found) const;
  const TensorView* side(const std::string& stem, std::string_view ending) const;
  FoundMatrix split_expert(const ExpertLayerSpec& spec, int expert, const std::string& part, int64_t rows,
                           int64_t cols) const;
  bool try_fused(const ExpertLayerSpec& spec, const ExpertGeometry& geometry, std::vector<FoundExpert>& experts) const;
  bool try_fused(const std::string& prefix, const ExpertGeometry& geometry, std::vector<FoundExpert>& experts) const;

  const Checkpoint& checkpoint_;
  const Json& config_;
};

// BF16, F16 or F32 to fp32, any alignment. REQUIRES out.size() == view.elements().
void convert_to_f32(const TensorView& view, std::span<float> out);

}  // namespace ft
