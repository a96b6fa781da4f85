// One maker per family file; family.cpp lists them.
#pragma once

#include <memory>

#include "engine/model/family.h"

namespace ft {

std::unique_ptr<Family> make_deepseek_v4(const Json& config);
std::unique_ptr<Family> make_gpt_oss(const Json& config);
void refuse_native_gpt_oss(const Json& config);  // Error when it is of OpenAI's own layout, which has no model_type
std::unique_ptr<Family> make_gemma4(const Json& config);
std::unique_ptr<Family> make_qwen3_5_moe(const Json& config);
std::unique_ptr<Family> make_qwen3_moe(const Json& config);
std::unique_ptr<Family> make_qwen4_exp(const Json& config);

}  // namespace ft
