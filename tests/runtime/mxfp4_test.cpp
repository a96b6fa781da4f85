// Checked against: the same values as bf16 weights. A made-up checkpoint has its experts rounded to MXFP4 under both
// namings; code times power of two is exact in bf16, so a third checkpoint holds equal weights without the format, and
// reference numerics must give equal logits. Serve mode then must not depend on strategy and instruction set.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/model/support.h"
#include "tests/runtime/format_check.h"

using namespace ft;
using namespace ft::test;

namespace {

// Checkpoints of equal values: MXFP4 in both namings, and bf16.
struct Checkpoints {
  TempFolder packed, deepseek, as_bf16;
  Checkpoints() {
    for (const Mxfp4Names names : {Mxfp4Names::kCompressedTensors, Mxfp4Names::kDeepseek}) {
      EditableModel model = read_model(golden_folder("qwen3_moe.b"));
      to_mxfp4(model.tensors, ".experts.", names);
      model.write(names == Mxfp4Names::kDeepseek ? deepseek : packed);
      mxfp4_to_bf16(model.tensors);
      if (names == Mxfp4Names::kDeepseek) model.write(as_bf16);
    }
  }
};

}  // namespace

TEST_CASE("MXFP4 checkpoints in both namings give the logits of equal bf16 weights") {
  const Checkpoints checkpoints;
  const auto logits = [](const std::string& path, Numerics numerics, const std::string& experts) {
    const LoadedModel model = model_at(path);
    CHECK(model.weights->formats.experts == experts);
    EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
    config.numerics = numerics;
    return short_answer(model, config);
  };
  const Continuation expected = logits(checkpoints.as_bf16.path(), Numerics::kReference, "bf16");
  for (const TempFolder* folder : {&checkpoints.packed, &checkpoints.deepseek}) {
    CHECK(same_logits(logits(folder->path(), Numerics::kReference, "mxfp4"), expected));
    // bf16 activations, and sums of 32 k before a scale instead of 16 without one: near, not equal.
    const Continuation served = logits(folder->path(), Numerics::kServe, "mxfp4");
    const double error = relative_error(served.prompt_logits, expected.prompt_logits);
    MESSAGE("serve mode is " << error << " from reference numerics");
    CHECK(error < 0.02);
    CHECK(error > 0);
  }
}

TEST_CASE("MXFP4 experts: the same logits on every strategy, cache size and instruction set") {
  const Checkpoints checkpoints;
  check_same_everywhere(model_at(checkpoints.deepseek.path()));
}
