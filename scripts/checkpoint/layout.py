"""From the tensors of a family to those of files: names, experts apart or joined, and how each is stored."""
from dataclasses import dataclass
from typing import Callable

import numpy as np

from .errors import CheckpointError
from .quantization import Dequantized, Plain, TablePart, plain
from .quantization.plain import Entry
from .tensors import DENSE, EXPERT, TABLE, ExpertBank, Tensor, bias, constant


@dataclass(frozen=True)
class Group:
    """Tensors that lie one after the other in a file; parts() yields their contents in that order, piece by piece."""

    entries: list
    parts: Callable


@dataclass(frozen=True)
class Layout:
    """rename and dtype change what a family says, fused joins a layer's experts where they are not quantized."""

    fused: bool = False
    rename: Callable = lambda name: name
    dtype: Callable = lambda name, dtype: dtype


class Storage:
    """Which scheme a tensor gets. scheme is None for a model that is not quantized; with_dense False leaves the matrices
    outside the experts alone, also where the scheme has a form for them; fp8_table stores n-gram tables in fp8; dequantized
    stores float32 with the values that a reader of the scheme gets."""

    def __init__(self, layout, scheme=None, with_dense=True, fp8_table=False, dequantized=False):
        self.layout, self.scheme, self.dequantized = layout, scheme, dequantized
        self.table = TablePart() if fp8_table else None
        self.dense = scheme.dense if scheme and with_dense and scheme.quantizes_dense else None

    def of(self, tensor):
        scheme = {EXPERT: self.scheme, DENSE: self.dense, TABLE: self.table}.get(tensor.role)
        if scheme is None:
            return self._final(plain(tensor, self.layout.dtype(tensor.name, tensor.dtype)))
        if tensor.shape[1] % scheme.columns:
            raise CheckpointError(f"{tensor.name} has {tensor.shape[1]} columns; allowed: multiples of {scheme.columns} in "
                                  "this format")
        return self._final(scheme)

    def _final(self, scheme):
        return Dequantized(scheme) if self.dequantized else scheme

    def groups(self, tensors, seed):
        for item in tensors:
            if not isinstance(item, ExpertBank):
                yield self._single(item, seed)
                if self.table and not self.dequantized and item.role == TABLE and item.stem.endswith("shard_0"):
                    scale = Tensor(item.stem.removesuffix("shard_0") + "weight_scale", (), constant(TablePart.SCALE))
                    yield self._single(scale, seed)
            elif item.biased:
                yield from self._gpt_oss(item, seed)
            elif self.layout.fused and (self.scheme is None or self.dequantized):
                yield from self._fused(item, seed)
            else:
                for expert in range(item.count):
                    for matrix in item.matrices(expert):
                        yield self._single(matrix, seed)

    def _single(self, tensor, seed):
        scheme = self.of(tensor)
        stem = self.layout.rename(tensor.name)
        stem = stem.removesuffix(".weight") if tensor.name.endswith(".weight") else stem
        return Group(scheme.entries(stem, tensor.shape), lambda: iter(scheme.encode(tensor.values(seed))))

    def _fused(self, bank, seed):
        """gate_up_proj [E, 2I, H], gate first, and down_proj [E, H, I]."""
        prefix, dtype = self.layout.rename(bank.prefix), "F32" if self.dequantized else "BF16"

        def parts(wanted):
            for expert in range(bank.count):
                for matrix in bank.matrices(expert)[wanted]:
                    yield self.of(matrix).encode(matrix.values(seed))[0]

        for name, rows, columns, wanted in (("gate_up_proj", 2 * bank.intermediate, bank.hidden, slice(0, 2)),
                                            ("down_proj", bank.hidden, bank.intermediate, slice(2, 3))):
            yield Group([Entry(prefix + name, dtype, (bank.count, rows, columns))], lambda wanted=wanted: parts(wanted))

    def _gpt_oss(self, bank, seed):
        """Gate and up rows alternate. Plain: input-major [E, in, out]; quantized: blocks and scales, output-major."""
        prefix = self.layout.rename(bank.prefix)

        def matrices(down):
            for expert in range(bank.count):
                gate, up, down_matrix = bank.matrices(expert)
                if down:
                    yield down_matrix.values(seed)
                else:
                    yield np.stack([gate.values(seed), up.values(seed)], axis=1).reshape(-1, bank.hidden)

        for name, rows, columns, down in (("gate_up_proj", 2 * bank.intermediate, bank.hidden, False),
                                          ("down_proj", bank.hidden, bank.intermediate, True)):
            shape = (bank.count, rows, columns)
            self.of(bank.matrices(0)[2 if down else 0])  # refuses what the format cannot hold
            yield self._joined(prefix + name, shape, lambda down=down: matrices(down))
            yield self._single(bias(f"{bank.prefix}{name}_bias", bank.count, rows), seed)

    def _joined(self, name, shape, matrices):
        count, rows, columns = shape
        if self.scheme and not self.dequantized:
            group = self.scheme.columns

            def blocks():
                scales = []  # a sixteenth of the blocks
                for matrix in matrices():
                    packed, codes = self.scheme.encode(matrix)
                    scales.append(codes)
                    yield packed
                yield from scales

            return Group([Entry(name + "_blocks", "U8", (count, rows, columns // group, group // 2)),
                          Entry(name + "_scales", "U8", (count, rows, columns // group))], blocks)

        def transposed():
            final = self._final(self.scheme or Plain("BF16"))
            for matrix in matrices():
                yield np.ascontiguousarray(final.encode(matrix)[0].T)

        return Group([Entry(name, "F32" if self.dequantized else "BF16", (count, columns, rows))], transposed)

    def plain_linears(self, tensors):
        """Stems, as named in the files, of the matrices outside the experts that are not quantized."""
        for item in tensors:
            if not isinstance(item, ExpertBank) and len(item.shape) == 2 and item.name.endswith(".weight"):
                if "embed" not in item.name and (item.role != DENSE or self.dense is None):
                    yield self.layout.rename(item.stem)
