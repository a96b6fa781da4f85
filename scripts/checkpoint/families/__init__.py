"""Families by model type. A module of a family has

ARCHITECTURE, TOKENS   its class in transformers; begin, end and padding ids where no --config says otherwise
DEFAULTS               a small configuration, complete but for what finish() derives
KEYS                   configuration keys of the sizes that go by other names than in SIZES
finish(config)         fills in what follows from other keys (layer types), checks all of it: CheckpointError
tensors(config)        yields Tensor and ExpertBank, named as transformers saves the text model
"""
from . import deepseek_v4, gemma4, gpt_oss, qwen3_5_moe, qwen3_moe, qwen4_exp

# size on the command line -> configuration key
SIZES = {
    "hidden": "hidden_size", "intermediate": "moe_intermediate_size", "dense_intermediate": "intermediate_size",
    "experts": "num_experts", "top_k": "num_experts_per_tok", "layers": "num_hidden_layers",
    "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "vocab": "vocab_size",
    "context": "max_position_embeddings", "window": "sliding_window",
}

TEXT = {
    "qwen3_moe": qwen3_moe,
    "qwen3_5_moe_text": qwen3_5_moe,
    "gemma4_text": gemma4,
    "gpt_oss": gpt_oss,
    "deepseek_v4": deepseek_v4,
    "qwen4_exp_text": qwen4_exp,
}
# multimodal wrapper -> model type of its text part
WRAPPERS = {"qwen3_5_moe": "qwen3_5_moe_text", "gemma4": "gemma4_text", "qwen4_exp": "qwen4_exp_text"}
NAMES = [*TEXT, *WRAPPERS]
