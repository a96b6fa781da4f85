"""NVFP4: E2M1 codes, an E4M3 scale for 16 of them, one float32 scale for the matrix, named in two ways."""
import numpy as np

from ..formats import E2M1_MAX, E4M3_MAX, decode_e2m1, decode_e4m3, encode_e2m1, encode_e4m3, pack_pairs, unpack_pairs
from .plain import Entry, Scheme, compressed_tensors_config, modelopt_config

GROUP = 16
# What activations would be divided by where they are quantized too; readers that keep them in bf16 pass over it.
INPUT_SCALE = 1 / 64


def _encode(values, scale_of_matrix):
    """(packed codes [N, K/2], block scale codes [N, K/16]) for values ~ code * scale * scale_of_matrix."""
    blocks = values.astype(np.float64).reshape(len(values), -1, GROUP) / scale_of_matrix
    scales = encode_e4m3(np.abs(blocks).max(axis=-1) / E2M1_MAX)
    divisor = decode_e4m3(scales).astype(np.float64)[..., None]
    codes = encode_e2m1(np.divide(blocks, divisor, out=np.zeros_like(blocks), where=divisor > 0))
    return pack_pairs(codes.reshape(values.shape)), scales


class Modelopt(Scheme):
    """weight, weight_scale, weight_scale_2 (a factor), input_scale."""

    columns = GROUP

    def entries(self, stem, shape):
        rows, columns = shape
        return [Entry(stem + ".weight", "U8", (rows, columns // 2)),
                Entry(stem + ".weight_scale", "F8_E4M3", (rows, columns // GROUP)),
                Entry(stem + ".weight_scale_2", "F32", ()), Entry(stem + ".input_scale", "F32", ())]

    def encode(self, values):
        scale = np.float32(np.abs(values).max() / (E4M3_MAX * E2M1_MAX))
        return [*_encode(values, scale), scale, np.float32(INPUT_SCALE)]

    def decode(self, parts, shape):
        scale = decode_e4m3(parts[1]) * parts[2]
        return decode_e2m1(unpack_pairs(parts[0])) * np.repeat(scale, GROUP, axis=-1)

    def config(self, plain_stems):
        return modelopt_config("NVFP4", plain_stems, group_size=GROUP)


class CompressedTensors(Scheme):
    """weight_packed, weight_scale, weight_global_scale (a divisor), input_global_scale."""

    columns = GROUP

    def entries(self, stem, shape):
        rows, columns = shape
        return [Entry(stem + ".weight_packed", "U8", (rows, columns // 2)),
                Entry(stem + ".weight_scale", "F8_E4M3", (rows, columns // GROUP)),
                Entry(stem + ".weight_global_scale", "F32", (1,)), Entry(stem + ".input_global_scale", "F32", (1,))]

    def encode(self, values):
        divisor = np.float32(E4M3_MAX * E2M1_MAX / np.abs(values).max())
        return [*_encode(values, 1 / np.float64(divisor)), divisor, np.float32(1 / INPUT_SCALE)]

    def decode(self, parts, shape):
        scale = decode_e4m3(parts[1]) / parts[2]
        return decode_e2m1(unpack_pairs(parts[0])) * np.repeat(scale, GROUP, axis=-1)

    def config(self, plain_stems):
        return compressed_tensors_config("nvfp4-pack-quantized", plain_stems,
                                         {"num_bits": 4, "strategy": "tensor_group", "group_size": GROUP})
