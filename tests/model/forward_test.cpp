// Checked against: the order of operations of the architecture, written out by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "engine/runtime/backend.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

// Writes down every call, weights by their names.
class Recorder final : public Backend {
 public:
  explicit Recorder(const WeightList& list) : list_(list) {}
  void embed(const EmbedSpec& spec) override {
    last_embed = spec;
    line() << "embed " << table_name(spec.table) << " > " << name(spec.to);
  }
  void linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) override {
    line() << "linear " << name(from);
    if (norm.weight.index >= 0) text_ << " by " << vector_name(norm.weight);
    for (const Linear& l : outputs) text_ << " " << product(l) << " > " << name(l.to);
  }
  void linear_add(Slot from, const Linear& output) override {
    line() << "linear " << name(from) << " " << product(output) << " added to " << name(output.to);
  }
  void attention(const AttentionSpec& spec) override {
    last_attention = spec;
    line() << "attention " << spec.kv_layer << " " << vector_name(spec.q_norm) << " " << vector_name(spec.k_norm);
    if (spec.v_norm) text_ << " values normed";
    if (spec.value_is_key) text_ << " values are keys";
  }
  void glu(const GluSpec& spec) override {
    line() << "glu " << spec.width << " " << name(spec.gate) << " " << name(spec.up) << " > " << name(spec.to);
  }
  void moe(const MoeSpec& spec) override {
    line() << "moe " << spec.moe_layer << " " << name(spec.from) << " by " << vector_name(spec.norm.weight) << " "
           << matrix_name(spec.router.weight) << (spec.router.renormalize ? " renormalized " : " ")
           << (spec.add ? "added to " : "> ") << name(spec.to);
    last_moe = spec;
  }
  void norm(Slot from, const Norm& norm, Slot to) override {
    line() << "norm " << name(from) << " by " << vector_name(norm.weight) << " > " << name(to);
  }
  void add(const AddSpec& spec) override {
    line() << "add " << name(spec.from) << " by " << vector_name(spec.norm.weight) << " to " << name(spec.to);
    if (spec.scale.index >= 0) text_ << " times " << vector_name(spec.scale);
  }
  void logits(const LogitsSpec& spec) override {
    last_logits = spec;
    line() << "logits " << name(spec.from) << " " << vector_name(spec.norm.weight) << " " << matrix_name(spec.head);
  }
  std::string text() const { return text_.str(); }
  AttentionSpec last_attention;
  MoeSpec last_moe;
  LogitsSpec last_logits;
  EmbedSpec last_embed;

 private:
  std::ostream& line() { return text_ << "\n"; }
  static std::string name(Slot slot) {
    static const char* const kNames[kSlotCount] = {"residual",   "query",       "key",        "value",  "attention",
                                                   "gate",       "up",          "block",      "routed", "delta_mixed",
                                                   "delta_gate", "delta_write", "delta_decay"};
    return kNames[static_cast<size_t>(slot)];
  }
  static std::string plain(std::string name) {
    for (const char* cut : {"model.language_model.", "model.", "layers.", ".weight"}) {
      const size_t at = name.find(cut);
      if (at != std::string::npos) name.erase(at, std::string(cut).size());
    }
    return name;
  }
  std::string product(const Linear& l) const {
    return matrix_name(l.weight) + (l.bias.index >= 0 ? "+" + vector_name(l.bias) : "");
  }
  std::string matrix_name(MatrixId id) const {
    return plain(list_.matrices.at(static_cast<size_t>(id.index)).stems[0]);
  }
  std::string vector_name(VectorId id) const { return plain(list_.vectors.at(static_cast<size_t>(id.index)).names[0]); }
  std::string table_name(TableId id) const { return plain(list_.tables.at(static_cast<size_t>(id.index)).names[0]); }

  const WeightList& list_;
  std::ostringstream text_;
};

}  // namespace

TEST_CASE("a dense and a MoE layer, in order") {
  const auto family = make_family(Json::parse(R"({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "decoder_sparse_step": 2,
      "norm_topk_prob": true, "tie_word_embeddings": true, "use_sliding_window": true, "sliding_window": 100})"));
  const WeightList list = family->declare_weights();
  Recorder recorder(list);
  family->forward(recorder, ModelWeights{}, StepBatch{});
  CHECK(recorder.text() == R"(
embed embed_tokens > residual
linear residual by 0.input_layernorm 0.self_attn.q_proj > query 0.self_attn.k_proj > key 0.self_attn.v_proj > value
attention 0 0.self_attn.q_norm 0.self_attn.k_norm
linear attention 0.self_attn.o_proj added to residual
linear residual by 0.post_attention_layernorm 0.mlp.gate_proj > gate 0.mlp.up_proj > up
glu 6144 gate up > gate
linear gate 0.mlp.down_proj added to residual
linear residual by 1.input_layernorm 1.self_attn.q_proj > query 1.self_attn.k_proj > key 1.self_attn.v_proj > value
attention 1 1.self_attn.q_norm 1.self_attn.k_norm
linear attention 1.self_attn.o_proj added to residual
moe 0 residual by 1.post_attention_layernorm 1.mlp.gate renormalized added to residual
logits residual norm embed_tokens)");
  CHECK(recorder.last_attention.heads == 4);
  CHECK(recorder.last_attention.kv_heads == 2);
  CHECK(recorder.last_attention.head_dim == 32);
  CHECK(recorder.last_attention.window == 100);
  CHECK(recorder.last_attention.scale == doctest::Approx(std::pow(32.0, -0.5)).epsilon(1e-7));
}

