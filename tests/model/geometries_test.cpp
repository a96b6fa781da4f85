// The configurations in tests/data/geometry. Checked against: the published numbers of layers, experts and widths, and
// the bits of each format (4.5 NVFP4, 4.25 MXFP4, 16 bf16).
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "engine/model/weights.h"

namespace {

using namespace ft;

struct Published {
  std::string folder, family, experts_format, dense_format;
  int layers, experts, top_k;
  int64_t hidden, intermediate;
  double bits;
};

const Published kPublished[] = {
    {"deepseek-v4-flash", "deepseek_v4", "mxfp4", "bf16+fp8_block", 28, 256, 6, 4096, 2048, 4.25},
    {"gemma-4-26b-a4b", "gemma4", "bf16", "bf16", 30, 128, 8, 2816, 704, 16},
    {"gpt-oss-120b", "gpt_oss", "mxfp4", "bf16", 36, 128, 4, 2880, 2880, 4.25},
    {"qwen3-30b-a3b-nvfp4", "qwen3_moe", "nvfp4", "bf16", 48, 128, 8, 2048, 768, 4.5},
    {"qwen3.6-35b-a3b", "qwen3_5_moe", "bf16", "bf16", 40, 256, 8, 2048, 512, 16},
    {"qwen3.8-flash-next-nvfp4", "qwen4_exp", "nvfp4", "bf16", 48, 512, 10, 2560, 640, 4.5},
};

std::filesystem::path geometries() { return std::filesystem::path(std::getenv("FT_TEST_DATA")) / "geometry"; }

}  // namespace

TEST_CASE("every geometry has its published shape and formats") {
  std::set<std::string> listed, there;
  for (const auto& entry : std::filesystem::directory_iterator(geometries())) {
    if (entry.is_directory()) there.insert(entry.path().filename().string());
  }
  for (const Published& published : kPublished) {
    CAPTURE(published.folder);
    listed.insert(published.folder);
    WeightSource source;
    source.model_path = (geometries() / published.folder).string();
    source.synthetic = true;
    const auto family = make_family(load_model_config(source.model_path));
    const ModelGeometry& g = family->geometry();
    CHECK(g.family == published.family);
    CHECK(g.layers == published.layers);
    CHECK(static_cast<int>(g.moe_layers.size()) == published.layers);
    CHECK(g.expert.experts == published.experts);
    CHECK(g.expert.top_k == published.top_k);
    CHECK(g.expert.hidden == published.hidden);
    CHECK(g.expert.intermediate == published.intermediate);
    const ModelFormats formats = inspect_formats(*family, source);
    CHECK(formats.experts == published.experts_format);
    CHECK(formats.dense == published.dense_format);
    const double weights =
        3.0 * static_cast<double>(published.hidden * published.intermediate) * published.layers * published.experts;
    CHECK(static_cast<double>(formats.expert_bytes_total) ==
          doctest::Approx(weights * published.bits / 8).epsilon(0.01));
  }
  CHECK(listed == there);
}

TEST_CASE("DeepSeek-V4-Flash has 28 layers of which three choose by token id, and both kinds of compression") {
  const auto family = make_family(load_model_config((geometries() / "deepseek-v4-flash").string()));
  const auto& layers = family->geometry().compressed;
  CHECK(layers[1].ratio == 0);
  CHECK(layers[2].ratio == 4);
  CHECK(layers[27].ratio == 128);
  CHECK(family->declare_weights().index_tables.size() == 3);
}
