// The weights of a loaded model, packed, wherever the kernels read them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_config.h"
#include "engine/model/geometry.h"
#include "engine/model/row_table.h"
#include "kernels/base/bf16.h"
#include "kernels/formats/expert_blob.h"
#include "kernels/formats/format.h"
#include "kernels/host/host_memory.h"

namespace ft {

class WorkerPool;
class Checkpoint;
class Family;

// Handles a family gets when it declares a weight; indexes into ModelWeights.
struct MatrixId {
  int index = -1;
};
struct VectorId {
  int index = -1;
};
struct TableId {
  int index = -1;
};
struct IndexTableId {
  int index = -1;
};
struct RowTableId {
  int index = -1;
};

// What a family asks of a checkpoint. Collected by Family::declare_weights, filled by the loader from a checkpoint or
// by the synthesizer.
struct MatrixSpec {
  std::vector<std::string> stems;  // tried in order: stem + ".weight" or the quantized side tensors of that stem
  int64_t rows = 0, cols = 0;
  bool keep_bf16 = false;  // synthetic weights: bf16 whatever quantization_config says (routers, heads)
};
// What becomes of a vector's values on the way: (stored + add) * multiply.
struct VectorForm {
  std::vector<int64_t> shape = {};  // in the checkpoint, of as many elements; empty: {size}
  bool transpose = false;           // the first dimension in the checkpoint becomes the last
  float add = 0;                    // 1 for norm weights that are stored as offsets from it
  float multiply = 1;
  float synthetic = 1;  // every value, as it comes out, of synthetic weights: norms of 1 change nothing
};
struct VectorSpec {
  std::vector<std::string> names;
  int64_t size = 0;
  VectorForm form;
};
struct TableSpec {
  std::vector<std::string> names;
  int64_t rows = 0, cols = 0;
};
// Rows of whole numbers, each from 0 to below `limit`: I64 in the checkpoint, int32 here. Synthetic ones are random,
// and a row's are distinct.
struct IndexTableSpec {
  std::vector<std::string> names;
  int64_t rows = 0, cols = 0;
  int32_t limit = 0;  // at least cols
};
// A table that stays on disk (row_table.h): prefix + "weight", or equal parts prefix + "shard_0.weight" and so on.
// BF16, or F8_E4M3 with one scale for all of it or one a part, ".weight_scale" or ".weight_scale_2".
struct RowTableSpec {
  std::vector<std::string> prefixes;  // tried in order
  int64_t rows = 0, cols = 0;
  int64_t parts = 1;
  int64_t rows_per_token = 1;
};
// Numbers that follow from config.json. Where a checkpoint holds them, I64, they must be these.
struct KnownIntegersSpec {
  std::vector<std::string> names;
  std::vector<int64_t> values;
};
// A tensor that only a layout of the family which is not supported has.
struct OtherLayoutSpec {
  std::string tensor;
  std::string layout;     // what that is
  std::string supported;  // and what to take instead
};
struct ExpertLayerSpec {
  // Tried in order, "model.layers.0.mlp.experts.". The stem of one expert's matrices is prefix + expert + "." + part;
  // fused 3-D tensors are prefix + "gate_up_proj" and prefix + "down_proj", with or without ".weight". Biases, where
  // ExpertForm::biased asks for them, are the stem + ".bias", fused ones prefix + "gate_up_proj_bias" and
  // "down_proj_bias".
  std::vector<std::string> prefixes;
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  // Of fused tensors: rows of gate and up take turns (gate first) instead of following each other, biases too, and BF16
  // ones are [experts, inputs, outputs].
  bool interleaved = false, input_major = false;
};

class WeightList {
 public:
  MatrixId matrix(std::vector<std::string> stems, int64_t rows, int64_t cols, bool keep_bf16 = false);
  VectorId vector(std::vector<std::string> names, int64_t size, VectorForm form = {});
  TableId table(std::vector<std::string> names, int64_t rows, int64_t cols);  // bf16 rows looked up by index
  IndexTableId index_table(std::vector<std::string> names, int64_t rows, int64_t cols, int32_t limit);
  RowTableId row_table(RowTableSpec spec);
  void known_integers(std::vector<std::string> names, std::span<const int64_t> values);
  void other_layout(OtherLayoutSpec spec);
  void expert_layer(ExpertLayerSpec spec);  // in MoE layer order

