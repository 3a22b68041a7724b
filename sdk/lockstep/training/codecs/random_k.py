"""Keeps k random elements of each block, the same for all slots of a round: random-k (Stich 2018), CocktailSGD's mask
(Wang 2023).

A keyed permutation of the block's indices selects them. It depends only on round and block, so no indices are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import WireFormat
from lockstep.training.codecs.base import Codec, bounded, flat_of, rows_of
from lockstep.training.codecs.exact import Exact
from lockstep.training.described import Described

_FACTORS = (0x2C1B3C6D, 0x297A2D39, 0x7FEB352D)
"""Odd numbers, one for each turn of the permutation."""
_TURNS = len(_FACTORS)


@dataclass(frozen=True)
class RandomK(Described):
    """`kept` elements of each block, in the permutation's order; the other elements decode to zero."""

    name: ClassVar[str] = "random_k"
    block: int = 4096
    """A power of two, 4 to 2^16."""
    kept: int = 512
    """Elements kept per block."""
    then: Codec = field(default_factory=Exact)
    """The codec of the kept elements."""

    def __post_init__(self) -> None:
        if not (4 <= self.block <= 1 << 16 and self.block & (self.block - 1) == 0 and 1 <= self.kept <= self.block):
            raise UsageError(
                f"{self.kept} of {self.block} elements are kept",
                "block is a power of two, 4 to 65536, and kept 1 to block",
            )

    @property
    def format(self) -> WireFormat:
        """The wire format of the codec that encodes the kept elements."""
        return self.then.format

    def size(self, n: int) -> int:
        """Elements of the payload of n elements."""
        return self.then.size(self._kept(n))

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [size(n)]."""
        padded = rows_of(bounded(x), self.block)
        blocks = torch.arange(padded.shape[0], dtype=torch.int32).unsqueeze(1)
        at = self._permuted(torch.arange(self.kept, dtype=torch.int32).unsqueeze(0), blocks, round)
        kept = torch.index_select(padded.reshape(-1), 0, (at + blocks * self.block).reshape(-1))
        return self.then.encode(kept, round)

    def decode(self, payload: Tensor, n: int, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n], zero where nothing was kept."""
        kept = self.then.decode(payload, self._kept(n), round)
        blocks = torch.arange(-(-n // self.block), dtype=torch.int32).unsqueeze(1)
        place = self._restored(torch.arange(self.block, dtype=torch.int32).unsqueeze(0), blocks, round)
        found = torch.index_select(kept, 0, (torch.clamp(place, max=self.kept - 1) + blocks * self.kept).reshape(-1))
        return flat_of(torch.where(place < self.kept, found.reshape(place.shape), 0.0), n)

    def _kept(self, n: int) -> int:
        return -(-n // self.block) * self.kept

    def _permuted(self, x: Tensor, blocks: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """A permutation of 0 .. block - 1: in each turn a key is added, an odd factor applied, high bits folded in."""
        mask, shift = self.block - 1, self.block.bit_length() // 2
        for turn, factor in enumerate(_FACTORS):
            x = ((x + _key(blocks, round, turn)) * factor) & mask
            x = x ^ (x >> shift)
        return x

    def _restored(self, x: Tensor, blocks: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """The inverse of `_permuted`."""
        mask, shift = self.block - 1, self.block.bit_length() // 2
        for turn in reversed(range(_TURNS)):
            # Twice the shift is all bits of an index, so that folding undoes itself.
            x = x ^ (x >> shift)
            x = (x * pow(_FACTORS[turn], -1, self.block) - _key(blocks, round, turn)) & mask
        return x


def _key(blocks: Tensor, round: Tensor, turn: int) -> Tensor:  # noqa: A002
    """i32: a hash of block, round and turn (the finaliser of MurmurHash3, Appleby 2011, on their sum of products)."""
    h = blocks * 0x1E3779B1 + round * 0x05EBCA77 + (turn + 1) * 0x27D4EB2F
    for factor, shift in ((0x05EBCA6B, 16), (0x42B2AE35, 13)):
        h = (h ^ ((h >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return (h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF
