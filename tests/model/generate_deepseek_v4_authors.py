#!/usr/bin/env python3
"""Writes authors.safetensors into tests/data/golden/deepseek_v4.published: logits of the recorded prompt and answer
with the authors' arithmetic, by deepseek_v4_form.py. That form without grids has to give what transformers computed.

Usage: generate_deepseek_v4_authors.py [FOLDER]   (needs NumPy)

rows (I64): positions of the text, prompt and answer; logits (F32): one row for each of them.
"""
import json
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
import numpy as np  # noqa: E402

from deepseek_v4_form import Form, on_grid  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data/golden/deepseek_v4.published"
KINDS = {"F32": np.float32, "I64": np.int64, "BF16": np.uint16}
EVERY = 7  # rows of the prompt; the answer's are all there


def read(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[8 + size + begin:8 + size + end], KINDS[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors


def write(path, tensors):
    header, offset, data = {}, 0, b""
    for name, values in tensors.items():
        kind = "I64" if values.dtype == np.int64 else "F32"
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def error(values, expected):
    return np.linalg.norm(values - expected) / np.linalg.norm(expected)


def check_rounding():
    x = np.array([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 6.0, 0.2, -0.3] + [0.0] * 21])
    assert on_grid(x, "fp4")[0, :11].tolist() == [0, 1, 1, 2, 2, 4, 4, -4, 6, 0, -0.5]
    x = np.array([[448.0, 17.0, 18.0, 19.0, 2.0**-10, 3 * 2.0**-10]])
    assert on_grid(x, "fp8")[0].tolist() == [448.0, 16.0, 18.0, 20.0, 0.0, 2.0**-8]


def main(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    weights, recorded = read(folder / "model.safetensors"), read(folder / "golden.safetensors")
    check_rounding()
    prompt = len(golden["prompt"])
    ids = np.array(golden["prompt"] + golden["greedy"])
    plain, authors = Form(config, weights, False).logits(ids), Form(config, weights, True).logits(ids)
    own = error(plain[golden["prompt_logits_at"]], recorded["prompt_logits"])
    own_decode = error(plain[prompt - 1:prompt - 1 + len(golden["greedy"])], recorded["decode_logits"])
    print(f"without grids {own:.1e} and {own_decode:.1e} from transformers; with them {error(authors, plain):.1e}")
    assert max(own, own_decode) < 1e-5
    rows = np.array([*range(0, prompt - 1, EVERY), *range(prompt - 1, len(ids) - 1)], np.int64)
    write(folder / "authors.safetensors", {"rows": rows, "logits": authors[rows].astype(np.float32)})


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
