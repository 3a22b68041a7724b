"""Top-k per block, with values in 1 to 32 bits: SparseLoCo (2508.15706), DeMo (2411.19870).

Indices and levels are sent as lists, or as ranks of the subset and of the sequence: the same tensor in fewer bits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.storage.formats.base import WireFormat, partition
from lockstep.storage.formats.sparse import HALF, LISTED, Sparse
from lockstep.training.codecs.base import Elementwise, bits_of, bounded, flat_of, rows_of, within
from lockstep.training.codecs.float16 import Float16
from lockstep.training.codecs.uniform import binned

_MAGNITUDE_BITS = 31


@dataclass(frozen=True)
class TopK(Elementwise):
    """The `kept` largest magnitudes of each block, the earlier ones of equals; all other elements become zero."""

    name: ClassVar[str] = "topk"
    block: int = 4096
    """Elements of a block: a power of two, at most 65,536."""
    kept: int = 64
    """Elements kept per block."""
    width: int = 2
    """Bits per value: 1 is a sign; 2, 4, 8 a bin of `uniform`; 16 a binary16; 32 the value itself."""
    group: int = 128
    """The most blocks that share a scale or bins."""
    places: str = LISTED
    """"listed": one index per element; "ranked": the rank of the subset, in fewer bits."""
    levels: str = LISTED
    """"listed": one code per element; "ranked": counts and ranks, only for a width of 2."""

    def __post_init__(self) -> None:
        Sparse(**asdict(self))

    @property
    def format(self) -> WireFormat:
        """The sparse format with the same parameters."""
        return Sparse(**asdict(self))

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """Returns f32 [n]; a kept zero becomes -0, which the wire format distinguishes from elements not kept."""
        n = x.numel()
        rows = rows_of(bounded(x), self.block)
        mask = largest(rows, within(rows, n), self.kept)
        if self.width == HALF:
            values = Float16().encode(rows.reshape(-1), round)
        elif self.width > HALF:
            values = rows.reshape(-1)
        else:
            length = self.block * partition(rows.shape[0], self.group)[1]
            groups, chosen = rows_of(rows.reshape(-1), length), _spread(mask, length)
            values = (_signed(groups, chosen) if self.width == 1 else binned(groups, chosen, self.width)).reshape(-1)
        values = flat_of(values, n)
        return torch.where(flat_of(mask, n), torch.where(values == 0, -0.0, values), 0.0)


def largest(rows: Tensor, own: Tensor, kept: int) -> Tensor:
    """Returns bool [blocks, length]: the `kept` largest magnitudes of each row's own elements, or all if fewer.

    Bisection on the bits of |x| finds the smallest kept magnitude; bisection on the index, the kept ones among equals.
    """
    key = torch.where(own, bits_of(rows.abs()), -1)
    wanted = torch.clamp(own.to(torch.int32).sum(1, keepdim=True), max=kept)
    least = torch.zeros_like(wanted)
    for bit in reversed(range(_MAGNITUDE_BITS)):
        tried = least | (1 << bit)
        least = torch.where((key >= tried).to(torch.int32).sum(1, keepdim=True) >= wanted, tried, least)
    above, equal = key > least, key == least
    left = wanted - above.to(torch.int32).sum(1, keepdim=True)
    place = torch.arange(rows.shape[1], dtype=torch.int32).unsqueeze(0)
    end = torch.zeros_like(wanted)
    for bit in reversed(range(rows.shape[1].bit_length())):
        tried = end + (1 << bit)
        end = torch.where((equal & (place < tried)).to(torch.int32).sum(1, keepdim=True) <= left, tried, end)
    return above | (equal & (place < end))


def _signed(groups: Tensor, chosen: Tensor) -> Tensor:
    """Returns, per group, the mean magnitude of the chosen elements with each element's sign (+ for a zero)."""
    count = chosen.to(torch.int32).sum(1, keepdim=True).to(torch.float32)
    mean = torch.where(chosen, groups.abs(), 0.0).sum(1, keepdim=True) / count
    return torch.where(groups < 0, -mean, mean)


def _spread(mask: Tensor, length: int) -> Tensor:
    """The mask of blocks as one of rows of `length`."""
    return rows_of(mask.reshape(-1).to(torch.int32), length) > 0
