// make_family and the quantization rules on arbitrary JSON: an Error, or a family whose declared weights are sane.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/model/family.h"
#include "engine/model/quantization.h"
#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace {

void check_family(const ft::Json& config) {
  const auto family = ft::make_family(config);
  const ft::ModelGeometry& geometry = family->geometry();
  const ft::WeightList list = family->declare_weights();
  FT_CHECK(list.expert_layers.size() == geometry.moe_layers.size() && geometry.total_experts() > 0);
  FT_CHECK(geometry.kv_bytes_per_token() > 0 || !geometry.compressed.empty() || geometry.state_floats > 0);
  for (const ft::MatrixSpec& spec : list.matrices) {
    ft::format_info(ft::FormatId::kBf16).layout(spec.rows, spec.cols);
  }
  for (const ft::RopeTable& rope : family->make_ropes(3)) {
    FT_CHECK(rope.cos.size() == static_cast<size_t>(rope.half * 3));
  }
}

void check_rules(const ft::Json& config) {
  const ft::QuantizationRules rules(config);
  for (const char* name : {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.experts.7.down_proj", "", "."}) {
    rules.format_of(name);
  }
}

template <class F>
void refused_or_fine(F&& f) {
  try {
    f();
  } catch (const ft::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ft::Json config;
  try {
    config = ft::parse_json({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const ft::Error&) {
    return 0;
  }
  refused_or_fine([&] { check_family(config); });
  refused_or_fine([&] { check_rules(config); });
  return 0;
}
