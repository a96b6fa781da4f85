"""deepseek_v4: parallel residual streams, attention to a window and to compressed entries, experts in every layer; in
the names of transformers, or of the published checkpoints."""
import re

import numpy as np

from ..errors import require, require_multiple
from ..tensors import OTHER, ExpertBank, Tensor, embedding, linear, norm, normal
from . import attention

ARCHITECTURE = "DeepseekV4ForCausalLM"
SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
HASHED, ROUTED = "hash_moe", "moe"
PUBLISHED_RATIOS = {SLIDING: 0, SPARSE: 4, HEAVY: 128}
KEYS = {"experts": "n_routed_experts", "dense_intermediate": None}
DEFAULTS = {
    "attention_bias": False, "compress_rates": {SPARSE: 4, HEAVY: 16}, "compress_rope_theta": 160000.0, "hc_eps": 1e-6,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 64, "hidden_act": "silu", "hidden_size": 128, "index_head_dim": 32,
    "index_n_heads": 4, "index_topk": 8, "max_position_embeddings": 2048, "moe_intermediate_size": 64,
    "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4,
    "num_experts_per_tok": 3, "num_hidden_layers": 5, "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 64,
    "q_lora_rank": 96, "qk_rope_head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus", "sliding_window": 32, "swiglu_limit": 10.0, "tie_word_embeddings": False,
    "vocab_size": 320,
}
NAMES = ("w1", "w3", "w2")  # gate, up, down


def finish(config):
    attention.check_sizes(config, "n_routed_experts")
    layers = config["num_hidden_layers"]
    if "compress_ratios" in config and "layer_types" not in config:
        kinds = {ratio: kind for kind, ratio in PUBLISHED_RATIOS.items()}
        config["layer_types"] = [kinds[ratio] for ratio in config["compress_ratios"]][:layers]
        config["compress_rates"] = {SPARSE: 4, HEAVY: 128}
    if len(config.get("layer_types") or []) != layers:
        config["layer_types"] = [SLIDING, *([SPARSE, HEAVY] * layers)][:layers]
    if len(config.get("mlp_layer_types") or []) != layers:
        hashed = config.get("num_hash_layers", 1)
        config["mlp_layer_types"] = [HASHED if layer < hashed else ROUTED for layer in range(layers)]
    attention.check_layer_types(config, (SLIDING, SPARSE, HEAVY))
    require_multiple(config, "num_attention_heads", config["o_groups"], "o_groups")
    require(config["num_key_value_heads"] == 1, "num_key_value_heads", config["num_key_value_heads"], "1")
    rotated = config["qk_rope_head_dim"]
    require(rotated % 2 == 0 and rotated <= min(config["head_dim"], config["index_head_dim"]), "qk_rope_head_dim", rotated,
            "an even number up to head_dim and index_head_dim")
    config.setdefault("partial_rotary_factor", rotated / config["head_dim"])
    if "rope_parameters" not in config and "rope_scaling" not in config:
        shared = {"partial_rotary_factor": config["partial_rotary_factor"], "rope_type": "default"}
        config["rope_parameters"] = {"main": {**shared, "rope_theta": config["rope_theta"]},
                                     "compress": {**shared, "rope_theta": config["compress_rope_theta"]}}


def published_config(config):
    """The keys of the published config.json instead of those of transformers."""
    config = dict(config)
    rates = config.pop("compress_rates")
    for kind, ratio in PUBLISHED_RATIOS.items():
        require(kind == SLIDING or kind not in config["layer_types"] or rates[kind] == ratio, f"compress_rates.{kind}",
                rates.get(kind), f"{ratio} (published configurations know no other)")
    config["compress_ratios"] = [PUBLISHED_RATIOS[kind] for kind in config.pop("layer_types")]
    hashed = config.pop("mlp_layer_types").count(HASHED)
    config["num_hash_layers"] = hashed
    nested = config.pop("rope_parameters", {})
    compress = nested.get("compress", {})
    if compress.get("rope_type") == "yarn":
        config["rope_scaling"] = {"type": "yarn", **{key: compress[key] for key in (
            "factor", "beta_fast", "beta_slow", "original_max_position_embeddings") if key in compress}}
    config.pop("partial_rotary_factor")
    return config


def published_name(name):
    name = name.removeprefix("model.").replace("attn.norm.weight", "attn.kv_norm.weight")
    return name.replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")


