#!/usr/bin/env python3
"""Writes tests/data/golden/gpt_oss.small: a checkpoint of gpt-oss with logits that transformers computed in float32.

Usage: generate_gpt_oss_case.py [FOLDER]   (needs: pip install torch transformers==5.17.0 safetensors)

It has what a fresh model does not: biases and sinks of all sizes, gates beyond the clamp on either side, layers whose
windows are not where they are by default, a rotation whose corrected dimensions lie inside the head, MXFP4 experts
whose rows are no whole number of tiles.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM

from golden_case import write_logits

OPTIONS = dict(vocab_size=112, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6,
               num_key_value_heads=3, head_dim=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=24,
               layer_types=["full_attention", "sliding_attention"], max_position_embeddings=1024, rms_norm_eps=1e-5,
               rope_parameters={"rope_type": "yarn", "rope_theta": 3000.0, "factor": 6.0, "beta_fast": 16.0,
                                "beta_slow": 1.0, "truncate": True, "original_max_position_embeddings": 96},
               tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def fill(model, generator):
    """Every parameter, exact in bf16."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("gate_up_proj_bias"):
            value = 3 * noise
        elif name.endswith("sinks"):
            value = 2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif ".experts." in name:  # inputs before outputs
            value = 2 * noise / parameter.shape[-2] ** 0.5
        else:
            value = 1.2 * noise / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value.to(torch.bfloat16).float())


def quantize(weight):
    """MXFP4 of [experts, inputs, outputs]: (blocks, scales, the values that these stand for)."""
    rows = weight.transpose(1, 2)
    groups = rows.reshape(*rows.shape[:2], -1, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    step = torch.exp2(exponent)[..., None]
    codes = ((groups.abs() / step)[..., None] - E2M1).abs().argmin(-1)
    values = (E2M1[codes] * step * torch.where(groups < 0, -1.0, 1.0)).reshape(rows.shape).transpose(1, 2)
    codes = (codes + 8 * (groups < 0)).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), (exponent + 127).to(torch.uint8), values


def quantized_experts(model, tensors):
    """Replaces the model's experts with what MXFP4 makes of them, and adds that to the tensors."""
    for name, parameter in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        blocks, scales, values = quantize(parameter.data)
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks.contiguous(), scales.contiguous()
        parameter.data.copy_(values)


def write_case(folder, seed):
    generator = torch.Generator().manual_seed(seed)
    config = GptOssConfig(**json.loads(json.dumps(OPTIONS)))
    config._attn_implementation = "eager"
    model = GptOssForCausalLM(config).float().eval()
    fill(model, generator)
    tensors = {}
    quantized_experts(model, tensors)
    for key, value in model.state_dict().items():
        if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[key] = value.to(torch.bfloat16).contiguous().clone()
    prompt = torch.randint(3, OPTIONS["vocab_size"], (150,), generator=generator).tolist()
    at = [0, 1, 22, 23, 24, 25, 63, 64, 95, 96, 127, 128, 149]
    folder.mkdir(parents=True, exist_ok=True)
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    written = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "swiglu_limit": 7.0, **OPTIONS,
               "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    write_logits(folder, model, prompt, at, seed)
    save_file(tensors, folder / "model.safetensors")


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "data" / "golden"
    torch.manual_seed(0)
    with torch.no_grad():
        write_case(root / "gpt_oss.small", 211)
