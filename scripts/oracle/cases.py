"""Models of odd sizes and prompts past every boundary, from a family and a seed."""
import random
from dataclasses import dataclass

from checkpoint import families
from checkpoint.model import Model, Request, schemes_of
from checkpoint.quantization import SCHEMES

STEPS = 6
EXPERTS, TOP_K = ("num_experts", "n_routed_experts", "num_local_experts"), ("num_experts_per_tok", "top_k_experts")
INDEXED = ("index_topk", "indexer_budget")
MANY_STEPS = 40
LONGEST = 600  # many chunks of a prompt
EOS_SHARE = 0.03  # of the prompt: segments of n-gram embeddings end there
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"


@dataclass
class Case:
    """One comparison; the prompt goes in at once, then `steps` ids are chosen one by one."""

    family: str
    seed: int
    scheme: str
    model: Model
    prompt: list
    steps: int = STEPS

    @property
    def chooses(self):
        """Whether a token uses some of the experts, or may attend to some of the entries before it."""
        config = self.model.config
        experts = next(config[key] for key in EXPERTS if key in config)
        return experts > next(config[key] for key in TOP_K if key in config) or any(key in config for key in INDEXED)

    @property
    def sizes(self):
        config, text = self.model.config, []
        for label, keys in (("H", ("hidden_size",)), ("I", ("moe_intermediate_size", "intermediate_size")),
                            ("E", EXPERTS), ("k", TOP_K), ("L", ("num_hidden_layers",)), ("d", ("head_dim",))):
            text.append(label + str(next(config[key] for key in keys if key in config)))
        heads = f"{config['num_attention_heads']}/{config['num_key_value_heads']}"
        return " ".join([*text, "heads " + heads, f"n{len(self.prompt)}+{self.steps}", *self._storage()])

    def _storage(self):
        request = self.model.request
        marks = {"fused": request.experts == "fused", "apart": request.experts == "separate",
                 "experts only": request.with_dense is False, "dense too": request.with_dense is True,
                 "published": request.published, "fp8 table": request.fp8_table}
        return [name for name, there in marks.items() if there]