def published_dtype(name, dtype):
    return "F32" if re.search(r"hc_|\.ape$|attn_sink$|gate\.bias$", name) else dtype


def _streams(stem, config, site):
    count = config["hc_mult"]
    rows = 2 * count + count * count
    yield Tensor(f"{stem}hc_{site}_base", (rows,), normal(0.3))
    yield Tensor(f"{stem}hc_{site}_fn", (rows, count * config["hidden_size"]), normal((count * config["hidden_size"]) ** -0.5))
    yield Tensor(f"{stem}hc_{site}_scale", (3,), normal(0.2, 1.0))


def _compressor(stem, config, rate, width, overlap):
    """Projections are twice as wide where windows overlap: one half serves the next window."""
    out = (2 if overlap else 1) * width
    yield Tensor(stem + "ape", (rate, out), normal(0.3))
    yield norm(stem + "norm", width)
    yield linear(stem + "wgate", out, config["hidden_size"], OTHER)
    yield linear(stem + "wkv", out, config["hidden_size"], OTHER)


def _attention(stem, config, kind):
    hidden, width, heads = config["hidden_size"], config["head_dim"], config["num_attention_heads"]
    low, groups = config["q_lora_rank"], config["o_groups"]
    yield Tensor(stem + "attn_sink", (heads,), normal(1.0))
    yield norm(stem + "norm", width)
    yield norm(stem + "q_norm", low)
    yield linear(stem + "wkv", width, hidden)
    yield linear(stem + "wo_a", groups * config["o_lora_rank"], heads * width // groups)
    yield linear(stem + "wo_b", hidden, groups * config["o_lora_rank"])
    yield linear(stem + "wq_a", low, hidden)
    yield linear(stem + "wq_b", heads * width, low)
    if kind == SLIDING:
        return
    rate = config["compress_rates"][kind]
    yield from _compressor(stem + "compressor.", config, rate, width, overlap=kind == SPARSE)
    if kind == SPARSE:
        index_heads, index_width = config["index_n_heads"], config["index_head_dim"]
        yield from _compressor(stem + "indexer.compressor.", config, rate, index_width, overlap=True)
        yield linear(stem + "indexer.weights_proj", index_heads, hidden, OTHER)
        yield linear(stem + "indexer.wq_b", index_heads * index_width, low)


def _experts_of_ids(count):
    """Distinct experts for every token id."""
    def fill(generator, shape):
        return np.argsort(generator.random((shape[0], count)), axis=1)[:, : shape[1]]
    return fill


def _experts(stem, config, hashed):
    hidden, count, intermediate = config["hidden_size"], config["n_routed_experts"], config["moe_intermediate_size"]
    yield linear(stem + "gate", count, hidden, OTHER)
    if hashed:
        yield Tensor(stem + "gate.tid2eid", (config["vocab_size"], config["num_experts_per_tok"]),
                     _experts_of_ids(count), dtype="I64")
    else:
        yield Tensor(stem + "gate.bias", (count,), normal(0.1))
    yield ExpertBank(stem + "experts.", count, hidden, intermediate, NAMES)
    shared = config["n_shared_experts"] * intermediate
    yield from attention.gated_mlp(stem + "shared_experts.", hidden, shared, NAMES)


def tensors(config):
    hidden, count = config["hidden_size"], config["hc_mult"]
    yield embedding("model.embed_tokens", config["vocab_size"], hidden)
    for layer, kind in enumerate(config["layer_types"]):
        stem = f"model.layers.{layer}."
        yield from _streams(stem, config, "attn")
        yield norm(stem + "attn_norm", hidden)
        yield from _attention(stem + "attn.", config, kind)
        yield from _streams(stem, config, "ffn")
        yield norm(stem + "ffn_norm", hidden)
        yield from _experts(stem + "ffn.", config, config["mlp_layer_types"][layer] == HASHED)
    yield Tensor("model.hc_head.hc_base", (count,), normal(0.3))
    yield Tensor("model.hc_head.hc_fn", (count, count * hidden), normal((count * hidden) ** -0.5))
    yield Tensor("model.hc_head.hc_scale", (1,), normal(0.2, 1.0))
    yield norm("model.norm", hidden)
    yield linear("head", config["vocab_size"], hidden, OTHER, gain=2.0)
