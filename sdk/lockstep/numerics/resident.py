"""A state that lies on a device, as the sequence of arrays that it stands for: each is copied when it is asked for.

A claim's steps pass it on from one to the next, its root is hashed where it lies, and who saves or publishes a tensor
reads that one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from lockstep.numerics.arrays import Array
from lockstep.protocol.errors import DoctorError, Mismatch
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.types import StateRoot

_T = TypeVar("_T")


class DeviceFailed(DoctorError):
    """A device that was at work does not go on: its memory is full, or it is gone."""


class Resident(Sequence[Array | None], Generic[_T]):
    """One array per entry, None = EMPTY."""

    def __init__(
        self, where: object, layout: Sequence[TensorHeader | None], tensors: Sequence[_T | None],
        copy: Callable[[_T], Array], root: Callable[[], StateRoot],
    ) -> None:  # fmt: skip
        """`where` is the device, `copy` reads a tensor from it, and `root` hashes the whole state there."""
        self.where = where
        self.tensors = tuple(tensors)
        self._layout, self._copy, self._root = tuple(layout), copy, root
        self._arrays: dict[int, Array] = {}

    def root(self, layout: Sequence[TensorHeader | None]) -> StateRoot:
        """`trace.layout_root` of the arrays, none of which is copied; raises Mismatch for those of another layout."""
        if self._layout != tuple(layout):
            raise Mismatch("a state on a device is of another layout", hint="the tensors are of another job")
        return self._root()

    @overload
    def __getitem__(self, k: int) -> Array | None: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Array | None]: ...
    def __getitem__(self, k: Any) -> Any:
        """The array of an entry, the same object each time."""
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        tensor = self.tensors[k]
        if tensor is None:
            return None
        k %= len(self)
        if k not in self._arrays:
            self._arrays[k] = self._copy(tensor)
        return self._arrays[k]

    def __len__(self) -> int:
        """Entries, the EMPTY ones too."""
        return len(self.tensors)
