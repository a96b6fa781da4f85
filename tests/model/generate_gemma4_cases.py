#!/usr/bin/env python3
"""Writes tests/data/golden/gemma4.*: small checkpoints of Gemma 4 with logits that transformers computed in float32.

Usage: generate_gemma4_cases.py [FOLDER]   (needs: pip install torch transformers==5.17.0 safetensors)

They have what a fresh model does not: layer_scalar, router.scale and per_expert_scale other than 1; a hidden size that
is no square number; keys as older configurations have them. Attention and routing are mild enough for a comparison in
bf16 to mean something.
  gemma4.older  as published: inside a multimodal config, prefix model.language_model., global_* keys, default layer
                types and rotations, experts apart from each other in modelopt's NVFP4, values that are keys
  gemma4.plain  text only: prefix model., fused bf16 experts, per_layer_config, rotations of its own, values of their
                own in full layers, a head of its own, no soft cap
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from golden_case import write_logits

SHAPE = dict(vocab_size=160, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6,
             top_k_experts=2, moe_intermediate_size=32, max_position_embeddings=1024, rms_norm_eps=1e-6,
             hidden_activation="gelu_pytorch_tanh", num_kv_shared_layers=0, attention_bias=False,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
CASES = {
    "gemma4.older": dict(global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=24,
                         final_logit_softcapping=2.0, tie_word_embeddings=True, use_bidirectional_attention="vision"),
    "gemma4.plain": dict(attention_k_eq_v=False, sliding_window=7, tie_word_embeddings=False,
                         num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
                         per_layer_config={"1": {"head_dim": 24, "num_key_value_heads": 4}},
                         rope_parameters={
                             "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                             "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.6,
                                                "rope_theta": 20000.0, "factor": 2.0}}),
}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def fill(model, generator):
    """Every parameter, exact in bf16."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("layer_scalar"):
            value = 0.9 + 0.2 * torch.rand(parameter.shape, generator=generator)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            value = 0.4 + 0.1 * noise
        elif name.endswith("per_expert_scale"):
            value = 1 + 0.4 * noise
        elif name.endswith("router.scale") or parameter.ndim == 1:
            value = 1 + 0.2 * noise
        elif name.endswith("router.proj.weight"):
            value = 3 * noise
        else:
            value = 1.4 * noise / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value.to(torch.bfloat16).float())
    for name, buffer in model.named_buffers():  # layer_scalar is one
        if name.endswith("layer_scalar"):
            value = 0.7 + 0.6 * torch.rand(buffer.shape, generator=generator)
            buffer.copy_(value.to(torch.bfloat16).float())


def quantize(weight):
    """NVFP4 of a matrix [rows, columns]: (codes, scales, global scale, the values that these stand for)."""
    blocks = weight.reshape(weight.shape[0], -1, 16)
    largest = blocks.abs().amax(-1)
    scale_2 = (largest.max() / (6 * 448)).float()
    scales = (largest / 6 / scale_2).to(torch.float8_e4m3fn)
    step = scales.float() * scale_2
    size = (blocks.abs() / step[..., None])
    codes = (size[..., None] - E2M1).abs().argmin(-1)
    values = E2M1[codes] * step[..., None] * torch.where(blocks < 0, -1.0, 1.0)
    codes = (codes + 8 * (blocks < 0)).reshape(weight.shape).to(torch.uint8)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales, scale_2, values.reshape(weight.shape)


def quantized_experts(model, tensors):
    """Replaces the model's experts with what NVFP4 makes of them, and adds that to the tensors."""
    for index, layer in enumerate(model.model.layers):
        gate_up, down = layer.experts.gate_up_proj.data, layer.experts.down_proj.data
        rows = gate_up.shape[1] // 2
        for expert in range(gate_up.shape[0]):
            for name, matrix in (("gate_proj", gate_up[expert, :rows]), ("up_proj", gate_up[expert, rows:]),
                                 ("down_proj", down[expert])):
                stem = f"model.language_model.layers.{index}.experts.{expert}.{name}."
                codes, scales, scale_2, values = quantize(matrix)
                tensors[stem + "weight"], tensors[stem + "weight_scale"] = codes, scales
                tensors[stem + "weight_scale_2"] = scale_2
                matrix.copy_(values)


def write_case(folder, name, seed):
    options = {**SHAPE, **CASES[name]}
    generator = torch.Generator().manual_seed(seed)
    config = Gemma4TextConfig(**json.loads(json.dumps(options)))
    config._attn_implementation = "eager"
    model = Gemma4ForCausalLM(config).float().eval()
    fill(model, generator)
    tensors, older = {}, name == "gemma4.older"
    if older:
        quantized_experts(model, tensors)
    for key, value in model.state_dict().items():
        if older and (".experts." in key or key == "lm_head.weight"):
            continue
        key = key.replace("model.", "model.language_model.", 1) if older else key
        tensors[key] = value.to(torch.bfloat16).contiguous().clone()
    prompt = torch.randint(3, SHAPE["vocab_size"], (150,), generator=generator).tolist()
    at = [0, 1, 6, 7, 8, 23, 24, 25, 63, 64, 127, 128, 149]
    case = folder / name
    case.mkdir(parents=True, exist_ok=True)
    text = {**options, "model_type": "gemma4_text"}
    quantization = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                    "ignore": ["lm_head", "*self_attn*", "*.mlp.*", "*router*"]}
    written = {"model_type": "gemma4", "text_config": text, "quantization_config": quantization} if older else text
    (case / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    write_logits(case, model, prompt, at, seed)
    save_file(tensors, case / "model.safetensors")


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "data" / "golden"
    torch.manual_seed(0)
    with torch.no_grad():
        for number, case_name in enumerate(CASES):
            write_case(root, case_name, 107 + number)
