#include "engine/model/weight_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/model/family.h"
#include "engine/model/quantization.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// The formats each matrix and each layer's experts have.
struct Formats {
  std::vector<FormatId> matrices;
  std::vector<FormatId> experts;
};

// A checkpoint in another layout would lack some tensor, whose name says nothing to who has it.
void refuse_other_layouts(const WeightPlan& plan) {
  for (const OtherLayoutSpec& spec : plan.list.other_layouts) {
    if (plan.checkpoint->find(spec.tensor) == nullptr) continue;
    throw Error(ErrorKind::kFailed, {.what = "this layout of a checkpoint is not supported",
                                     .value = spec.layout,
                                     .allowed = spec.supported,
                                     .path = spec.tensor});
  }
}

Formats find_in_checkpoint(const Json& config, const ModelGeometry& geometry, WeightPlan& plan) {
  refuse_other_layouts(plan);
  const Detector detector(*plan.checkpoint, config);
  Formats formats;
  for (const MatrixSpec& spec : plan.list.matrices) {
    plan.matrices.push_back(detector.matrix(spec));
    formats.matrices.push_back(plan.matrices.back().format);
  }
  for (const VectorSpec& spec : plan.list.vectors) plan.vectors.push_back(&detector.vector(spec));
  for (const TableSpec& spec : plan.list.tables) plan.tables.push_back(&detector.table(spec));
  for (const IndexTableSpec& spec : plan.list.index_tables) plan.index_tables.push_back(&detector.index_table(spec));
  for (const RowTableSpec& spec : plan.list.row_tables) plan.row_tables.push_back(detector.row_table(spec));
  for (const KnownIntegersSpec& spec : plan.list.integers) detector.check_integers(spec);
  for (const ExpertLayerSpec& spec : plan.list.expert_layers) {
    plan.experts.push_back(detector.experts(spec, geometry.expert));
    formats.experts.push_back(plan.experts.back().front().gate.format);
  }
  return formats;
}

void check_columns(const std::string& module, FormatId format, int64_t cols) {
  const FormatInfo& info = format_info(format);
  if (cols % info.cols_multiple == 0) return;
  throw Error(ErrorKind::kFailed, {.what = "config.json asks for a format that this matrix cannot have",
                                   .value = std::string(info.name) + " with " + std::to_string(cols) + " columns",
                                   .allowed = "a multiple of " + std::to_string(info.cols_multiple) + " columns",
                                   .path = module});
}

// Under whichever of its names config.json excludes a module from quantization, it is excluded.
FormatId format_of_any(const QuantizationRules& rules, const std::vector<std::string>& names) {
  FormatId format = rules.format_of(names.front());
  for (const std::string& name : names) {
    if (rules.format_of(name) == FormatId::kBf16) format = FormatId::kBf16;
  }
  return format;
}

FormatId synthetic_experts(const QuantizationRules& rules, const ExpertLayerSpec& spec,
                           const ExpertGeometry& geometry) {
  const std::string first = spec.prefixes.front() + "0.";
  const auto format_of = [&](const std::string& part) {
    std::vector<std::string> names;
    names.reserve(spec.prefixes.size());
    for (const std::string& prefix : spec.prefixes) names.push_back(prefix + "0." + part);
    return format_of_any(rules, names);
  };
  const FormatId format = format_of(spec.gate);
  for (const std::string& part : {spec.up, spec.down}) {
    if (format_of(part) == format) continue;
    throw Error(ErrorKind::kFailed, {.what = "quantization_config gives the matrices of an expert different formats",
                                     .value = first + part,
                                     .allowed = std::string(format_info(format).name) + ", as " + first + spec.gate});
  }
  check_columns(first + spec.gate, format, geometry.hidden);
  check_columns(first + spec.down, format, geometry.intermediate);
  return format;
}