TEST_CASE("attention biases are declared and used when the configuration has them; an untied head is lm_head") {
  const auto family = make_family(Json::parse(R"({"model_type": "qwen3_moe", "num_hidden_layers": 1,
      "attention_bias": true, "use_sliding_window": true, "sliding_window": null})"));
  const WeightList list = family->declare_weights();
  Recorder recorder(list);
  family->forward(recorder, ModelWeights{}, StepBatch{});
  CHECK(mentions(
      recorder.text(),
      {"0.self_attn.q_proj+0.self_attn.q_proj.bias > query", "0.self_attn.k_proj+0.self_attn.k_proj.bias > key",
       "0.self_attn.v_proj+0.self_attn.v_proj.bias > value",
       "0.self_attn.o_proj+0.self_attn.o_proj.bias added to residual", "norm lm_head", "moe 0"}));
  CHECK(!mentions(recorder.text(), {"renormalized"}));
  CHECK(recorder.last_attention.window == 0);
}

TEST_CASE("gemma4: a sliding and a full layer, in order") {
  const auto family = make_family(Json::parse(R"({"model_type": "gemma4_text", "hidden_size": 50,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true, "intermediate_size": 80,
      "enable_moe_block": true, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32,
      "hidden_size_per_layer_input": 0, "sliding_window": 100, "final_logit_softcapping": 30.0})"));
  const WeightList list = family->declare_weights();
  Recorder recorder(list);
  family->forward(recorder, ModelWeights{}, StepBatch{});
  CHECK(recorder.text() == R"(
embed embed_tokens > residual
linear residual by 0.input_layernorm 0.self_attn.q_proj > query 0.self_attn.k_proj > key 0.self_attn.v_proj > value
attention 0 0.self_attn.q_norm 0.self_attn.k_norm values normed
linear attention 0.self_attn.o_proj > block
add block by 0.post_attention_layernorm to residual
moe 0 residual by 0.pre_feedforward_layernorm_2 0.router.proj renormalized > routed
linear residual by 0.pre_feedforward_layernorm 0.mlp.gate_proj > gate 0.mlp.up_proj > up
glu 80 gate up > gate
linear gate 0.mlp.down_proj > block
norm block by 0.post_feedforward_layernorm_1 > block
add routed by 0.post_feedforward_layernorm_2 to block
add block by 0.post_feedforward_layernorm to residual times 0.layer_scalar
linear residual by 1.input_layernorm 1.self_attn.q_proj > query 1.self_attn.k_proj > key
attention 1 1.self_attn.q_norm 1.self_attn.k_norm values normed values are keys
linear attention 1.self_attn.o_proj > block
add block by 1.post_attention_layernorm to residual
moe 1 residual by 1.pre_feedforward_layernorm_2 1.router.proj renormalized > routed
linear residual by 1.pre_feedforward_layernorm 1.mlp.gate_proj > gate 1.mlp.up_proj > up
glu 80 gate up > gate
linear gate 1.mlp.down_proj > block
norm block by 1.post_feedforward_layernorm_1 > block
add routed by 1.post_feedforward_layernorm_2 to block
add block by 1.post_feedforward_layernorm to residual times 1.layer_scalar
logits residual norm embed_tokens)");
  CHECK(recorder.last_embed.scale == doctest::Approx(std::sqrt(50.0)).epsilon(1e-7));
  CHECK(recorder.last_attention.scale == 1);
  CHECK(recorder.last_attention.window == 0);
  CHECK(recorder.last_attention.head_dim == 32);
  CHECK(recorder.last_attention.kv_heads == 1);
  CHECK(recorder.last_attention.rope == 1);
  CHECK(recorder.last_logits.softcap == 30);
  CHECK(recorder.last_moe.next_router.weight.index == -1);
  const RouterSpec& router = recorder.last_moe.router;
  const VectorSpec& router_norm = list.vectors.at(static_cast<size_t>(router.norm.weight.index));
  CHECK(router_norm.names.front() == "model.language_model.layers.1.router.scale");
  CHECK(router_norm.form.multiply == doctest::Approx(1 / std::sqrt(50.0)).epsilon(1e-7));
  CHECK(mentions(list.vectors.at(static_cast<size_t>(router.expert_scale.index)).names.front(), {"per_expert_scale"}));
}

TEST_CASE("declaring again gives the same list") {
  const auto family = family_of(golden_folder("qwen3_moe.b"));
  const WeightList a = family->declare_weights(), b = family->declare_weights();
  REQUIRE(a.matrices.size() == b.matrices.size());
  for (size_t i = 0; i < a.matrices.size(); ++i) CHECK(a.matrices[i].stems == b.matrices[i].stems);
}
