"""Checks and tensors of the attention that several families share."""
from ..errors import require, require_multiple
from ..tensors import bias, linear, norm


def check_sizes(config, experts_key="num_experts", top_k_key="num_experts_per_tok"):
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "vocab_size", "max_position_embeddings", experts_key, top_k_key):
        require(isinstance(config.get(key), int) and config[key] >= 1, key, config.get(key), "a whole number from 1")
    require(config[top_k_key] <= config[experts_key], top_k_key, config[top_k_key], f"at most {experts_key}")
    require_multiple(config, "num_attention_heads", config["num_key_value_heads"], "num_key_value_heads")
    require_multiple(config, "head_dim", 2, "rotated dimensions are pairs")


def check_layer_types(config, known):
    types = config["layer_types"]
    require(len(types) == config["num_hidden_layers"], "layer_types", types, "one for each of num_hidden_layers")
    for kind in types:
        require(kind in known, "layer_types", kind, ", ".join(known))


def projections(stem, config, heads_out=1, biased=False):
    """q, k, v and o; heads_out = 2 where q_proj holds a gate beside every head."""
    hidden, width = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    for name, rows, columns in (("q_proj", heads_out * heads * width, hidden), ("k_proj", kv_heads * width, hidden),
                                ("v_proj", kv_heads * width, hidden), ("o_proj", hidden, heads * width)):
        yield linear(stem + name, rows, columns)
        if biased:
            yield bias(f"{stem}{name}.bias", rows)


def head_norms(stem, width, around=1.0):
    yield norm(stem + "q_norm", width, around)
    yield norm(stem + "k_norm", width, around)


def gated_mlp(stem, hidden, intermediate, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    yield linear(stem + gate, intermediate, hidden)
    yield linear(stem + up, intermediate, hidden)
    yield linear(stem + down, hidden, intermediate)
