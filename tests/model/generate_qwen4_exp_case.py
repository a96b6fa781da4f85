#!/usr/bin/env python3
"""Writes tests/data/golden/qwen4_exp.published: a small Qwen3.8 checkpoint as it is published, with logits that
transformers computed in float32.

Usage: generate_qwen4_exp_case.py [FOLDER]   (needs: pip install torch transformers==5.17.0 safetensors)

It has what transformers' own files do not: the text part of a multimodal model, fused experts, full_attention for what
transformers calls qwen_sparse_attention, a list of end tokens, of which the first stands in the text (twice in a row, at
the beginning too), an n-gram table in fp8 with one scale; and gates of n-grams below their floor and at 0, three
streams, three taps, and a sigmoid at the output of delta nets.
"""
import json
import pathlib
import re
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

from golden_case import write_logits

END = 5
CONFIG = dict(
    model_type="qwen4_exp_text", vocab_size=160, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, shared_expert_intermediate_size=24, num_experts=4,
    num_experts_per_tok=2, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=12,
    linear_value_head_dim=20, linear_conv_kernel_dim=4, output_gate_type="sigmoid", hc_count=3, hc_lowrank=12,
    indexer_n_heads=3, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=24, indexer_compress_ratio=4,
    ngram_size=3, heads_per_ngram=2, ngram_vocab_size_base=150, make_ngram_vocab_size_divisible_by=8,
    split_ngram_parts=2, ple_layer_ids=[4, 1, 4], ple_embed_dim=32, ple_conv_kernel_size=3, seed=77, rms_norm_eps=1e-6,
    max_position_embeddings=1024, hidden_act="silu", tie_word_embeddings=False, attention_bias=False,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    eos_token_id=[END, 9], bos_token_id=0,
    rope_parameters={"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                     "mrope_section": [2, 1, 1], "mrope_interleaved": True})
TABLE = "ple_embedding.ngram_embedding."
FLOOR, ZERO = -1 + 2.0**-23, -1.0  # offsets from 1 of the keys' norm: products below the floor, and none


def fill(model, generator, scales):
    """Every parameter that is saved, exact in the format that it is saved in."""
    streams, hidden = CONFIG["hc_count"], CONFIG["hidden_size"]
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if TABLE in name:
            scale = scales[name] = torch.tensor(0.0117).bfloat16().float()
            tensor.copy_((noise / 0.02).to(torch.float8_e4m3fn).float() * scale)
            continue
        if name.endswith("linear_attn.norm.weight"):
            value = 1 + 0.3 * noise
        elif "norm" in name and name.endswith("weight"):
            value = 0.3 * noise
        elif name.endswith(("A_log", "dt_bias")):
            value = 0.5 * noise
        elif "conv1d" in name:
            value = noise / tensor.shape[-1] ** 0.5
        else:
            value = 1.2 * noise / tensor.shape[-1] ** 0.5
        if "input_mix_weight_down" in name or "block_inject" in name:
            value = streams * value
        value = value.to(torch.bfloat16).float()
        if name.endswith("norm_key.weight"):
            value[hidden:2 * hidden], value[2 * hidden:] = FLOOR, ZERO
        tensor.copy_(value)


def published(saved, scales):
    """transformers' tensors, which are split and unquantized, as they are published."""
    tensors, experts = {}, {}
    for name, value in saved.items():
        name = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        expert = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)_proj\.weight", name)
        if expert:
            experts.setdefault(expert[1], {})[expert[3], int(expert[2])] = value.to(torch.bfloat16)
        elif TABLE in name:
            stem = name[:name.index(TABLE) + len(TABLE)]
            scale = next(iter(scales.values()))
            tensors[stem + "weight_scale_2"] = scale.to(torch.bfloat16).reshape(1)
            tensors[name] = (value.float() / scale).to(torch.float8_e4m3fn)
        elif not value.is_floating_point() or name.endswith("norm_key.weight"):
            tensors[name] = value
        else:
            tensors[name] = value.to(torch.bfloat16)
    for stem, parts in experts.items():
        count = range(CONFIG["num_experts"])
        tensors[stem + ".gate_up_proj"] = torch.stack([torch.cat([parts["gate", e], parts["up", e]]) for e in count])
        tensors[stem + ".down_proj"] = torch.stack([parts["down", e] for e in count])
    return {name: value.contiguous().clone() for name, value in tensors.items()}


def write_case(case, seed):
    generator = torch.Generator().manual_seed(seed)
    config = Qwen4ExpTextConfig(**json.loads(json.dumps({k: v for k, v in CONFIG.items() if k != "model_type"})))
    config._attn_implementation = "eager"
    model = Qwen4ExpForCausalLM(config).float().eval()
    scales = {}
    fill(model, generator, scales)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(pathlib.Path(folder) / "model.safetensors")
    case.mkdir(parents=True, exist_ok=True)
    save_file(published(saved, scales), case / "model.safetensors")
    wrapper = {"model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"], "text_config": CONFIG}
    (case / "config.json").write_text(json.dumps(wrapper, indent=2) + "\n")
    prompt = torch.randint(10, CONFIG["vocab_size"], (150,), generator=generator).tolist()
    for place in (0, 7, 8, 40, 42, 99, 148):
        prompt[place] = END
    prompt[60] = 9  # ends a text, not a segment
    write_logits(case, model, prompt, [0, 1, 2, 3, 8, 9, 10, 23, 26, 27, 28, 43, 61, 149], seed)


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "data" / "golden"
    with torch.no_grad():
        write_case(root / "qwen4_exp.published", 31)
