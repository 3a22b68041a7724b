"""Converts a Program's inputs and outputs to numpy arrays: step context, tensors and their bytes, constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32, Const

Array: TypeAlias = npt.NDArray[Any]

DTYPES: dict[int, np.dtype[Any]] = {F32: np.dtype("<f4"), I32: np.dtype("<i4")}
"""Maps each dtype of a Program to numpy's dtype."""


@dataclass(frozen=True)
class StepContext:
    """Inputs of a step besides its state: seed, round, slot and t."""

    seed: bytes
    """32 bytes: the round's randomness."""
    round: int
    slot: int
    t: int
    """The step within the claim, from 1."""

    def __post_init__(self) -> None:
        if len(self.seed) != 32:
            raise UsageError(f"the seed has {len(self.seed)} bytes", hint="give a seed of 32 bytes")
        if not all(0 <= word < 1 << 32 for word in self.words):
            raise UsageError(f"context {self.words}", hint="round, slot and t are 32-bit unsigned integers")

    @property
    def words(self) -> tuple[int, int, int]:
        """The words that a view with tag CONTEXT reads: round, slot, t."""
        return self.round, self.slot, self.t


def to_array(header: TensorHeader, data: bytes | memoryview) -> Array:
    """Decodes a tensor's committed bytes as a read-only array of its shape."""
    if len(data) != 4 * header.elements:
        raise PayloadInvalid(
            f"a tensor of shape {header.shape} has {len(data)} bytes", hint=f"give {4 * header.elements} bytes"
        )
    return np.frombuffer(data, DTYPES[header.dtype]).reshape(header.shape)


def is_frozen(array: Array) -> bool:
    """Returns True if the array's memory cannot be written, neither through the array nor through the arrays that it is
    a view of.
    """
    owner: object = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner.readonly if isinstance(owner, memoryview) else not isinstance(owner, bytearray)


def to_bytes(array: Array) -> bytes:
    """Encodes a tensor as its committed bytes: little-endian words, row-major."""
    return np.ascontiguousarray(array).tobytes()


def const(array: Array) -> Const:
    """Converts a float32 or int32 array to a constant table of a Program."""
    for dtype, name in DTYPES.items():
        if array.dtype == name:
            return Const(TensorHeader(dtype, array.shape), to_bytes(array))
    raise UsageError(f"a constant has dtype {array.dtype}", hint="use float32 or int32")
