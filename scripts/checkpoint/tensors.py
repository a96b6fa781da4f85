"""What a family says about its tensors, and where their values come from.

Values follow from the seed and the tensor's name alone: the same model has the same weights whatever the order, the
layout (experts apart or in one tensor, prefixes) and the files. The name that counts is the one in the text-only layout
of transformers with experts apart.
"""
import zlib
from dataclasses import dataclass
from typing import Callable

import numpy as np

# What quantization schemes choose by.
EXPERT = "expert"  # a matrix of a routed expert
DENSE = "dense"  # a large matrix of attention, a delta net, a dense MLP or a shared expert
TABLE = "table"  # rows of n-gram embeddings
OTHER = "other"  # norms, biases, routers, embeddings, the output matrix: never quantized


@dataclass(frozen=True)
class Tensor:
    """One tensor. fill(generator, shape) makes its values; dtype is how it is stored where no scheme takes it."""

    name: str
    shape: tuple
    fill: Callable
    role: str = OTHER
    dtype: str = "BF16"

    @property
    def stem(self):
        return self.name.removesuffix(".weight")

    def values(self, seed):
        generator = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        return self.fill(generator, self.shape)


@dataclass(frozen=True)
class ExpertBank:
    """The routed experts of one layer: gate and up [intermediate, hidden], down [hidden, intermediate] each.

    biased: with biases, as gpt-oss has them. names are those of experts that stand apart.
    """

    prefix: str  # "model.layers.0.mlp.experts."
    count: int
    hidden: int
    intermediate: int
    names: tuple = ("gate_proj", "up_proj", "down_proj")
    biased: bool = False
    gain: float = 1.0

    def matrices(self, expert):
        """gate, up and down of one expert."""
        shapes = ((self.intermediate, self.hidden), (self.intermediate, self.hidden), (self.hidden, self.intermediate))
        return [linear(f"{self.prefix}{expert}.{name}", *shape, role=EXPERT, gain=self.gain)
                for name, shape in zip(self.names, shapes)]


def normal(std, mean=0.0):
    return lambda generator, shape: (mean + std * generator.standard_normal(shape, np.float32)).astype(np.float32)


def uniform(low, high):
    return lambda generator, shape: generator.uniform(low, high, shape).astype(np.float32)


def constant(values):
    return lambda generator, shape: np.broadcast_to(values, shape)


def linear(stem, rows, columns, role=DENSE, gain=1.0):
    """A matrix whose products keep the size of what goes in, times gain."""
    return Tensor(stem + ".weight", (rows, columns), normal(gain * columns**-0.5), role)


def norm(stem, width, around=1.0):
    """The weight of a norm: near 1, or near `around` where weights are offsets."""
    return Tensor(stem + ".weight", (width,), normal(0.1, around))


def bias(name, *shape, std=0.1):
    return Tensor(name, shape, normal(std))


def embedding(stem, rows, width, std=1.0, role=OTHER):
    return Tensor(stem + ".weight", (rows, width), normal(std), role)
