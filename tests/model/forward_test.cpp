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
  void embed(const EmbedSpec& spec) override { line() << "embed " << table_name(spec.table) << " > " << name(spec.to); }
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
  }
  void glu(const GluSpec& spec) override {
    line() << "glu " << spec.width << " " << name(spec.gate) << " " << name(spec.up) << " > " << name(spec.to);
  }
  void moe(const MoeSpec& spec) override {
    line() << "moe " << spec.moe_layer << " " << name(spec.from) << " by " << vector_name(spec.norm.weight) << " "
           << matrix_name(spec.router.weight) << (spec.router.renormalize ? " renormalized " : " ")
           << (spec.add ? "added to " : "> ") << name(spec.to);
  }
  void logits(const LogitsSpec& spec) override {
    line() << "logits " << name(spec.from) << " " << vector_name(spec.norm.weight) << " " << matrix_name(spec.head);
  }
  std::string text() const { return text_.str(); }
  AttentionSpec last_attention;

 private:
  std::ostream& line() { return text_ << "\n"; }
  static std::string name(Slot slot) {
    static const char* const kNames[kSlotCount] = {"residual",   "query",       "key",        "value",  "attention",
                                                   "gate",       "up",          "block",      "routed", "delta_mixed",
                                                   "delta_gate", "delta_write", "delta_decay"};
    return kNames[static_cast<size_t>(slot)];
  }
  static std::string plain(std::string name) {
    for (const char* cut : {"model.layers.", ".weight"}) {
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
embed model.embed_tokens > residual
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
logits residual model.norm model.embed_tokens)");
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
       "0.self_attn.o_proj+0.self_attn.o_proj.bias added to residual", "model.norm lm_head", "moe 0"}));
  CHECK(!mentions(recorder.text(), {"renormalized"}));
  CHECK(recorder.last_attention.window == 0);
}

TEST_CASE("declaring again gives the same list") {
  const auto family = family_of(golden_folder("qwen3_moe.b"));
  const WeightList a = family->declare_weights(), b = family->declare_weights();
  REQUIRE(a.matrices.size() == b.matrices.size());
  for (size_t i = 0; i < a.matrices.size(); ++i) CHECK(a.matrices[i].stems == b.matrices[i].stems);
}
