// Checked against: the same values as bf16 weights. A made-up checkpoint has its projections and experts rounded to
// E4M3 with a power of two for each row, under both namings; code times scale has four significant bits, so another
// checkpoint holds equal weights in bf16. Lanes are 16 k in both formats and powers of two commute with every rounding,
// so logits must be equal bits in reference numerics and in serve mode too, on every strategy and instruction set.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/bf16.h"
#include "kernels/base/fp_codes.h"
#include "tests/model/support.h"
#include "tests/runtime/format_check.h"

using namespace ft;
using namespace ft::test;

namespace {

constexpr std::string_view kEnding = ".weight";

void append(std::string& bytes, bf16 value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }

uint8_t nearest_e4m3(float x) {
  int best = 0;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    const auto distance = [x](int c) { return std::abs(decode_e4m3(static_cast<uint8_t>(c)) - x); };
    if (distance(code) < distance(best)) best = code;
  }
  return static_cast<uint8_t>(best);
}

enum class Names { kModelopt, kCompressedTensors };  // weight_scale F32 [N], or BF16 [N, 1]

struct Rounded {
  DiskTensor codes, scales, as_bf16;
};
Rounded round_rows(const DiskTensor& tensor, Names names) {
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  const bool modelopt = names == Names::kModelopt;
  Rounded made{{"F8_E4M3", {rows, cols}, ""}, {modelopt ? "F32" : "BF16", {rows}, ""}, {"BF16", {rows, cols}, ""}};
  if (!modelopt) made.scales.shape.push_back(1);
  std::vector<bf16> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(row.data(), tensor.bytes.data() + r * cols * 2, row.size() * 2);
    float largest = 0x1p-60f;
    for (const bf16 value : row) largest = std::max(largest, std::abs(to_float(value)));
    const float scale = std::ldexp(1.0f, std::ilogb(largest) - 7);  // the largest in 128 .. 256
    for (const bf16 value : row) {
      const uint8_t code = nearest_e4m3(to_float(value) / scale);
      made.codes.bytes.push_back(static_cast<char>(code));
      append(made.as_bf16.bytes, to_bf16(decode_e4m3(code) * scale));
    }
    if (modelopt) {
      made.scales.bytes.append(reinterpret_cast<const char*>(&scale), sizeof scale);
    } else {
      append(made.scales.bytes, to_bf16(scale));
    }
  }
  return made;
}

// Projections of attention and of experts.
struct Checkpoints {
  TempFolder modelopt, compressed, as_bf16;
  Checkpoints() {
    for (const Names names : {Names::kModelopt, Names::kCompressedTensors}) {
      EditableModel model = read_model(golden_folder("qwen3_moe.b"));
      EditableModel plain{std::make_unique<Json>(*model.config), model.tensors};
      for (const auto& [name, tensor] : plain.tensors) {
        if (name.find("_proj.") == std::string::npos || !name.ends_with(kEnding)) continue;
        const std::string stem = name.substr(0, name.size() - kEnding.size());
        Rounded made = round_rows(tensor, names);
        model.tensors[name] = made.codes;
        model.tensors[stem + ".weight_scale"] = made.scales;
        plain.tensors[name] = made.as_bf16;
      }
      model.write(names == Names::kModelopt ? modelopt : compressed);
      if (names == Names::kModelopt) plain.write(as_bf16);
    }
  }
};

}  // namespace

TEST_CASE("fp8 with a scale a row, in both namings, has the logits of equal bf16 weights, bit for bit") {
  const Checkpoints checkpoints;
  const LoadedModel plain = model_at(checkpoints.as_bf16.path());
  CHECK(plain.weights->formats.experts == "bf16");
  for (const Numerics numerics : {Numerics::kReference, Numerics::kServe}) {
    const auto logits = [&](const LoadedModel& model) {
      EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
      config.numerics = numerics;
      return short_answer(model, config);
    };
    const Continuation expected = logits(plain);
    for (const TempFolder* folder : {&checkpoints.modelopt, &checkpoints.compressed}) {
      const LoadedModel model = model_at(folder->path());
      CHECK(model.weights->formats.experts == "fp8_channel");
      CHECK(model.weights->formats.dense == "bf16+fp8_channel");
      CHECK(same_logits(logits(model), expected));
    }
  }
}

TEST_CASE("fp8 with a scale a row: the same logits on every strategy, cache size and instruction set") {
  const Checkpoints checkpoints;
  check_same_everywhere(model_at(checkpoints.modelopt.path()));
}
