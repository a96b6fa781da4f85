"""MXFP4: E2M1 codes, a power of two for 32 of them (E8M0), named in three ways."""
import numpy as np

from ..formats import decode_e2m1, decode_e8m0, encode_e2m1, encode_e8m0, pack_pairs, unpack_pairs
from .block_fp8 import PowersOfTwo
from .plain import Entry, Scheme, compressed_tensors_config, patterns

GROUP = 32
E2M1_MAX_EXPONENT = 2  # 4 is the largest power of two among the magnitudes


def _encode(values):
    """(packed codes [N, K/2], scale codes [N, K/32])"""
    blocks = values.astype(np.float64).reshape(len(values), -1, GROUP)
    largest = np.abs(blocks).max(axis=-1)
    _, exponents = np.frexp(largest)  # largest = m * 2^exponent with m in [0.5, 1)
    scales = encode_e8m0(np.where(largest > 0, exponents - 1 - E2M1_MAX_EXPONENT, 0))
    codes = encode_e2m1(blocks / decode_e8m0(scales)[..., None])
    return pack_pairs(codes.reshape(values.shape)), scales


def _decode(packed, scales):
    return decode_e2m1(unpack_pairs(packed)) * np.repeat(decode_e8m0(scales), GROUP, axis=-1)


class GptOss(Scheme):
    """Blocks and scales of whole banks: the layout joins what this makes of single matrices."""

    columns = GROUP
    whole_banks = True

    def encode(self, values):
        return list(_encode(values))

    def decode(self, parts, shape):
        return _decode(parts[0].reshape(shape[0], -1), parts[1])

    def config(self, plain_stems):
        return {"quant_method": "mxfp4", "modules_to_not_convert": patterns(plain_stems, "*", "")}


class CompressedTensors(Scheme):
    columns = GROUP

    def entries(self, stem, shape):
        rows, columns = shape
        return [Entry(stem + ".weight_packed", "U8", (rows, columns // 2)),
                Entry(stem + ".weight_scale", "U8", (rows, columns // GROUP))]

    def encode(self, values):
        return list(_encode(values))

    def decode(self, parts, shape):
        return _decode(*parts)

    def config(self, plain_stems):
        return compressed_tensors_config("mxfp4-pack-quantized", plain_stems,
                                         {"num_bits": 4, "strategy": "group", "group_size": GROUP, "scale_dtype": "uint8"})


class Deepseek(Scheme):
    """Experts as weight (I8) and scale (E8M0); the dense matrices in fp8 blocks with E8M0 scales."""

    columns = GROUP
    quantizes_dense = True

    @property
    def dense(self):
        return PowersOfTwo()

    def entries(self, stem, shape):
        rows, columns = shape
        return [Entry(stem + ".weight", "I8", (rows, columns // 2)), Entry(stem + ".scale", "F8_E8M0", (rows, columns // GROUP))]

    def encode(self, values):
        return list(_encode(values))

    def decode(self, parts, shape):
        return _decode(*parts)

    def config(self, plain_stems):
        return {**PowersOfTwo().config(plain_stems), "scale_fmt": "ue8m0"}
