"""What the generators of golden cases share: a model's own logits, written the way the tests read them."""
import json

import torch
from safetensors.torch import save_file

DECODED = 24


def greedy(model, prompt, count):
    ids, rows, cache = list(prompt), [], None
    fed = torch.tensor([ids])
    for _ in range(count):
        out = model(fed, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].float())
        ids.append(int(rows[-1].argmax()))
        fed = torch.tensor([ids[-1:]])
    return ids[len(prompt):], torch.stack(rows)


def relative(got, expected):
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def write_logits(folder, model, prompt, at, seed):
    """golden.json and golden.safetensors of a float32 model, which is rounded to bf16 on the way; `at` says which rows of
    the prompt's logits are kept."""
    ids, decode = greedy(model, prompt, DECODED)
    whole = torch.tensor([prompt + ids[:-1]])
    logits = model(whole).logits[0]
    rounded = model.to(torch.bfloat16)(whole).logits[0].float()
    top = decode.topk(2).values
    golden = {"seed": seed, "transformers": "5.17.0", "prompt": prompt, "prompt_logits_at": at, "greedy": ids,
              "rel_cached_vs_uncached": relative(decode, logits[len(prompt) - 1:]),
              "rel_bf16_vs_fp32": relative(rounded, logits), "min_top2_margin": float((top[:, 0] - top[:, 1]).min()),
              "distinct_greedy": len(set(ids))}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    save_file({"prompt_logits": logits[at].contiguous(), "decode_logits": decode}, folder / "golden.safetensors")
    print(folder.name, golden | {"prompt": 0}, "std", float(logits.std()))