def _base(rng, scheme):
    """Sizes that all families have. Where the format allows it, nothing is a multiple of a block."""
    unit = max(8, SCHEMES[scheme].columns if scheme else 1)
    experts = rng.randint(14, 64) if rng.random() < 0.2 else rng.randint(2, 13)
    kv_heads = rng.choice((1, 2, 3))
    top_k = rng.choice((1, 1, experts, *[rng.randint(1, min(experts, 10)) for _ in range(4)]))
    return {"hidden": unit * rng.randint(-(-48 // unit), 208 // unit), "intermediate": unit * rng.randint(1, 160 // unit),
            "experts": experts, "top_k": top_k, "layers": rng.choice((1, 2, 3, 5)),
            "heads": kv_heads * rng.choice((1, 2, 4, 5)), "kv_heads": kv_heads,
            "head_dim": rng.choice((16, 32, 48, 64, 128)), "vocab": rng.randint(90, 400)}


def _common(rng):
    """Settings that all families have."""
    return {"rms_norm_eps": rng.choice((1e-6, 1e-5, 1e-3))}


def _storage(rng, family, scheme, settings):
    """How a checkpoint that holds the same model may be written."""
    text = families.WRAPPERS.get(family, family)
    chosen = {"with_dense": rng.choice((None, True, False))} if scheme else {}
    if not scheme and text != "gpt_oss" and rng.random() < 0.5:
        chosen["experts"] = rng.choice(("fused", "separate"))
    if text == "qwen4_exp_text":
        chosen["fp8_table"] = rng.random() < 0.4
    if settings.get("compress_rates") == {SPARSE: 4, HEAVY: 128}:  # published configurations know no others
        chosen["published"] = rng.random() < 0.7
    return chosen


def _layers_of(rng, sizes, kinds, last=None):
    """Kinds of layers in any order, every other time; last: what the last one has to be."""
    if rng.random() < 0.5:
        return {}
    chosen = [rng.choice(kinds) for _ in range(sizes["layers"])]
    return {"layer_types": [*chosen[:-1], last or chosen[-1]]}


def _around(rng, *boundaries):
    """A prompt's length: every other time past all boundaries, else just before, at or after one of them; seldom long."""
    if rng.random() < 0.05:
        return rng.randint(LONGEST - 100, LONGEST)
    if rng.random() < 0.5:
        return rng.randint(1, 3) * max(boundaries) + rng.randint(1, STEPS)
    boundary = rng.choice(boundaries)
    return max(1, boundary + rng.choice((-STEPS // 2, -1, 0, 1)))


def _qwen3_moe(rng, scheme):
    sizes, settings = _base(rng, scheme), {"norm_topk_prob": rng.random() < 0.7, "tie_word_embeddings": rng.random() < 0.3,
                                           "attention_bias": rng.random() < 0.3}
    sizes["dense_intermediate"] = 8 * rng.randint(3, 20)
    if rng.random() < 0.3:
        settings.update(use_sliding_window=True, sliding_window=rng.choice((5, 16, 33)))
    if sizes["layers"] > 1:
        settings.update(rng.choice(({}, {"mlp_only_layers": [0]}, {"decoder_sparse_step": 2})))
    if rng.random() < 0.4:
        settings["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": rng.choice((2.0, 4.0)),
                                       "original_max_position_embeddings": 64}
    return sizes, settings, _around(rng, 1, settings.get("sliding_window", 64), 64)


def _delta_net(rng, sizes):
    key_heads = rng.choice((1, 2))
    return {"linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * rng.choice((1, 2, 3)),
            "linear_key_head_dim": rng.choice((16, 32)), "linear_value_head_dim": rng.choice((16, 32, 48)),
            "shared_expert_intermediate_size": 8 * rng.randint(2, 12), "full_attention_interval": rng.choice((2, 3, 4)),
            "linear_conv_kernel_dim": rng.choice((2, 4, 4, 5)), "attention_bias": rng.random() < 0.3,
            "rope_parameters.partial_rotary_factor": rng.choice((0.25, 0.5))}


def _stretched(rng):
    """YaRN beside the rotation that a family has, now and then."""
    if rng.random() < 0.6:
        return {}
    return {"rope_parameters.rope_type": "yarn", "rope_parameters.factor": rng.choice((2.0, 4.0)),
            "rope_parameters.original_max_position_embeddings": 64}


def _qwen3_5_moe(rng, scheme):
    sizes = _base(rng, scheme)
    kinds = _layers_of(rng, sizes, ("linear_attention", "full_attention"))
    settings = {**_delta_net(rng, sizes), **_stretched(rng), **kinds, "tie_word_embeddings": rng.random() < 0.3}
    return sizes, settings, _around(rng, 64)


def _qwen4_exp(rng, scheme):
    sizes = _base(rng, scheme)
    ratio = rng.choice((2, 4))
    sizes.update(head_dim=rng.choice((32, 64)), layers=rng.choice((1, 2, 4, 5)))
    heads_per_ngram, ngram, budget = rng.choice((1, 2)), rng.choice((2, 3, 4)), ratio * rng.choice((4, 8))
    settings = {**_delta_net(rng, sizes), **_stretched(rng), "full_attention_interval": rng.choice((2, 3)),
                "seed": rng.choice((1234, 7)), "split_ngram_parts": rng.choice((1, 4)),
                "tie_word_embeddings": rng.random() < 0.3, "hc_count": rng.choice((2, 4)), "hc_lowrank": rng.choice((8, 12)),
                "indexer_compress_ratio": ratio, "indexer_budget": budget,
                "indexer_n_heads": rng.choice((1, 3)), "indexer_head_dim": rng.choice((32, 48)),
                "heads_per_ngram": heads_per_ngram, "ngram_size": ngram, "ple_conv_kernel_size": rng.choice((2, 4, 5)),
                "ple_embed_dim": (ngram - 1) * heads_per_ngram * rng.choice((8, 12)),
                "ngram_vocab_size_base": rng.randint(50, 400), "output_gate_type": rng.choice(("sigmoid", "silu", None)),
                "ple_layer_ids": rng.choice(([1], [1, 4], []))}
    if settings["full_attention_interval"] == 2:
        settings["ple_layer_ids"] = [1, 3] if settings["ple_layer_ids"] else []
    return sizes, settings, _around(rng, budget)


def _gpt_oss(rng, scheme):
    sizes = _base(rng, scheme)
    sizes["window"] = rng.choice((5, 16, 33))
    settings = {**_layers_of(rng, sizes, ("sliding_attention", "full_attention")),
                "rope_parameters.truncate": rng.random() < 0.5, "rope_parameters.factor": rng.choice((4.0, 32.0)),
                "rope_parameters.original_max_position_embeddings": rng.choice((64, 4096))}
    return sizes, settings, _around(rng, sizes["window"])


def _gemma4(rng, scheme):
    sizes = _base(rng, scheme)
    sizes.update(window=rng.choice((5, 16, 33)), dense_intermediate=8 * rng.randint(3, 20), layers=rng.choice((1, 2, 6, 7)))
    global_heads = rng.choice([n for n in (1, 2, 3) if sizes["heads"] % n == 0])
    settings = {"global_head_dim": rng.choice((32, 64, 96)), "num_global_key_value_heads": global_heads,
                "attention_k_eq_v": rng.random() < 0.7, "final_logit_softcapping": rng.choice((30.0, None)),
                "tie_word_embeddings": rng.random() < 0.7,
                "rope_parameters.full_attention.partial_rotary_factor": rng.choice((0.25, 0.5, 1.0)),
                "rope_parameters.sliding_attention.rope_theta": rng.choice((1000.0, 10000.0)),
                **_layers_of(rng, sizes, ("sliding_attention", "full_attention"), last="full_attention")}
    return sizes, settings, _around(rng, sizes["window"])


def _deepseek_v4(rng, scheme):
    sizes = _base(rng, scheme)
    groups = rng.choice((1, 2))
    rate = rng.choice((16, 32, 128))
    sizes.update(heads=groups * rng.choice((1, 2, 3)), kv_heads=1, head_dim=rng.choice((32, 64)), window=rng.choice((5, 16, 33)))
    settings = {"o_groups": groups, "o_lora_rank": 8 * rng.randint(2, 8), "q_lora_rank": 8 * rng.randint(3, 12),
                "qk_rope_head_dim": rng.choice((8, 16)), "hc_mult": rng.choice((2, 4)), "index_head_dim": rng.choice((16, 32)),
                "index_n_heads": rng.choice((1, 3)), "index_topk": rng.choice((3, 8)), "swiglu_limit": rng.choice((0.5, 10.0)),
                "num_hash_layers": rng.choice((0, 1, 2)), "compress_rates": {SPARSE: rng.choice((4, 4, 8)), HEAVY: rate},
                "hc_sinkhorn_iters": rng.choice((1, 4, 20)), "hc_eps": rng.choice((1e-6, 1e-3)),
                "routed_scaling_factor": rng.choice((1.0, 1.5, 2.5)),
                **_layers_of(rng, sizes, ("sliding_attention", SPARSE, HEAVY))}
    if rng.random() < 0.5:
        factor = settings["qk_rope_head_dim"] / sizes["head_dim"]
        settings["rope_parameters"] = {
            "main": {"partial_rotary_factor": factor, "rope_theta": 10000.0, "rope_type": "default"},
            "compress": {"partial_rotary_factor": factor, "rope_theta": 160000.0, "rope_type": "yarn", "factor": 4.0,
                         "attention_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64}}
    return sizes, settings, _around(rng, rate, settings["compress_rates"][SPARSE] * settings["index_topk"], sizes["window"])


DRAW = {"qwen3_moe": _qwen3_moe, "qwen3_5_moe_text": _qwen3_5_moe, "gemma4_text": _gemma4, "gpt_oss": _gpt_oss,
        "deepseek_v4": _deepseek_v4, "qwen4_exp_text": _qwen4_exp}


def draw(family, seed):
    """The case of a family and a seed: always the same one."""
    rng = random.Random(f"{family}:{seed}")
    schemes = schemes_of(family)
    # The first seeds of a family go through its formats, unquantized first.
    scheme = (None, *schemes)[seed % (len(schemes) + 1)]
    sizes, settings, length = DRAW[families.WRAPPERS.get(family, family)](rng, scheme)
    settings.update(_common(rng))
    storage = _storage(rng, family, scheme, settings)
    model = Model(Request(family, seed=seed, quantization=scheme, sizes=sizes, settings=settings, **storage))
    eos = model.config["eos_token_id"]
    prompt = [eos if rng.random() < EOS_SHARE else rng.randrange(sizes["vocab"]) for _ in range(length)]
    return Case(family, seed, scheme, model, prompt, MANY_STEPS if rng.random() < 0.1 else STEPS)
