#!/usr/bin/env python3
"""Writes tests/data/golden/deepseek_v4.published: a small DeepSeek-V4 checkpoint as it is published, with logits that
transformers computed in float32.

Usage: generate_deepseek_v4_case.py [FOLDER]   (needs: pip install torch transformers==5.17.0 safetensors)

It has what a fresh model and transformers' own files do not: scales other than 1 and bases other than 0 of the residual
streams, gated linear units that reach their limit, a ratio of 128, yarn; keys as in the published config.json; names
without prefix, and F32 where the published files have it.
"""
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from golden_case import write_logits

CONFIG = dict(
    model_type="deepseek_v4", vocab_size=160, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=1, head_dim=32, qk_rope_head_dim=8, q_lora_rank=24, o_groups=2,
    o_lora_rank=16, sliding_window=24, index_n_heads=8, index_head_dim=16, index_topk=6, n_routed_experts=4,
    num_experts_per_tok=2, n_shared_experts=1, scoring_func="sqrtsoftplus", norm_topk_prob=True,
    routed_scaling_factor=1.5, swiglu_limit=0.5, num_hash_layers=2, hc_mult=3, hc_sinkhorn_iters=20, hc_eps=1e-6,
    rms_norm_eps=1e-6, rope_theta=10000.0, compress_rope_theta=160000.0, max_position_embeddings=1024,
    compress_ratios=[0, 4, 128, 4, 0], tie_word_embeddings=False, hidden_act="silu", attention_bias=False,
    rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32,
                  "beta_slow": 1},
    num_nextn_predict_layers=1, bos_token_id=0, eos_token_id=1)
IN_F32 = ("hc_", "attn_sink", ".ape", "gate.bias")


def fill(model, generator):
    """Every parameter and buffer that is saved, exact in bf16."""
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("tid2eid"):
            tensor.copy_(torch.randint(0, CONFIG["n_routed_experts"], tensor.shape, generator=generator))
            continue
        if "scale" in name or name.endswith("norm.weight"):
            value = 1 + 0.3 * noise
        elif name.endswith("fn"):
            value = 2 * noise / tensor.shape[-1] ** 0.5
        elif "base" in name or "bias" in name or "sink" in name:
            value = 0.4 * noise
        else:
            value = 1.2 * noise / tensor.shape[-1] ** 0.5
        tensor.copy_(value.to(torch.bfloat16).to(tensor.dtype))


def published(name):
    for ours, theirs in (("model.", ""), ("hc_head.hc_", "hc_head_"), ("attn.norm.", "attn.kv_norm."),
                         ("embed_tokens", "embed")):
        name = name.replace(ours, theirs, 1)
    return name


def write_case(case, seed):
    generator = torch.Generator().manual_seed(seed)
    config = DeepseekV4Config(**json.loads(json.dumps({k: v for k, v in CONFIG.items() if k != "model_type"})))
    config._attn_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).float().eval()
    fill(model, generator)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(pathlib.Path(folder) / "model.safetensors")
    tensors = {}
    for name, value in saved.items():
        wide = any(part in name for part in IN_F32) or not value.is_floating_point()
        tensors[published(name)] = (value if wide else value.to(torch.bfloat16)).contiguous().clone()
    prompt = torch.randint(2, CONFIG["vocab_size"], (150,), generator=generator).tolist()
    case.mkdir(parents=True, exist_ok=True)
    (case / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(tensors, case / "model.safetensors")
    write_logits(case, model, prompt, [0, 1, 2, 3, 4, 7, 23, 24, 25, 63, 126, 127, 128, 149], seed)


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "data" / "golden"
    with torch.no_grad():
        write_case(root / "deepseek_v4.published", 213)
