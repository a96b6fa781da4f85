"""qwen3_moe: grouped-query attention with head norms, softmax router; some layers may have a dense MLP."""
from ..tensors import OTHER, ExpertBank, embedding, linear, norm
from . import attention

ARCHITECTURE = "Qwen3MoeForCausalLM"
KEYS = {}
DEFAULTS = {
    "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 32, "hidden_act": "silu", "hidden_size": 128,
    "intermediate_size": 192, "max_position_embeddings": 2048, "mlp_only_layers": [], "moe_intermediate_size": 64,
    "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 3,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "sliding_window": None,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 320,
}


def finish(config):
    if "num_local_experts" in config:  # what transformers 5 writes
        config.setdefault("num_experts", config["num_local_experts"])
    attention.check_sizes(config)


def is_sparse(config, layer):
    return layer not in (config.get("mlp_only_layers") or []) and (layer + 1) % config.get("decoder_sparse_step", 1) == 0


def tensors(config):
    hidden = config["hidden_size"]
    yield embedding("model.embed_tokens", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        yield norm(stem + "input_layernorm", hidden)
        yield from attention.projections(stem + "self_attn.", config, biased=config.get("attention_bias", False))
        yield from attention.head_norms(stem + "self_attn.", config["head_dim"])
        yield norm(stem + "post_attention_layernorm", hidden)
        if is_sparse(config, layer):
            yield linear(stem + "mlp.gate", config["num_experts"], hidden, OTHER)
            yield ExpertBank(stem + "mlp.experts.", config["num_experts"], hidden, config["moe_intermediate_size"])
        else:
            yield from attention.gated_mlp(stem + "mlp.", hidden, config["intermediate_size"])
    yield norm("model.norm", hidden)
    if not config.get("tie_word_embeddings"):
        yield linear("lm_head", config["vocab_size"], hidden, OTHER, gain=2.0)
