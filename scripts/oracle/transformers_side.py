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


def compute(folder, prompt, steps):
    """(Logits, how far its own cached logits are from those of one pass over the whole text)"""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager").eval()
    with torch.no_grad():
        out = model(torch.tensor([prompt]), use_cache=True)
        prompt_logits = out.logits[0].numpy()
        rows, greedy = [], []
        last = out.logits[0, -1]
        for _ in range(steps):
            rows.append(last.numpy())
            greedy.append(int(last.argmax()))
            out = model(torch.tensor([[greedy[-1]]]), past_key_values=out.past_key_values, use_cache=True)
            last = out.logits[0, -1]
        whole = model(torch.tensor([prompt + greedy[:-1]]), use_cache=False).logits[0, len(prompt) - 1:].numpy()
    decode = np.stack(rows)
    return Logits(prompt_logits, decode, greedy), relative_error(whole, decode)
