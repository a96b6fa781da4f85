"""E4M3 in blocks of 128 x 128, those at the edges smaller; the scale is a factor, also where its name says inverse."""
import numpy as np

from ..formats import E4M3_MAX, decode_e4m3, decode_e8m0, encode_e4m3, encode_e8m0
from .plain import Entry, Scheme

BLOCK = 128


def _expand(scales, shape):
    return np.repeat(np.repeat(scales, BLOCK, axis=0), BLOCK, axis=1)[: shape[0], : shape[1]]


def _largest(values):
    """Largest magnitude of each block."""
    rows, columns = (np.arange(0, size, BLOCK) for size in values.shape)
    return np.maximum.reduceat(np.maximum.reduceat(np.abs(values), rows, axis=0), columns, axis=1)


def _shape(shape):
    return tuple(-(-size // BLOCK) for size in shape)


class Inverse(Scheme):
    """weight and weight_scale_inv (float32)."""

    quantizes_dense = True

    def entries(self, stem, shape):
        return [Entry(stem + ".weight", "F8_E4M3", shape), Entry(stem + ".weight_scale_inv", "F32", _shape(shape))]

    def encode(self, values):
        largest = _largest(values)
        scales = np.where(largest > 0, largest / E4M3_MAX, 1).astype(np.float32)
        return [encode_e4m3(values.astype(np.float64) / _expand(scales, values.shape)), scales]

    def decode(self, parts, shape):
        return decode_e4m3(parts[0]) * _expand(parts[1], shape)

    def config(self, plain_stems):
        return {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}


class PowersOfTwo(Inverse):
    """weight and scale (E8M0)."""

    def entries(self, stem, shape):
        return [Entry(stem + ".weight", "F8_E4M3", shape), Entry(stem + ".scale", "F8_E8M0", _shape(shape))]

    def encode(self, values):
        largest = _largest(values).astype(np.float64)
        exponents = np.ceil(np.log2(np.where(largest > 0, largest, E4M3_MAX) / E4M3_MAX))
        scales = encode_e8m0(exponents)
        return [encode_e4m3(values / _expand(decode_e8m0(scales).astype(np.float64), values.shape)), scales]

    def decode(self, parts, shape):
        return decode_e4m3(parts[0]) * _expand(decode_e8m0(parts[1]), shape)
