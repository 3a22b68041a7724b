"""The interface of codecs: values with a pair of pure functions on tensors and a wire format.

    payload = codec.encode(x, round)              # f32 [codec.size(n)]: exactly representable in codec.format
    decoded = codec.decode(payload, n, round)     # f32 [n]: the tensor that a merge adds up
    rest = residual(x, decoded)                   # added to the next round's difference

Both functions are traced into Programs; a claim commits to the payload. Bits and indices are packed outside, by
`codec.format`. A codec that changes the basis (DCT, random-k) has a field `then`, the codec of the result:
`RandomK(then=TopK(width=4))`.

A NaN, or a magnitude above 2^40, counts as zero and leaves no residual: one bad gradient must not stay in a worker's
residual forever, nor an infinite sum of squares hide all other elements.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import WireFormat
from lockstep.training.described import Described

LARGEST = 2.0**40
"""The largest magnitude that is encoded: the squares of 2^31 such elements have a finite sum."""


class Codec(Protocol):
    """A lossy encoding of tensors; frozen, with its parameters as fields."""

    @property
    def format(self) -> WireFormat:
        """The wire format, which can represent everything that `encode` returns."""

    def size(self, n: int) -> int:
        """Elements of the payload of n elements."""

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002  (the job's word)
        """(f32 [n], i32 ()) -> the payload, f32 [size(n)]."""

    def decode(self, payload: Tensor, n: int, round: Tensor) -> Tensor:  # noqa: A002
        """(f32 [size(n)], n, i32 ()) -> f32 [n]."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the codec's registered name and its fields."""


class Elementwise(Described):
    """A codec whose payload is the decoded tensor."""

    def size(self, n: int) -> int:
        """Returns n: a payload has one element for each of the tensor's."""
        return n

    def decode(self, payload: Tensor, n: int, round: Tensor) -> Tensor:  # noqa: A002
        """Returns the payload, which is the decoded tensor."""
        return payload


def wire_bits(codec: Codec, n: int) -> float:
    """The most bits on the wire for each of n elements of a tensor."""
    return 8 * codec.format.longest(codec.size(n)) / n


def usable(x: Tensor) -> Tensor:
    """Returns bool: True for elements that a codec encodes."""
    return x.abs() <= LARGEST


def bounded(x: Tensor) -> Tensor:
    """Returns x with all other elements zero; raises UsageError for an empty tensor."""
    if x.dim() != 1 or x.numel() == 0 or x.dtype != torch.float32:
        raise UsageError(
            f"a codec got a tensor of dtype {x.dtype} and shape {tuple(x.shape)}",
            "encode a flat f32 tensor that is not empty",
        )
    return torch.where(usable(x), x, 0.0)


def residual(x: Tensor, decoded: Tensor, decay: float = 1.0) -> Tensor:
    """Returns the residual decay (x - decoded), f32 [n] (Karimireddy 2019, algorithm 1); 0 where x counts as zero."""
    return torch.where(usable(x), (x - decoded) * decay, 0.0)


def rows_of(x: Tensor, length: int) -> Tensor:
    """[n] -> [ceil(n / length), length]; zeros fill the last row."""
    return F.pad(x, (0, -x.numel() % length)).reshape(-1, length) if x.numel() % length else x.reshape(-1, length)


def flat_of(rows: Tensor, n: int) -> Tensor:
    """The first n elements of rows."""
    return rows.reshape(-1)[:n]


def within(rows: Tensor, n: int) -> Tensor:
    """bool [rows, length]: which elements of `rows_of` a tensor of n elements are its own."""
    return torch.arange(rows.numel(), dtype=torch.int32).reshape(rows.shape) < n


def bits_of(x: Tensor) -> Tensor:
    """i32: the words of f32."""
    return x.view(torch.int32)


def float_of(bits: Tensor) -> Tensor:
    """f32: the words as floats."""
    return bits.to(torch.int32).view(torch.float32)
