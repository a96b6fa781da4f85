#include "engine/model/family.h"

#include <array>
#include <nlohmann/json.hpp>

#include "engine/model/families/list.h"
#include "engine/runtime/backend.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr std::array kFamilies = {
    FamilyDesc{"deepseek_v4", true, make_deepseek_v4},
    FamilyDesc{"gemma4", true, make_gemma4},
    FamilyDesc{"gemma4_text", true, make_gemma4},
    FamilyDesc{"gpt_oss", true, make_gpt_oss},
    FamilyDesc{"qwen3_moe", true, make_qwen3_moe},
    FamilyDesc{"qwen3_5_moe", true, make_qwen3_5_moe},
    FamilyDesc{"qwen3_5_moe_text", true, make_qwen3_5_moe},
    FamilyDesc{"qwen4_exp", true, make_qwen4_exp},
    FamilyDesc{"qwen4_exp_text", true, make_qwen4_exp},
    FamilyDesc{"qwen3_8_flash_next", true, make_qwen4_exp},
    FamilyDesc{"qwen3_8_flash_next_text", true, make_qwen4_exp},
};

}  // namespace

std::span<const FamilyDesc> families() { return kFamilies; }

int64_t slot_floats(const Family& family) {
  int64_t sum = 0;
  for (int slot = 0; slot < kSlotCount; ++slot) sum += family.width(static_cast<Slot>(slot));
  return sum;
}

std::unique_ptr<Family> make_family(const Json& config) {
  std::string given, supported;
  if (config.is_object()) {
    const auto it = config.find("model_type");
    if (it != config.end()) given = it->is_string() ? it->get<std::string>() : it->type_name();
  }
  if (given.empty()) refuse_native_gpt_oss(config);
  for (const FamilyDesc& family : kFamilies) {
    if (family.model_type == given) return family.make(config);
    if (!supported.empty()) supported += ", ";
    supported += family.model_type;
  }
  throw Error(ErrorKind::kFailed, {.what = "this kind of model is not supported",
                                   .value = given.empty() ? "absent" : given,
                                   .allowed = supported,
                                   .path = "model_type"});
}

}  // namespace ft
