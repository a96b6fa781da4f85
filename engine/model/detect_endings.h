// How the tensors of one matrix are called after its stem.
#pragma once

#include <string_view>

#include "engine/model/detect.h"

namespace ft {

// An empty side ending does not exist.
struct Detector::Endings {
  std::string_view weight, packed, scale, scale_2, global_scale, scale_inv, blocks, block_scales;
};

namespace detect {

inline constexpr Detector::Endings kWithWeight{
    ".weight", ".weight_packed", ".weight_scale", ".weight_scale_2", ".weight_global_scale", ".weight_scale_inv", {},
    {}};
// Fused experts may come without ".weight": their fp8 scales are then called as transformers' fp8 experts call them,
// their MXFP4 codes and scales as gpt-oss does.
inline constexpr Detector::Endings kBare{"", {}, {}, {}, {}, "_scale_inv", "_blocks", "_scales"};

}  // namespace detect
}  // namespace ft
