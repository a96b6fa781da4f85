// What loading will make: formats, packed layouts and byte counts, and where each weight comes from. inspect_formats
// shows a plan's formats, load_weights carries it out, so the two cannot disagree.
#pragma once

#include <memory>
#include <vector>

#include "engine/model/detect.h"
#include "engine/model/weights.h"

namespace ft {

struct WeightPlan {
  WeightList list;
  ModelFormats formats;
  std::vector<PackedLayout> layouts;         // per matrix of the list
  std::vector<ExpertLayout> expert_layouts;  // per MoE layer

  // From a checkpoint only; spans and pointers into it.
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<FoundMatrix> matrices;
  std::vector<const TensorView*> vectors;
  std::vector<const TensorView*> tables;
  std::vector<const TensorView*> index_tables;
  std::vector<FoundRows> row_tables;
  std::vector<std::vector<FoundExpert>> experts;  // [MoE layer][expert]
};

// Reads tensor headers, or for synthetic weights config.json alone. Checks every shape. Throws Error.
WeightPlan plan_weights(const Family& family, const WeightSource& source);

}  // namespace ft
