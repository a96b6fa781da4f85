// Which tensors of a checkpoint make up one weight, and in which format: decided by the tensors that are there, never
// by config.json alone. Looks at names, dtypes and shapes only; data is read later (staged_packer.h).
//
// stem.weight BF16                                                      -> bf16
// stem.weight U8, .weight_scale F8_E4M3, .weight_scale_2 F32            -> nvfp4 (modelopt; weight_scale_2 multiplies)
// stem.weight_packed U8, .weight_scale F8_E4M3, .weight_global_scale    -> nvfp4 (compressed-tensors; divides)
// stem.weight F8_E4M3, .weight_scale_inv or .weight_scale F32 or BF16   -> fp8_block; a scale per 128x128 block or one;
//                                                                          fp8_channel with [rows] or [rows, 1] of them
//                                                                          (all multiply)
// stem.weight F8_E4M3, .scale F8_E8M0 per 128x128 block                 -> fp8_block (DeepSeek-V4)
// stem.weight_packed U8, .weight_scale U8 (e8m0)                        -> mxfp4 (compressed-tensors)
// stem.weight I8 or U8, .scale F8_E8M0                                  -> mxfp4 (DeepSeek-V4)
// stem_blocks U8 [rows, cols / 32, 16], stem_scales U8 (e8m0)           -> mxfp4 (gpt-oss; fused experts)
// Anything else that is recognized (GPTQ, MXFP8, ...) is an Error that names it and lists these.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/found_matrix.h"
#include "engine/model/weights.h"

namespace ft {

class Detector {
 public:
  // Both outlive the detector.
  Detector(const Checkpoint& checkpoint, const Json& config) : checkpoint_(checkpoint), config_(config) {}

  // All throw Error naming the tensor, its dtype and shape, and what was wanted.
  FoundMatrix matrix(const MatrixSpec& spec) const;
  const TensorView& vector(const VectorSpec& spec) const;           // BF16, F16 or F32 [size]
  const TensorView& table(const TableSpec& spec) const;             // BF16 [rows, cols]
  const TensorView& index_table(const IndexTableSpec& spec) const;  // I64 [rows, cols]
  FoundRows row_table(const RowTableSpec& spec) const;
  void check_integers(const KnownIntegersSpec& spec) const;
  // All experts of one layer; they have one format.
  std::vector<FoundExpert> experts(const ExpertLayerSpec& spec, const ExpertGeometry& geometry) const;

  struct Endings;  // detect_endings.h

 private:
  // `found` comes with its shape, and bf16 stacks are looked for as it says.
  bool try_stack(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const;
  bool try_blocks(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const;
  bool try_packed(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const;
  bool try_weight(const std::string& stem, const Endings& endings, int experts, FoundMatrix& found) const;
  void take_codes(FormatId format, const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                  FoundMatrix& found) const;
  void take_scales(const std::string& name, DType dtype, int experts, FoundMatrix& found) const;
  void take_fp4(FormatId format, const std::string& codes, DType code_dtype, const std::string& scales,
                DType scale_dtype, int experts, FoundMatrix& found) const;
  void take_nvfp4(const std::string& codes, const std::string& scales, const std::string& global, int experts,
                  FoundMatrix& found) const;
  void take_fp8(const std::string& codes, const std::string& scales, int experts, FoundMatrix& found) const;
  float row_scale(const std::string& stem, const std::string& whole) const;
  const TensorView* side(const std::string& stem, std::string_view ending) const;
  FoundVector bias(std::vector<std::string> names, int64_t size, int experts) const;
  FoundExpert separate_expert(const ExpertLayerSpec& spec, int expert, const ExpertGeometry& geometry) const;
  bool try_fused(const ExpertLayerSpec& spec, const std::string& prefix, const ExpertGeometry& geometry,
                 std::vector<FoundExpert>& experts) const;
  void add_fused_biases(const ExpertLayerSpec& spec, const std::string& prefix, const ExpertGeometry& geometry,
                        std::vector<FoundExpert>& experts) const;

  const Checkpoint& checkpoint_;
  const Json& config_;
};

}  // namespace ft
