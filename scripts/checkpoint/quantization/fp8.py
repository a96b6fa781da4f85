"""E4M3 with one scale for a matrix or one for each row, named in two ways, or one for a table in many parts; scales are
factors."""
import numpy as np

from ..formats import E4M3_MAX, decode_e4m3, encode_e4m3
from .plain import Entry, Scheme, compressed_tensors_config, modelopt_config

INPUT_SCALE = 1 / 64  # of activations, where they are quantized too


def _encode(values, per_channel):
    """(codes [N, K], scales [N, 1] or [1, 1])"""
    largest = np.abs(values).max(axis=1 if per_channel else None, keepdims=True)
    scales = np.where(largest > 0, largest / E4M3_MAX, 1).astype(np.float32)
    return encode_e4m3(values.astype(np.float64) / scales), scales


class Modelopt(Scheme):
    """weight, weight_scale: a scalar (then with input_scale), or [N]."""

    quantizes_dense = True

    def __init__(self, per_channel):
        self.per_channel = per_channel

    def entries(self, stem, shape):
        entries = [Entry(stem + ".weight", "F8_E4M3", shape),
                   Entry(stem + ".weight_scale", "F32", shape[:1] if self.per_channel else ())]
        return entries if self.per_channel else [*entries, Entry(stem + ".input_scale", "F32", ())]

    def encode(self, values):
        codes, scales = _encode(values, self.per_channel)
        return [codes, scales[:, 0]] if self.per_channel else [codes, scales[0, 0], np.float32(INPUT_SCALE)]

    def decode(self, parts, shape):
        return decode_e4m3(parts[0]) * np.reshape(parts[1], (-1, 1))

    def config(self, plain_stems):
        return modelopt_config("FP8_PER_CHANNEL_PER_TOKEN" if self.per_channel else "FP8", plain_stems)


class CompressedTensors(Scheme):
    """weight, weight_scale: [1] or [N, 1]."""

    quantizes_dense = True

    def __init__(self, per_channel):
        self.per_channel = per_channel

    def entries(self, stem, shape):
        return [Entry(stem + ".weight", "F8_E4M3", shape),
                Entry(stem + ".weight_scale", "F32", (shape[0], 1) if self.per_channel else (1,))]

    def encode(self, values):
        return list(_encode(values, self.per_channel))

    def decode(self, parts, shape):
        return decode_e4m3(parts[0]) * np.reshape(parts[1], (-1, 1))

    def config(self, plain_stems):
        strategy = "channel" if self.per_channel else "tensor"
        return compressed_tensors_config(
            "float-quantized", plain_stems, {"num_bits": 8, "strategy": strategy},
            {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"})


class TablePart(Scheme):
    """A part of a table whose rows are standard normal: weight alone. The scale, for all parts, lies beside them."""

    SCALE = 2.0**-6  # 448 codes for values up to 7

    def entries(self, stem, shape):
        return [Entry(stem + ".weight", "F8_E4M3", shape)]

    def encode(self, values):
        return [encode_e4m3(values.astype(np.float64) / self.SCALE)]

    def decode(self, parts, shape):
        return decode_e4m3(parts[0]) * np.float32(self.SCALE)
