"""gpt_oss: biases everywhere, attention sinks, every other layer with a window, yarn, clamped gated experts."""
from ..errors import require
from ..tensors import OTHER, ExpertBank, Tensor, bias, embedding, linear, norm, normal
from . import attention

ARCHITECTURE = "GptOssForCausalLM"
SLIDING, FULL = "sliding_attention", "full_attention"
KEYS = {"intermediate": "intermediate_size", "dense_intermediate": None, "experts": "num_local_experts"}
SWIGLU_GAIN = 2.5  # pre-activations that reach the clamp at 7 now and then
DEFAULTS = {
    "attention_bias": True, "head_dim": 32, "hidden_act": "silu", "hidden_size": 128, "intermediate_size": 64,
    "max_position_embeddings": 2048, "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 4,
    "num_key_value_heads": 2, "num_local_experts": 8, "rms_norm_eps": 1e-5,
    "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                        "rope_theta": 150000.0, "rope_type": "yarn", "truncate": False},
    "sliding_window": 32, "swiglu_limit": 7.0, "tie_word_embeddings": False, "vocab_size": 320,
}


def finish(config):
    attention.check_sizes(config, "num_local_experts")
    layers = config["num_hidden_layers"]
    if len(config.get("layer_types") or []) != layers:
        config["layer_types"] = [FULL if layer % 2 else SLIDING for layer in range(layers)]
    attention.check_layer_types(config, (SLIDING, FULL))
    require(config["sliding_window"] >= 1, "sliding_window", config["sliding_window"], "a whole number from 1")


def tensors(config):
    hidden, experts = config["hidden_size"], config["num_local_experts"]
    yield embedding("model.embed_tokens", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        yield norm(stem + "input_layernorm", hidden)
        yield from attention.projections(stem + "self_attn.", config, biased=True)
        yield Tensor(stem + "self_attn.sinks", (config["num_attention_heads"],), normal(1.0))
        yield norm(stem + "post_attention_layernorm", hidden)
        yield linear(stem + "mlp.router", experts, hidden, OTHER)
        yield bias(stem + "mlp.router.bias", experts)
        yield ExpertBank(stem + "mlp.experts.", experts, hidden, config["intermediate_size"], biased=True, gain=SWIGLU_GAIN)
    yield norm("model.norm", hidden)
    yield linear("lm_head", config["vocab_size"], hidden, OTHER, gain=2.0)
