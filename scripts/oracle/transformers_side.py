"""Logits by transformers in float32: eager attention and experts, prompt at once and then id by id from the cache."""
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

from .verdict import Logits, relative_error  # noqa: E402

logging.disable_progress_bar()


def lowest_index_first(values, k, dim=-1, largest=True, sorted=True, **_):  # noqa: A002: torch's name
    """torch.topk that gives equal values to the lower index, as it does on CUDA; on a CPU it promises no order, and index
    scores are exactly 0 often enough for that to decide what a query attends to."""
    ordered, indices = torch.sort(values, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((ordered.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


torch.topk = torch.Tensor.topk = lowest_index_first


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                experts_implementation="eager").eval()


def compute_rounded(folder, ids):
    """Logits of one pass in bf16; None of a model that has no such pass: DeepSeek-V4's mixes types on the way."""
    model = load(folder, torch.bfloat16)
    if model.config.model_type == "deepseek_v4":
        return None
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def compute(folder, prompt, steps):
    """(Logits, how far its own cached logits are from those of one pass over the whole text)"""
    model = load(folder, torch.float32)
    # Its cache takes no model that has delta nets alone: such a one reads the whole text for every id.
    cached = any(kind != "linear_attention" for kind in getattr(model.config, "layer_types", None) or [None])
    with torch.no_grad():
        out = model(torch.tensor([prompt]), use_cache=cached)
        prompt_logits = out.logits[0].numpy()
        rows, greedy = [], []
        for _ in range(steps):
            last = out.logits[0, -1]
            rows.append(last.numpy())
            greedy.append(int(last.argmax()))
            if cached:
                out = model(torch.tensor([greedy[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            else:
                out = model(torch.tensor([prompt + greedy]), use_cache=False)
        whole = model(torch.tensor([prompt + greedy[:-1]]), use_cache=False).logits[0, len(prompt) - 1:].numpy()
    decode = np.stack(rows)
    return Logits(prompt_logits, decode, greedy), relative_error(whole, decode)
