"""Matrices that need no scale, the parts all schemes share, and what a scheme makes of a matrix written plainly."""
from dataclasses import dataclass

import numpy as np

from ..formats import decode_bf16, encode_bf16

BYTES = {"BF16": 2, "F32": 4, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its header line."""

    name: str
    dtype: str
    shape: tuple

    @property
    def size_bytes(self):
        return int(np.prod(self.shape, dtype=np.int64)) * BYTES[self.dtype]


class Scheme:
    """A way to store a matrix [N, K] as one tensor or several.

    entries(stem, shape) are their headers; encode(values) their contents in that order; decode(parts, shape) the
    float32 matrix that a reader makes of them. columns is what K must be a multiple of. config(plain) is the
    quantization_config; plain are the stems of the linear layers that stay as they are. dense is the scheme of
    the matrices outside the experts, where they are quantized.
    """

    columns = 1
    quantizes_dense = False

    @property
    def dense(self):
        return self


class Plain(Scheme):
    """One tensor, called stem + suffix."""

    def __init__(self, dtype, suffix=".weight"):
        self.dtype, self.suffix = dtype, suffix

    def entries(self, stem, shape):
        return [Entry(stem + self.suffix, self.dtype, shape)]

    def encode(self, values):
        if self.dtype == "BF16":
            return [encode_bf16(values)]
        return [np.ascontiguousarray(values, np.int64 if self.dtype == "I64" else np.float32)]

    def decode(self, parts, shape):
        return decode_bf16(parts[0]) if self.dtype == "BF16" else parts[0]


def plain(tensor, dtype):
    """The scheme of a tensor that keeps its name."""
    return Plain(dtype, ".weight" if tensor.name.endswith(".weight") else "")


class Dequantized(Scheme):
    """Float32 under the plain name, with the values that a reader of `scheme` gets."""

    def __init__(self, scheme):
        self.scheme, self.columns = scheme, scheme.columns

    def entries(self, stem, shape):
        suffix = self.scheme.suffix if isinstance(self.scheme, Plain) else ".weight"
        return [Entry(stem + suffix, "I64" if getattr(self.scheme, "dtype", "") == "I64" else "F32", shape)]

    def encode(self, values):
        decoded = self.scheme.decode(self.scheme.encode(values), values.shape)
        return [np.ascontiguousarray(decoded)]

    def decode(self, parts, shape):
        return parts[0]


def modelopt_config(algorithm, plain_stems, **more):
    return {"quant_method": "modelopt", "quant_algo": algorithm, **more, "ignore": patterns(plain_stems, "*", "")}


def compressed_tensors_config(form, plain_stems, weights, activations=None):
    group = {"targets": ["Linear"], "weights": {"type": "float", "symmetric": True, "dynamic": False, **weights}}
    if activations:
        group["input_activations"] = activations
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "ignore": patterns(plain_stems, r"\d+", "re:"), "config_groups": {"group_0": group}}


def patterns(stems, number, prefix):
    """Module names with `number` for the layer, each once; prefix marks those that are patterns."""
    found = {}
    for stem in stems:
        parts = stem.split(".")
        name = ".".join(number if part.isdigit() else part for part in parts)
        if prefix and name != stem:
            name = prefix + name.replace(".", r"\.") + "$"
        found[name] = None
    return list(found)
