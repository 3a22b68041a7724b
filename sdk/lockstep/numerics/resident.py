"""A state in a device's memory that acts as a sequence of arrays; each array is copied on first access.

The steps of a claim pass it from one to the next, and its root is hashed on the device. Saving or publishing a tensor
copies that tensor alone.
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
    """A device failed while in use: it is out of memory, or lost."""


class Resident(Sequence[Array | None], Generic[_T]):
    """A state on a device: a sequence with one array per entry, None for EMPTY."""

    def __init__(
        self, where: object, layout: Sequence[TensorHeader | None], tensors: Sequence[_T | None],
        copy: Callable[[_T], Array], root: Callable[[], StateRoot],
    ) -> None:  # fmt: skip
        """`where` is the device, `copy` reads a tensor from it, and `root` hashes the whole state on it."""
        self.where = where
        self.tensors = tuple(tensors)
        self._layout, self._copy, self._root = tuple(layout), copy, root
        self._arrays: dict[int, Array] = {}

    def root(self, layout: Sequence[TensorHeader | None]) -> StateRoot:
        """Returns `trace.layout_root` of the arrays without copying them. Raises Mismatch for another layout."""
        if self._layout != tuple(layout):
            raise Mismatch("a state on a device is of another layout", hint="the tensors are of another job")
        return self._root()

    @overload
    def __getitem__(self, k: int) -> Array | None: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Array | None]: ...
    def __getitem__(self, k: Any) -> Any:
        """Returns the array of an entry, the same object at each access."""
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
        """Returns the number of entries, EMPTY ones included."""
        return len(self.tensors)
