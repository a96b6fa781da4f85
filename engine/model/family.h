// A model family: one file in engine/model/families/, one line in families() (family.cpp). It reads its part of
// config.json, declares its weights, and writes the forward pass once in the words of Backend, for every device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/geometry.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"
#include "kernels/base/json.h"

namespace ft {

class Backend;
struct StepBatch;
enum class Slot : uint8_t;  // engine/runtime/backend.h

class Family {
 public:
  virtual ~Family() = default;
  virtual const ModelGeometry& geometry() const = 0;

  // Same calls in the same order every time; the ids are kept by the family for forward().
  virtual WeightList declare_weights() const = 0;

  // Floats per token of an activation buffer, the widest use of it; 0: the family does not use that slot. The backend
  // allocates tokens * width(slot) floats for each.
  virtual int64_t width(Slot slot) const = 0;

  // Rotation tables for positions [0, positions), as AttentionSpec::rope numbers them. Made once at start for
  // max_context and handed to the backend.
  virtual std::vector<RopeTable> make_ropes(int64_t positions) const = 0;

  // One step: embeds the batch's tokens, runs all layers, writes the logits rows the batch asks for. Calls only Backend
  // operations; allocates nothing.
  virtual void forward(Backend& backend, const ModelWeights& weights, const StepBatch& batch) const = 0;
};

struct FamilyDesc {
  std::string_view model_type;
  bool on_cuda = false;  // the CUDA device has every operation that it needs
  std::unique_ptr<Family> (*make)(
      const Json& config);  // throws Error naming the config key, its value, what is allowed
};
std::span<const FamilyDesc> families();

// ModelGeometry::slot_floats.
int64_t slot_floats(const Family& family);

// By config["model_type"]; an unknown one is an Error with the list of supported ones.
std::unique_ptr<Family> make_family(const Json& config);

}  // namespace ft
