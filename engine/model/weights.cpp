#include "engine/model/weights.h"

#include <algorithm>

#include "engine/model/checkpoint.h"
#include "kernels/base/error.h"

namespace ft {

MatrixId WeightList::matrix(std::vector<std::string> stems, int64_t rows, int64_t cols, bool keep_bf16) {
  FT_CHECK(!stems.empty() && rows > 0 && cols > 0);
  matrices.push_back({std::move(stems), rows, cols, keep_bf16});
  return {static_cast<int>(matrices.size()) - 1};
}

VectorId WeightList::vector(std::vector<std::string> names, int64_t size, VectorForm form) {
  FT_CHECK(!names.empty() && size > 0);
  vectors.push_back({std::move(names), size, std::move(form)});
  return {static_cast<int>(vectors.size()) - 1};
}

TableId WeightList::table(std::vector<std::string> names, int64_t rows, int64_t cols) {
  FT_CHECK(!names.empty() && rows > 0 && cols > 0);
  tables.push_back({std::move(names), rows, cols});
  return {static_cast<int>(tables.size()) - 1};
}

IndexTableId WeightList::index_table(std::vector<std::string> names, int64_t rows, int64_t cols, int32_t limit) {
  FT_CHECK(!names.empty() && rows > 0 && cols > 0 && cols <= limit);
  index_tables.push_back({std::move(names), rows, cols, limit});
  return {static_cast<int>(index_tables.size()) - 1};
}

RowTableId WeightList::row_table(RowTableSpec spec) {
  FT_CHECK(!spec.prefixes.empty() && spec.cols > 0 && spec.parts > 0 && spec.rows > 0 && spec.rows % spec.parts == 0);
  row_tables.push_back(std::move(spec));
  return {static_cast<int>(row_tables.size()) - 1};
}

void WeightList::known_integers(std::vector<std::string> names, std::span<const int64_t> values) {
  FT_CHECK(!names.empty());
  integers.push_back({std::move(names), {values.begin(), values.end()}});
}

void WeightList::other_layout(OtherLayoutSpec spec) { other_layouts.push_back(std::move(spec)); }

void WeightList::expert_layer(ExpertLayerSpec spec) { expert_layers.push_back(std::move(spec)); }

ExpertBank::ExpertBank(std::vector<ExpertLayout> layouts, int experts, std::shared_ptr<HostBuffer> memory)
    : layouts_(std::move(layouts)), experts_(experts), memory_(std::move(memory)) {
  for (const ExpertLayout& layout : layouts_) {
    FT_CHECK(layout.bytes % kBlobAlign == 0);
    layer_offset_.push_back(bytes_);
    bytes_ += layout.bytes * experts;
    slot_bytes_ = std::max(slot_bytes_, layout.bytes);
  }
  if (memory_ == nullptr) memory_ = std::make_shared<HostBuffer>(bytes_);
  if (bytes_ <= memory_->bytes()) return;
  throw Error(ErrorKind::kFailed, {.what = "the memory given for expert banks is too small",
                                   .value = std::to_string(memory_->bytes()) + " bytes",
                                   .allowed = "at least " + std::to_string(bytes_)});
}

const std::byte* ExpertBank::blob(int layer, int expert) const {
  return memory_->data() + layer_offset_[static_cast<size_t>(layer)] + layout(layer).bytes * expert;
}

std::byte* ExpertBank::blob(int layer, int expert) {
  return const_cast<std::byte*>(static_cast<const ExpertBank*>(this)->blob(layer, expert));
}

ModelWeights::ModelWeights() = default;
ModelWeights::~ModelWeights() = default;
ModelWeights::ModelWeights(ModelWeights&&) noexcept = default;

}  // namespace ft
