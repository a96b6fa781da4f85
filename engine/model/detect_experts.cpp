// Experts: matrices of their own, or stacks of all of a layer.
#include <algorithm>

#include "engine/model/detect.h"
#include "engine/model/detect_endings.h"
#include "engine/model/detect_tensors.h"
#include "kernels/base/error.h"
#include "kernels/formats/fp8_block.h"

namespace ft {

using detect::ceil_div;
using detect::refuse_absent;
using detect::refuse_format;
using detect::stacked;

namespace {

constexpr std::string_view kGateUp = "gate_up_proj";

std::span<const std::byte> part_of(std::span<const std::byte> bytes, int64_t parts, int64_t index, int64_t count = 1) {
  const size_t size = bytes.size() / static_cast<size_t>(parts);
  return bytes.subspan(static_cast<size_t>(index) * size, static_cast<size_t>(count) * size);
}

// One expert of a stack.
FoundMatrix expert_of(const FoundMatrix& stack, int experts, int expert) {
  FoundMatrix part = stack;
  part.codes = part_of(stack.codes, experts, expert);
  part.scales = part_of(stack.scales, experts, expert);
  if (stack.global.size() > sizeof(float)) part.global = part_of(stack.global, experts, expert);
  return part;
}

// Gate or up rows of an expert's fused matrix.
FoundMatrix half_of(const FoundMatrix& fused, bool up, bool interleaved) {
  FoundMatrix part = fused;
  part.rows = fused.rows / 2;
  if (interleaved) {
    part.step = 2;
    part.first = up ? 1 : 0;
    return part;
  }
  part.codes = part_of(fused.codes, 2, up ? 1 : 0);
  const int64_t unit = fused.rows_per_scale();
  if (unit == 0 || fused.scales.empty()) return part;
  part.scales = part_of(fused.scales, ceil_div(fused.rows, unit), up ? part.rows / unit : 0, ceil_div(part.rows, unit));
  return part;
}

FoundVector half_of(const FoundVector& fused, bool up, bool interleaved) {
  FoundVector part = fused;
  part.size = fused.size / 2;
  if (interleaved) {
    part.step = 2;
    part.first = up ? 1 : 0;
  } else {
    part.bytes = part_of(fused.bytes, 2, up ? 1 : 0);
  }
  return part;
}

}  // namespace

// A vector of `size`, or a stack of them.
FoundVector Detector::bias(std::vector<std::string> names, int64_t size, int experts) const {
  const TensorView& view = vector({std::move(names), size * std::max(experts, 1), {.shape = stacked(experts, size)}});
  FoundVector found;
  found.dtype = view.dtype;
  found.size = size;
  found.bytes = view.bytes;
  return found;
}

FoundExpert Detector::separate_expert(const ExpertLayerSpec& spec, int expert, const ExpertGeometry& geometry) const {
  const auto stems = [&](const std::string& part) {
    std::vector<std::string> names;
    for (const std::string& prefix : spec.prefixes) names.push_back(prefix + std::to_string(expert) + "." + part);
    return names;
  };
  FoundExpert found;
  found.gate = matrix({stems(spec.gate), geometry.intermediate, geometry.hidden});
  found.up = matrix({stems(spec.up), geometry.intermediate, geometry.hidden});
  found.down = matrix({stems(spec.down), geometry.hidden, geometry.intermediate});
  if (!geometry.form.biased) return found;
  const auto biases = [&](const std::string& part, int64_t size) {
    std::vector<std::string> names = stems(part);
    for (std::string& name : names) name += ".bias";
    return bias(names, size, 0);
  };
  found.gate_bias = biases(spec.gate, geometry.intermediate);
  found.up_bias = biases(spec.up, geometry.intermediate);
  found.down_bias = biases(spec.down, geometry.hidden);
  return found;
}

void Detector::add_fused_biases(const ExpertLayerSpec& spec, const std::string& prefix, const ExpertGeometry& geometry,
                                std::vector<FoundExpert>& experts) const {
  const int count = geometry.experts;
  const FoundVector gate_up = bias({prefix + "gate_up_proj_bias"}, 2 * geometry.intermediate, count);
  const FoundVector down = bias({prefix + "down_proj_bias"}, geometry.hidden, count);
  for (int e = 0; e < count; ++e) {
    FoundVector own_gate_up = gate_up, own_down = down;
    own_gate_up.bytes = part_of(gate_up.bytes, count, e);
    own_down.bytes = part_of(down.bytes, count, e);
    FoundExpert& expert = experts[static_cast<size_t>(e)];
    expert.gate_bias = half_of(own_gate_up, false, spec.interleaved);
    expert.up_bias = half_of(own_gate_up, true, spec.interleaved);
    expert.down_bias = own_down;
  }
}

bool Detector::try_fused(const ExpertLayerSpec& spec, const std::string& prefix, const ExpertGeometry& geometry,
                         std::vector<FoundExpert>& experts) const {
  const int count = geometry.experts;
  for (const Endings* endings : {&detect::kBare, &detect::kWithWeight}) {
    FoundMatrix gate_up, down;
    gate_up.rows = 2 * geometry.intermediate;
    gate_up.cols = down.rows = geometry.hidden;
    down.cols = geometry.intermediate;
    gate_up.input_major = down.input_major = spec.input_major;
    if (!try_stack(prefix + std::string(kGateUp), *endings, count, gate_up)) continue;
    const std::string down_stem = prefix + "down_proj";
    if (!try_stack(down_stem, *endings, count, down)) {
      refuse_absent(down_stem + gate_up.name.substr(prefix.size() + kGateUp.size()));
    }
    const int64_t unit = expert_of(gate_up, count, 0).rows_per_scale();
    const bool shared = unit > 1 && (spec.interleaved || geometry.intermediate % unit != 0);
    if (shared) refuse_format(gate_up.name, "fused fp8 experts whose gate and up rows share a block of scales");
    for (int e = 0; e < count; ++e) {
      const FoundMatrix own = expert_of(gate_up, count, e);
      FoundExpert expert;
      expert.gate = half_of(own, false, spec.interleaved);
      expert.up = half_of(own, true, spec.interleaved);
      expert.down = expert_of(down, count, e);
      experts.push_back(std::move(expert));
    }
    if (geometry.form.biased) add_fused_biases(spec, prefix, geometry, experts);
    return true;
  }
  return false;
}

std::vector<FoundExpert> Detector::experts(const ExpertLayerSpec& spec, const ExpertGeometry& geometry) const {
  std::vector<FoundExpert> experts;
  experts.reserve(static_cast<size_t>(geometry.experts));
  for (const std::string& prefix : spec.prefixes) {
    if (try_fused(spec, prefix, geometry, experts)) break;
  }
  for (int e = static_cast<int>(experts.size()); e < geometry.experts; ++e) {
    experts.push_back(separate_expert(spec, e, geometry));
  }
  const FoundMatrix& first = experts.front().gate;
  for (const FoundExpert& expert : experts) {
    for (const FoundMatrix* part : {&expert.gate, &expert.up, &expert.down}) {
      if (part->format == first.format) continue;
      throw Error(ErrorKind::kFailed, {.what = "the experts of one layer have different formats",
                                       .value = std::string(format_info(part->format).name),
                                       .allowed = std::string(format_info(first.format).name) + ", as " + first.name,
                                       .path = part->name});
    }
  }
  return experts;
}

}  // namespace ft
