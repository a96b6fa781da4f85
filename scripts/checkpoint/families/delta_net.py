"""What Qwen3.5 and Qwen3.8 share: the gated delta net, gated attention, experts with a shared one."""
import numpy as np

from ..errors import require, require_multiple
from ..tensors import DENSE, OTHER, ExpertBank, Tensor, linear, norm, normal
from . import attention

LINEAR = "linear_attention"
OFFSET = 0.0  # norm weights of these families are offsets from 1

DEFAULTS = {
    "attention_bias": False, "head_dim": 64, "hidden_act": "silu", "hidden_size": 128, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 32,
    "max_position_embeddings": 2048, "moe_intermediate_size": 64, "num_attention_heads": 4, "num_experts": 8,
    "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "shared_expert_intermediate_size": 64, "tie_word_embeddings": False, "vocab_size": 320,
}


def finish(config, full):
    """full is what the family calls its layers with attention: every fourth one, unless layer_types says otherwise."""
    attention.check_sizes(config)
    layers, interval = config["num_hidden_layers"], config.get("full_attention_interval", 4)
    if len(config.get("layer_types") or []) != layers:
        config["layer_types"] = [full if (layer + 1) % interval == 0 else LINEAR for layer in range(layers)]
    attention.check_layer_types(config, dict.fromkeys((LINEAR, full, "full_attention")))
    require_multiple(config, "linear_num_value_heads", config["linear_num_key_heads"], "linear_num_key_heads")
    require(config["shared_expert_intermediate_size"] >= 1, "shared_expert_intermediate_size",
            config["shared_expert_intermediate_size"], "a whole number from 1")


def _decay(generator, shape):
    """Logarithms of decay rates over three orders of magnitude: heads that forget at once and heads that remember."""
    return generator.uniform(np.log(0.01), np.log(8), shape).astype(np.float32)


def net(stem, config):
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    taps = config["linear_conv_kernel_dim"]
    yield Tensor(stem + "A_log", (heads,), _decay)
    yield Tensor(stem + "conv1d.weight", (2 * keys + values, 1, taps), normal(taps**-0.5))
    yield Tensor(stem + "dt_bias", (heads,), normal(0.5))
    for name, rows, role in (("in_proj_a", heads, OTHER), ("in_proj_b", heads, OTHER),
                             ("in_proj_qkv", 2 * keys + values, DENSE), ("in_proj_z", values, DENSE)):
        yield linear(stem + name, rows, hidden, role)
    yield norm(stem + "norm", config["linear_value_head_dim"])
    yield linear(stem + "out_proj", hidden, values)


def gated_attention(stem, config):
    yield from attention.projections(stem, config, heads_out=2, biased=config.get("attention_bias", False))
    yield from attention.head_norms(stem, config["head_dim"], OFFSET)


def experts(stem, config):
    hidden = config["hidden_size"]
    yield linear(stem + "gate", config["num_experts"], hidden, OTHER)
    yield ExpertBank(stem + "experts.", config["num_experts"], hidden, config["moe_intermediate_size"])
    yield from attention.gated_mlp(stem + "shared_expert.", hidden, config["shared_expert_intermediate_size"])
    yield linear(stem + "shared_expert_gate", 1, hidden, OTHER)
