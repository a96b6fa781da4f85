"""qwen3_5_moe_text (Qwen3.5 and 3.6): three gated delta nets to one gated attention, experts with a shared one."""
from ..tensors import OTHER, embedding, linear, norm
from . import delta_net

ARCHITECTURE = "Qwen3_5MoeForCausalLM"
WRAPPER_ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
FULL = "full_attention"
KEYS = {}
DEFAULTS = {
    **delta_net.DEFAULTS,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000.0, "rope_type": "default"},
}


def finish(config):
    delta_net.finish(config, FULL)


def tensors(config):
    hidden = config["hidden_size"]
    yield embedding("model.embed_tokens", config["vocab_size"], hidden)
    for layer, kind in enumerate(config["layer_types"]):
        stem = f"model.layers.{layer}."
        yield norm(stem + "input_layernorm", hidden, delta_net.OFFSET)
        if kind == delta_net.LINEAR:
            yield from delta_net.net(stem + "linear_attn.", config)
        else:
            yield from delta_net.gated_attention(stem + "self_attn.", config)
        yield norm(stem + "post_attention_layernorm", hidden, delta_net.OFFSET)
        yield from delta_net.experts(stem + "mlp.", config)
    yield norm("model.norm", hidden, delta_net.OFFSET)
    if not config.get("tie_word_embeddings"):
        yield linear("lm_head", config["vocab_size"], hidden, OTHER, gain=2.0)
