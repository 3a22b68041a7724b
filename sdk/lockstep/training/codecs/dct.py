"""The orthonormal DCT-II of chunks, as in DeMo (2411.19870, section 3.1); another codec encodes the coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import WireFormat
from lockstep.training.codecs.base import Codec, bounded, flat_of, rows_of
from lockstep.training.codecs.topk import TopK
from lockstep.training.described import Described

MAX_EXTENT = 256
"""The most elements of a transform: one chunk of a fold."""


@dataclass(frozen=True)
class DCT(Described):
    """Coefficients of rows x columns consecutive elements, along both; with one row, of one dimension."""

    name: ClassVar[str] = "dct"
    rows: int = 64
    """Rows of a chunk, 1 to 256; 1: a transform of one dimension."""
    columns: int = 64
    """Columns of a chunk, 2 to 256."""
    then: Codec = field(default_factory=lambda: TopK(block=4096, kept=8, width=16))
    """The codec of the coefficients."""

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= MAX_EXTENT and 2 <= self.columns <= MAX_EXTENT):
            raise UsageError(
                f"the DCT has {self.rows} x {self.columns} elements",
                f"use 1 to {MAX_EXTENT} rows and 2 to {MAX_EXTENT} columns",
            )

    @property
    def format(self) -> WireFormat:
        """The format of the codec of the coefficients."""
        return self.then.format

    def size(self, n: int) -> int:
        """Elements of the payload of n elements."""
        return self.then.size(self._padded(n))

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [size(n)]."""
        return self.then.encode(self._transformed(bounded(x), inverse=False), round)

    def decode(self, payload: Tensor, n: int, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n]."""
        return flat_of(self._transformed(self.then.decode(payload, self._padded(n), round), inverse=True), n)

    def _padded(self, n: int) -> int:
        return n + -n % (self.rows * self.columns)

    def _transformed(self, x: Tensor, *, inverse: bool) -> Tensor:
        chunks = rows_of(x, self.rows * self.columns).reshape(-1, self.columns)
        chunks = chunks @ _matrix(self.columns, inverse)
        if self.rows > 1:
            turned = chunks.reshape(-1, self.rows, self.columns).transpose(1, 2).reshape(-1, self.rows)
            turned = turned @ _matrix(self.rows, inverse)
            chunks = turned.reshape(-1, self.columns, self.rows).transpose(1, 2)
        return chunks.reshape(-1)


def _matrix(extent: int, inverse: bool) -> Tensor:
    table = torch.tensor(_table(extent), dtype=torch.float32)
    return table.T.contiguous() if inverse else table


@lru_cache(maxsize=8)
def _table(extent: int) -> list[list[float]]:
    """[element, coefficient]: sqrt(2 / N) cos(pi (2 i + 1) k / 2 N), its column 0 times sqrt(1 / 2)."""
    return [
        [
            math.sqrt((1 if k == 0 else 2) / extent) * math.cos(math.pi * (2 * i + 1) * k / (2 * extent))
            for k in range(extent)
        ]
        for i in range(extent)
    ]