  std::vector<MatrixSpec> matrices;
  std::vector<VectorSpec> vectors;
  std::vector<TableSpec> tables;
  std::vector<IndexTableSpec> index_tables;
  std::vector<RowTableSpec> row_tables;
  std::vector<KnownIntegersSpec> integers;
  std::vector<OtherLayoutSpec> other_layouts;
  std::vector<ExpertLayerSpec> expert_layers;
};

// Host banks: every expert's blob, [MoE layer][expert], from the first byte of their memory without gaps.
class ExpertBank {
 public:
  ExpertBank() = default;
  // In memory of its own, not touched yet, or at the beginning of `memory`, which stays as large as it is. Throws
  // Error(kFailed) when that is too small.
  ExpertBank(std::vector<ExpertLayout> layouts, int experts, std::shared_ptr<HostBuffer> memory = nullptr);

  int layers() const { return static_cast<int>(layouts_.size()); }
  int experts() const { return experts_; }
  const ExpertLayout& layout(int layer) const { return layouts_[static_cast<size_t>(layer)]; }
  int64_t slot_bytes() const { return slot_bytes_; }  // largest blob
  const std::byte* blob(int layer, int expert) const;
  std::byte* blob(int layer, int expert);
  std::span<const std::byte> bytes() const {
    return {memory_ ? memory_->data() : nullptr, static_cast<size_t>(bytes_)};
  }
  std::span<std::byte> bytes() { return {memory_ ? memory_->data() : nullptr, static_cast<size_t>(bytes_)}; }

 private:
  std::vector<ExpertLayout> layouts_;
  std::vector<int64_t> layer_offset_;
  int experts_ = 0;
  int64_t slot_bytes_ = 0;
  int64_t bytes_ = 0;
  std::shared_ptr<HostBuffer> memory_;
};

struct EmbeddingTable {
  const bf16* rows = nullptr;
  int64_t count = 0, width = 0;
};

struct IndexTable {
  const int32_t* rows = nullptr;
  int64_t count = 0, width = 0;

  const int32_t* row(int64_t index) const { return rows + index * width; }
};

// Immutable after loading; shared by engines of one process.
struct ModelWeights {
  ModelGeometry geometry;
  ModelFormats formats;
  std::vector<PackedMatrix> matrices;
  std::vector<std::span<const float>> vectors;
  std::vector<EmbeddingTable> tables;
  std::vector<IndexTable> index_tables;
  std::vector<RowTable> row_tables;
  ExpertBank bank;
  double bank_seconds = 0;                 // from its allocation until it was filled
  std::vector<HostBuffer> storage;         // owns matrices, vectors, copied tables
  std::unique_ptr<Checkpoint> checkpoint;  // kept mapped while tables point into it; null when synthetic

  ModelWeights();
  ~ModelWeights();
  ModelWeights(ModelWeights&&) noexcept;

  const PackedMatrix& operator[](MatrixId id) const { return matrices[static_cast<size_t>(id.index)]; }
  std::span<const float> operator[](VectorId id) const { return vectors[static_cast<size_t>(id.index)]; }
  const EmbeddingTable& operator[](TableId id) const { return tables[static_cast<size_t>(id.index)]; }
  const IndexTable& operator[](IndexTableId id) const { return index_tables[static_cast<size_t>(id.index)]; }
  const RowTable& operator[](RowTableId id) const { return row_tables[static_cast<size_t>(id.index)]; }
};

// How far loading is. Stages follow one another; within one done_bytes does not go back and ends at total_bytes.
struct LoadProgress {
  std::string_view stage;  // for people: "packing weights"
  int64_t done_bytes = 0, total_bytes = 0;
  double fraction() const {  // in [0, 1]
    return total_bytes <= 0 ? 1.0 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  }
};
// Called on the thread that loads, many times a second. May throw to end the loading.
using ProgressFn = std::function<void(const LoadProgress&)>;

// What people should know about a loading that goes on: whether a packed file is used or written, or why not.
using NoticeFn = std::function<void(std::string_view text, bool warning)>;

struct LoadOptions {
  ProgressFn progress = {};
  NoticeFn notice = {};
  // Where expert banks go instead of memory of their own: a caller that loads one model after another touches (and
  // registers) the pages once. Holds at least ModelFormats::expert_bytes_total. Of one model at a time: what the
  // previous one's banks were is overwritten.
  std::shared_ptr<HostBuffer> bank_memory = {};
};

// Packed layouts and byte counts without loading a byte of weights: from the tensor headers, or, synthetic, from
// config.json's quantization settings. For the memory plan and --dry-run.
ModelFormats inspect_formats(const Family& family, const WeightSource& source);

// Loads and packs, in parallel on `pool`, with kStagingBytes a thread beside the weights themselves, or, of input-major
// experts, kInputMajorStagingBytes; or reads what an earlier load with the same WeightSource::packed_cache packed.
// Checks every shape. Throws Error naming the tensor.
std::shared_ptr<const ModelWeights> load_weights(const Family& family, const WeightSource& source, WorkerPool& pool,
                                                 const LoadOptions& options = {});

}  // namespace ft
