#!/usr/bin/env python3
"""Writes the seed inputs of safetensors_fuzz, config_fuzz, checkpoint_fuzz (the smallest models of each format) and
packed_file_fuzz.
Run from anywhere; the files under corpus/ are committed, so this is only needed to change them."""
import json
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
WIDTH, E, V, HEADS, KV, HD = 16, 2, 4, 2, 1, 4
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}

CONFIG = {"model_type": "qwen3_moe", "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS,
          "num_key_value_heads": KV, "head_dim": HD, "moe_intermediate_size": WIDTH, "num_experts": E,
          "num_experts_per_tok": 1, "vocab_size": V, "tie_word_embeddings": True}
QUANTIZATION = {
    "bf16": None,
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*", "lm_head"]},
    "compressed": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                   "ignore": ["re:.*self_attn.*", "lm_head"], "config_groups": {"g": {"targets": ["Linear"]}}},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["self_attn"]},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["*self_attn*"]},
    "deepseek_fp4": {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"},
    "fused": None,
}
# One expert matrix in a format that is refused: endings and shapes beside its stem.
REFUSED = {
    "gptq": {".qweight": ("I32", [2, 16])},
    "int4": {".weight_packed": ("I32", [16, 2])},
    "deepseek_fp8": {".weight": ("F8_E4M3", [16, 16]), ".scale": ("F8_E8M0", [1, 1])},
    "fp8_channel": {".weight": ("F8_E4M3", [16, 16]), ".weight_scale": ("F32", [16, 1])},
    "fp8_tensor": {".weight": ("F8_E4M3", [16, 16]), ".weight_scale": ("F32", [])},
    "f16": {".weight": ("F16", [16, 16])},
}


def width(scheme):
    """Hidden and intermediate size: MXFP4 needs twice the others' smallest."""
    return 2 * WIDTH if scheme in ("mxfp4", "deepseek_fp4") else WIDTH


def quantized(stem, rows, cols, scheme):
    if scheme == "modelopt":
        return {stem + ".weight": ("U8", [rows, cols // 2]), stem + ".weight_scale": ("F8_E4M3", [rows, cols // 16]),
                stem + ".weight_scale_2": ("F32", [])}
    if scheme == "compressed":
        return {stem + ".weight_packed": ("U8", [rows, cols // 2]),
                stem + ".weight_scale": ("F8_E4M3", [rows, cols // 16]), stem + ".weight_global_scale": ("F32", [1])}
    if scheme == "mxfp4":
        return {stem + ".weight_packed": ("U8", [rows, cols // 2]), stem + ".weight_scale": ("U8", [rows, cols // 32])}
    if scheme == "deepseek_fp4":
        return {stem + ".weight": ("I8", [rows, cols // 2]), stem + ".scale": ("F8_E8M0", [rows, cols // 32])}
    if scheme == "fp8":
        return {stem + ".weight": ("F8_E4M3", [rows, cols]), stem + ".weight_scale_inv": ("F32", [1, 1])}
    return {stem + ".weight": ("BF16", [rows, cols])}


def tensors(scheme):
    layer, size = "model.layers.0.", width(scheme)
    shapes = {"model.embed_tokens.weight": [V, size], "model.norm.weight": [size],
              layer + "input_layernorm.weight": [size], layer + "post_attention_layernorm.weight": [size],
              layer + "mlp.gate.weight": [E, size]}
    for name, shape in (("q_proj", [HEADS * HD, size]), ("k_proj", [KV * HD, size]), ("v_proj", [KV * HD, size]),
                        ("o_proj", [size, HEADS * HD]), ("q_norm", [HD]), ("k_norm", [HD])):
        shapes[layer + "self_attn." + name + ".weight"] = shape
    result = {name: ("BF16", shape) for name, shape in shapes.items()}
    experts = layer + "mlp.experts."
    if scheme == "fused":
        return {**result, experts + "gate_up_proj": ("BF16", [E, 2 * size, size]),
                experts + "down_proj": ("BF16", [E, size, size])}
    for e in range(E):
        for part in ("gate_proj", "up_proj", "down_proj"):
            result.update(quantized(f"{experts}{e}.{part}", size, size, scheme))
    return result


def refused(scheme):
    result = tensors("bf16")
    stem = "model.layers.0.mlp.experts.1.up_proj"
    del result[stem + ".weight"]
    return {**result, **{stem + ending: described for ending, described in REFUSED[scheme].items()}}


def framed(config, index, file):
    return b"".join(struct.pack("<H", len(part)) + part for part in (config, index)) + file


def image(described):
    header, offset = {}, 0
    for name, (dtype, shape) in described.items():
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"\x3c" * offset  # 0x3c3c is a small bf16, 0x3c is 1.5 in e4m3


def packed(regions, description=b"{}"):
    """A file of packed weights (engine/model/packed_file.h) but for the header's sum, which the target makes right."""
    sections = sum(-(-size // 2**20) for size in regions)
    head = b"FTPACK\r\n" + struct.pack("<4Q", 1, len(description), len(regions), sections) + description
    head += struct.pack(f"<{len(regions) + sections}Q", *regions, *range(sections))
    return head.ljust(4096, b"\0") + bytes(sum(regions))


def main():
    (CORPUS / "packed_file").mkdir(parents=True, exist_ok=True)
    (CORPUS / "packed_file" / "small").write_bytes(packed([64, 8, 4, 16]))
    (CORPUS / "packed_file" / "empty").write_bytes(packed([], b""))
    for folder in ("safetensors", "config", "checkpoint"):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    small = image({"a": ("F32", [2]), "b": ("BF16", [0, 3]), "c": ("U8", [1, 2, 3])})
    (CORPUS / "safetensors" / "small").write_bytes(small)
    for scheme, quantization in QUANTIZATION.items():
        sizes = {"hidden_size": width(scheme), "moe_intermediate_size": width(scheme)}
        config = json.dumps({**CONFIG, **sizes, "quantization_config": quantization}, separators=(",", ":")).encode()
        (CORPUS / "config" / scheme).write_bytes(config)
        index = json.dumps({"weight_map": {"model.norm.weight": "a.safetensors"}}).encode() if scheme == "fp8" else b""
        (CORPUS / "checkpoint" / scheme).write_bytes(framed(config, index, image(tensors(scheme))))
    for scheme in REFUSED:
        config = json.dumps(CONFIG, separators=(",", ":")).encode()
        (CORPUS / "checkpoint" / scheme).write_bytes(framed(config, b"", image(refused(scheme))))
    yarn = {**CONFIG, "use_sliding_window": True, "sliding_window": 8, "attention_bias": True, "rope_theta": 1e6,
            "mlp_only_layers": [1], "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32, "truncate": False}}
    (CORPUS / "config" / "yarn").write_bytes(json.dumps(yarn, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
