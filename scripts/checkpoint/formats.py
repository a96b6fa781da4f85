"""Codes of the number formats, by NumPy: float32 values to codes (nearest, ties to the even code) and back.

Sources: OCP Microscaling Formats 1.0 (E2M1, E8M0), OCP 8-bit Floating Point 1.0 (E4M3).
"""
import numpy as np

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E8M0_BIAS = 127

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_EXPONENT, _MANTISSA = np.arange(127) >> 3, np.arange(127) & 7
_E4M3 = np.where(_EXPONENT == 0, _MANTISSA * 2.0**-9, (8 + _MANTISSA) * 2.0 ** (_EXPONENT - 10.0))


def _nearest_code(magnitudes, values):
    """Index of the nearest magnitude; halfway the even index; beyond the last one the last one."""
    middle = (magnitudes[1:] + magnitudes[:-1]) / 2
    size = np.abs(values.astype(np.float64))
    code = np.searchsorted(middle, size)  # halfway gives the lower one
    halfway = (code < len(middle)) & (size == middle[np.minimum(code, len(middle) - 1)])
    return (code + (halfway & (code % 2 == 1))).astype(np.uint8)


def encode_e2m1(values):
    """float [...] -> uint8 [...], one code of four bits an element."""
    return _nearest_code(_E2M1, values) | (np.signbit(values).astype(np.uint8) << 3)


def decode_e2m1(codes):
    return (np.where(codes & 8, -1.0, 1.0) * _E2M1[codes & 7]).astype(np.float32)


def encode_e4m3(values):
    """float [...] -> uint8 [...]; values beyond 448 become 448."""
    return _nearest_code(_E4M3, values) | (np.signbit(values).astype(np.uint8) << 7)


def decode_e4m3(codes):
    return (np.where(codes & 0x80, -1.0, 1.0) * _E4M3[codes & 0x7F]).astype(np.float32)


def encode_e8m0(exponents):
    """Whole exponents -> uint8 codes; powers of two outside 2^-127 .. 2^127 become the nearest."""
    return np.clip(exponents + E8M0_BIAS, 0, 254).astype(np.uint8)


def decode_e8m0(codes):
    return np.ldexp(1.0, codes.astype(np.int32) - E8M0_BIAS).astype(np.float32)


def encode_bf16(values):
    """float32 [...] -> uint16 [...], to nearest even; values are finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode_bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def pack_pairs(codes):
    """Four-bit codes [..., K] -> uint8 [..., K/2]; the even element is the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_pairs(packed):
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