Formats follow_config(const Json& config, const ModelGeometry& geometry, const WeightPlan& plan) {
  const QuantizationRules rules(config);
  Formats formats;
  for (const MatrixSpec& spec : plan.list.matrices) {
    const std::string& module = spec.stems.front();
    const FormatId format = spec.keep_bf16 ? FormatId::kBf16 : format_of_any(rules, spec.stems);
    check_columns(module, format, spec.cols);
    formats.matrices.push_back(format);
  }
  for (const ExpertLayerSpec& spec : plan.list.expert_layers) {
    formats.experts.push_back(synthetic_experts(rules, spec, geometry.expert));
  }
  return formats;
}

// "bf16+nvfp4", in the order of all_formats().
std::string summary(std::span<const FormatId> used) {
  std::string text;
  for (const FormatInfo& info : all_formats()) {
    if (std::find(used.begin(), used.end(), info.id) == used.end()) continue;
    if (!text.empty()) text += '+';
    text += info.name;
  }
  return text;
}

void lay_out(const Formats& found, const ModelGeometry& geometry, WeightPlan& plan) {
  ModelFormats& formats = plan.formats;
  formats.expert_format = found.experts;
  formats.dense = summary(found.matrices);
  formats.experts = summary(found.experts);
  for (size_t i = 0; i < plan.list.matrices.size(); ++i) {
    const MatrixSpec& spec = plan.list.matrices[i];
    plan.layouts.push_back(format_info(found.matrices[i]).layout(spec.rows, spec.cols));
    formats.dense_bytes += plan.layouts.back().bytes;
  }
  for (const VectorSpec& spec : plan.list.vectors) formats.dense_bytes += spec.size * int64_t{sizeof(float)};
  formats.dense_bytes_per_token = formats.dense_bytes;
  for (const TableSpec& spec : plan.list.tables) {
    formats.dense_bytes += spec.rows * spec.cols * int64_t{sizeof(bf16)};
    formats.dense_bytes_per_token += spec.cols * int64_t{sizeof(bf16)};
  }
  for (const IndexTableSpec& spec : plan.list.index_tables) {
    formats.dense_bytes += spec.rows * spec.cols * int64_t{sizeof(int32_t)};
    formats.dense_bytes_per_token += spec.cols * int64_t{sizeof(int32_t)};
  }
  for (size_t i = 0; i < plan.list.row_tables.size(); ++i) {
    const RowTableSpec& spec = plan.list.row_tables[i];
    const bool bytes = i < plan.row_tables.size() && plan.row_tables[i].dtype == DType::kF8E4M3;
    formats.row_table_bytes += spec.rows * spec.cols * (bytes ? 1 : 2);
    formats.row_bytes_per_token += spec.rows_per_token * spec.cols * (bytes ? 1 : 2);
  }
  for (const FormatId format : found.experts) {
    const ExpertLayout layout =
        expert_layout(format, geometry.expert.hidden, geometry.expert.intermediate, geometry.expert.form);
    plan.expert_layouts.push_back(layout);
    formats.expert_bytes_max = std::max(formats.expert_bytes_max, layout.bytes);
    formats.expert_bytes_total += layout.bytes * geometry.expert.experts;
  }
}

}  // namespace

WeightPlan plan_weights(const Family& family, const WeightSource& source) {
  const Json config = load_model_config(source.model_path);
  const ModelGeometry& geometry = family.geometry();
  WeightPlan plan;
  plan.list = family.declare_weights();
  FT_CHECK(plan.list.expert_layers.size() == geometry.moe_layers.size());
  if (!source.synthetic) plan.checkpoint = Checkpoint::open(source.model_path);
  lay_out(source.synthetic ? follow_config(config, geometry, plan) : find_in_checkpoint(config, geometry, plan),
          geometry, plan);
  return plan;
}

ModelFormats inspect_formats(const Family& family, const WeightSource& source) {
  return plan_weights(family, source).formats;
}

}  // namespace ft
