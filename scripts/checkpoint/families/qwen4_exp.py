"""qwen4_exp_text (Qwen3.8): the layers of Qwen3.5 around parallel residual streams, n-gram embeddings in a few layers,
full attention to blocks of tokens that an indexer selects."""
from itertools import accumulate, islice

import numpy as np

from ..errors import require, require_multiple
from ..tensors import OTHER, TABLE, Tensor, constant, embedding, linear, norm, normal
from . import delta_net

ARCHITECTURE = "Qwen4ExpForCausalLM"
WRAPPER_ARCHITECTURE = "Qwen4ExpForConditionalGeneration"
FULL = "qwen_sparse_attention"
KEYS = {"dense_intermediate": None, "window": None}
DEFAULTS = {
    **delta_net.DEFAULTS, "hc_count": 4, "hc_lowrank": 16, "heads_per_ngram": 2, "indexer_budget": 32,
    "indexer_compress_ratio": 4, "indexer_head_dim": 64, "indexer_kv_heads": 1, "indexer_n_heads": 4,
    "make_ngram_vocab_size_divisible_by": 16, "ngram_size": 3, "ngram_vocab_size_base": 500, "norm_topk_prob": True,
    "output_gate_type": "sigmoid", "ple_conv_kernel_size": 4, "ple_embed_dim": 64, "ple_layer_ids": [2],
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000.0, "rope_type": "default"},
    "seed": 1234, "split_ngram_parts": 4,
}
MASK64 = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def finish(config):
    delta_net.finish(config, FULL)
    # Only in layers with a delta net; of a list made for another number of layers what fits stays.
    layers = config["num_hidden_layers"]
    config["ple_layer_ids"] = [layer for layer in sorted(set(config["ple_layer_ids"] or [])) if layer <= layers]
    for layer in config["ple_layer_ids"]:
        require(layer >= 1 and config["layer_types"][layer - 1] == delta_net.LINEAR, "ple_layer_ids", layer,
                "numbers, from 1, of layers with linear attention")
    heads = (config["ngram_size"] - 1) * config["heads_per_ngram"]
    require_multiple(config, "ple_embed_dim", heads, "(ngram_size - 1) * heads_per_ngram")
    require_multiple(config, "indexer_budget", config["indexer_compress_ratio"], "indexer_compress_ratio")
    require(config["indexer_kv_heads"] == 1, "indexer_kv_heads", config["indexer_kv_heads"], "1")
    rotated = int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    require(rotated % 2 == 0 and rotated <= config["indexer_head_dim"], "rotated dimensions", rotated,
            "an even number up to indexer_head_dim")


def _splitmix64(value):
    value = (value + GAMMA) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def _primes_from(start):
    candidate = max(start, 2)
    while True:
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            yield candidate
        candidate += 1


def ngram_constants(config, index):
    """(multipliers, table sizes, offsets) of the index-th n-gram layer: odd multipliers, small enough for an id times
    one to stay below 2^63; table sizes are primes, and run on from one layer to the next."""
    half = max(1, (2**63 - 1) // config["vocab_size"] // 2)
    seed = config["seed"] + 10007 * index
    multipliers = [2 * (_splitmix64((seed + GAMMA * (i + 1)) & MASK64) % half) + 1 for i in range(config["ngram_size"])]
    heads = (config["ngram_size"] - 1) * config["heads_per_ngram"]
    sizes = list(islice(_primes_from(config["ngram_vocab_size_base"]), heads * index, heads * (index + 1)))
    offsets = [0, *accumulate(sizes[:-1])]
    return tuple(np.array(values, np.int64) for values in (multipliers, sizes, offsets))


def _ngram(stem, config, index):
    hidden, flat = config["hidden_size"], config["hc_count"] * config["hidden_size"]
    width, taps, parts = config["ple_embed_dim"], config["ple_conv_kernel_size"], config["split_ngram_parts"]
    constants = ngram_constants(config, index)
    for name, values in zip(("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"), constants):
        yield Tensor(f"{stem}ple_embedding.{name}", values.shape, constant(values), dtype="I64")
    granularity = config["make_ngram_vocab_size_divisible_by"]
    rows = -(-int(constants[1].sum()) // granularity) * granularity
    require(rows % parts == 0, "rows of the n-gram table", rows, f"a multiple of split_ngram_parts, {parts}")
    for part in range(parts):
        yield embedding(f"{stem}ple_embedding.ngram_embedding.shard_{part}", rows // parts, width // len(constants[1]), role=TABLE)
    yield Tensor(stem + "conv1d.weight", (flat, 1, taps), normal(taps**-0.5))
    yield linear(stem + "key_proj", flat, width, OTHER)
    for name in ("norm_conv", "norm_key", "norm_query"):
        yield norm(stem + name, flat, delta_net.OFFSET)
    yield linear(stem + "value_proj", hidden, width, OTHER)


def _mixer(stem, config, injects):
    flat, low = config["hc_count"] * config["hidden_size"], config["hc_lowrank"]
    if injects:
        yield linear(stem + "block_inject_weight", config["hc_count"], flat, OTHER, gain=config["hc_count"])
    yield norm(stem + "hc_norm", flat, delta_net.OFFSET)
    yield linear(stem + "input_mix_weight_down", low, flat, OTHER, gain=config["hc_count"])
    yield linear(stem + "input_mix_weight_up", flat, low, OTHER)


def _indexer(stem, config):
    width = config["indexer_head_dim"]
    rows = (config["indexer_n_heads"] + config["indexer_kv_heads"]) * width
    yield linear(stem + "index_qk_proj", rows, config["hidden_size"], OTHER)
    yield norm(stem + "k_layernorm", width, delta_net.OFFSET)
    yield norm(stem + "q_layernorm", width, delta_net.OFFSET)


def tensors(config):
    yield embedding("model.embed_tokens", config["vocab_size"], config["hidden_size"])
    for layer, kind in enumerate(config["layer_types"]):
        stem = f"model.layers.{layer}."
        if layer + 1 in config["ple_layer_ids"]:
            yield from _ngram(stem + "ple.", config, config["ple_layer_ids"].index(layer + 1))
        yield from _mixer(stem + "attn_hyper_connection.", config, injects=True)
        if kind == delta_net.LINEAR:
            yield from delta_net.net(stem + "linear_attn.", config)
        else:
            yield from delta_net.gated_attention(stem + "self_attn.", config)
            yield from _indexer(stem + "self_attn.indexer.", config)
        yield from _mixer(stem + "mlp_hyper_connection.", config, injects=True)
        yield from delta_net.experts(stem + "mlp.", config)
    yield from _mixer("model.hyper_connection_mixer.", config, injects=False)
    if not config.get("tie_word_embeddings"):
        yield linear("lm_head", config["vocab_size"], config["hidden_size"], OTHER, gain=2.0)
