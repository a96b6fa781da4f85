"""gemma4_text: sliding and full attention with heads of different widths, a dense MLP and experts side by side."""
from ..errors import require, require_multiple
from ..tensors import OTHER, ExpertBank, Tensor, embedding, linear, norm, normal, uniform
from . import attention

ARCHITECTURE = "Gemma4ForCausalLM"
WRAPPER_ARCHITECTURE = "Gemma4ForConditionalGeneration"
SLIDING, FULL = "sliding_attention", "full_attention"
KEYS = {"top_k": "top_k_experts"}
DEFAULTS = {
    "attention_bias": False, "attention_k_eq_v": True, "enable_moe_block": True, "final_logit_softcapping": 30.0,
    "global_head_dim": 64, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 128,
    "hidden_size_per_layer_input": 0, "intermediate_size": 256, "max_position_embeddings": 2048,
    "moe_intermediate_size": 64, "num_attention_heads": 4, "num_experts": 8, "num_global_key_value_heads": 2,
    "num_hidden_layers": 6, "num_key_value_heads": 4, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6,
    "rope_parameters": {
        FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"}},
    "sliding_window": 32, "tie_word_embeddings": True, "top_k_experts": 3, "use_bidirectional_attention": None,
    "use_double_wide_mlp": False, "vocab_size": 320, "vocab_size_per_layer_input": 320,
}
INTERVAL = 6
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
         "post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


def finish(config):
    attention.check_sizes(config, top_k_key="top_k_experts")
    layers = config["num_hidden_layers"]
    if len(config.get("layer_types") or []) != layers:
        config["layer_types"] = [FULL if (layer + 1) % INTERVAL == 0 or layer == layers - 1 else SLIDING
                                 for layer in range(layers)]
        config.pop("per_layer_config", None)
    attention.check_layer_types(config, (SLIDING, FULL))
    require(config["layer_types"][-1] == FULL, "layer_types[-1]", config["layer_types"][-1], FULL)
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        require(not config.get(key), key, config.get(key), "0 (small dense models are not made)")
    require(config.get("enable_moe_block"), "enable_moe_block", config.get("enable_moe_block"), "true")
    for layer in range(layers):
        width, kv_heads = head_shape(config, layer)
        require(width % 2 == 0, f"head width of layer {layer}", width, "an even number")
        require_multiple(config, "num_attention_heads", kv_heads, f"key and value heads of layer {layer}")


def head_shape(config, layer):
    """(head width, key and value heads) of a layer."""
    shape = (config["head_dim"], config["num_key_value_heads"])
    if "per_layer_config" in config:
        own = config["per_layer_config"].get(str(layer), {})
        return own.get("head_dim", shape[0]), own.get("num_key_value_heads", shape[1])
    if config["layer_types"][layer] == SLIDING:
        return shape
    kv_heads = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    return config.get("global_head_dim", 512), kv_heads or shape[1]


def _attention(stem, config, layer):
    width, kv_heads = head_shape(config, layer)
    own_values = config["layer_types"][layer] == SLIDING or not config.get("attention_k_eq_v")
    for tensor in attention.projections(stem, {**config, "head_dim": width, "num_key_value_heads": kv_heads}):
        if own_values or not tensor.name.endswith("v_proj.weight"):
            yield tensor
    # Scores are not scaled: with weights near width^-1/4 they are of size 1, as 1 / sqrt(width) would make them.
    yield from attention.head_norms(stem, width, width**-0.25)


def tensors(config):
    hidden, experts = config["hidden_size"], config["num_experts"]
    # The engine multiplies rows by sqrt(hidden); the same matrix gives the logits.
    yield embedding("model.embed_tokens", config["vocab_size"], hidden, std=2.0 * hidden**-0.5)
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        for name in NORMS:
            yield norm(stem + name, hidden)
        yield Tensor(stem + "layer_scalar", (1,), uniform(0.6, 1.0))
        yield from _attention(stem + "self_attn.", config, layer)
        yield from attention.gated_mlp(stem + "mlp.", hidden, config["intermediate_size"])
        yield linear(stem + "router.proj", experts, hidden, OTHER)
        yield Tensor(stem + "router.scale", (hidden,), normal(0.2, 1.0))
        yield Tensor(stem + "router.per_expert_scale", (experts,), uniform(0.5, 1.5))
        yield ExpertBank(stem + "experts.", experts, hidden, config["moe_intermediate_size"])
    yield norm("model.norm", hidden)
    if not config.get("tie_word_embeddings"):
        yield linear("lm_head", config["vocab_size"], hidden, OTHER, gain=2.0)
