"""Shared memory of a process and its confined child, through which all tensors pass.

The parent creates every segment with a fixed size, and reads only the layout that it chose. A segment is reused once
the parent holds no tensor in it.
"""

from __future__ import annotations

import fcntl
import math
import os
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from mmap import PAGESIZE

import numpy as np

from lockstep.base.mapping import file_of, mapped
from lockstep.numerics.arrays import Array, is_frozen
from lockstep.protocol.errors import TryLater

ALIGNMENT = 64
KEPT = 3
"""Most unused segments of one size that are kept for reuse."""
LARGE = 1 << 24
"""Size in bytes from which a tensor backed by a file is passed as that file."""
F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1, 2, 4

Form = tuple[np.dtype[np.generic], tuple[int, ...]]
"""Dtype and shape of a tensor."""


@dataclass(frozen=True)
class Spot:
    """Location of a tensor in a segment."""

    segment: int
    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(eq=False)
class Segment:
    """One shared memory segment."""

    number: int
    handle: int
    """File descriptor, open until the child has it; negative afterwards."""
    size: int
    memory: np.ndarray | None
    """The mapped memory; None for a read-only file, which its tensor keeps mapped."""

    @staticmethod
    def make(size: int) -> tuple[int, np.ndarray]:
        """Creates a segment of `size` bytes; returns its file and memory.

        Raises TryLater if the system has no memory left.
        """
        handle = -1
        try:
            handle = os.memfd_create("lockstep", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(handle, size)
            # INVARIANT: no child takes memory away under a tensor that its parent reads.
            fcntl.fcntl(handle, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
            return handle, mapped(handle, size, writes=True)
        except OSError as error:
            if handle >= 0:
                os.close(handle)
            raise TryLater(f"no memory could be shared with a confined process: {error.strerror}") from error

    def shut(self) -> None:
        """Closes the file; the mapping is released with the last tensor in it."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


@dataclass
class Segments:
    """The parent's side of one child's segments, used by one thread at a time; tensors may be released in any
    thread.
    """

    news: list[Segment] = field(default_factory=list)
    """Segments that the child does not know yet."""
    gone: list[int] = field(default_factory=list)
    """Numbers of segments that the child may release."""
    _made: int = 0
    _by_number: dict[int, Segment] = field(default_factory=dict)
    _free: dict[int, list[Segment]] = field(default_factory=dict)
    _users: Counter[Segment] = field(default_factory=Counter)
    _released: deque[Segment] = field(default_factory=deque)
    _known: dict[int, tuple[weakref.ref[Array], Spot, Array | None]] = field(default_factory=dict)
    """Tensors that the child already has: by id the object, its location, and the copy at that location, if it is
    one.
    """

    def room(self, forms: Sequence[Form]) -> tuple[list[Spot], list[Array]]:
        """Reserves space in one segment for tensors of these forms; returns their locations and the tensors,
        read-only.
        """
        self._take_back()
        offsets, size = [], 0
        for dtype, shape in forms:
            offsets.append(size)
            size += -(-dtype.itemsize * math.prod(shape) // ALIGNMENT) * ALIGNMENT
        segment = self._segment(-(-max(size, 1) // PAGESIZE) * PAGESIZE)
        assert segment.memory is not None, "what is written lies in memory"
        places, arrays = [], []
        for (dtype, shape), offset in zip(forms, offsets, strict=True):
            flat = np.frombuffer(segment.memory.data.toreadonly(), dtype, math.prod(shape), offset)
            # A view of a view refers to the first array, which lives as long as any of its views.
            self._users[segment] += 1
            weakref.finalize(flat, self._released.append, segment).atexit = False
            places.append(Spot(segment.number, offset, dtype.str, shape))
            arrays.append(flat.reshape(shape))
            self._remember(arrays[-1], places[-1], None)
        return places, arrays

    def given(self, arrays: Sequence[Array | None]) -> tuple[list[Spot | None], list[Array]]:
        """Returns the locations of tensors for the child, and the objects that must live until it has read them.

        A tensor that the child does not have is copied; an immutable one is copied once, and not at all if it is a
        large file.
        """
        found = {id(a): self._place(a) or self._file(a) for a in arrays if a is not None}
        fresh = {id(a): a for a in arrays if a is not None and found[id(a)] is None}
        copies: list[Array] = []
        if fresh:
            places, copies = self.room([(a.dtype, a.shape) for a in fresh.values()])
            for array, place, copy in zip(fresh.values(), places, copies, strict=True):
                np.copyto(self._writable(place), array)
                found[id(array)] = place
                if is_frozen(array):
                    self._remember(array, place, copy)
        return [None if a is None else found[id(a)] for a in arrays], copies

    def close(self) -> None:
        """Releases the segments in which no tensor is alive; the others are released with their last tensor."""
        self._known.clear()
        self._free.clear()
        for segment in list(self._by_number.values()):
            segment.shut()

    # -- inside

    def _place(self, array: Array) -> Spot | None:
        known = self._known.get(id(array))
        return known[1] if known is not None and known[0]() is array else None

    def _file(self, array: Array) -> Spot | None:
        """Returns the location of a tensor backed by a file, which the child maps directly."""
        # INVARIANT: no dataset is copied into memory that the system cannot drop.
        if array.nbytes < LARGE or not is_frozen(array) or (handle := file_of(array)) is None:
            return None
        self._take_back()
        segment = self._numbered(handle, array.nbytes, None)
        self._users[segment] += 1
        weakref.finalize(array, self._released.append, segment).atexit = False
        place = Spot(segment.number, 0, array.dtype.str, array.shape)
        self._remember(array, place, None)
        return place

    def _remember(self, array: Array, place: Spot, copy: Array | None) -> None:
        known, key = self._known, id(array)
        known[key] = weakref.ref(array, lambda _: known.pop(key, None)), place, copy

    def _segment(self, size: int) -> Segment:
        waiting = self._free.get(size)
        if waiting:
            return waiting.pop()
        handle, memory = Segment.make(size)
        return self._numbered(handle, size, memory)

    def _numbered(self, handle: int, size: int, memory: np.ndarray | None) -> Segment:
        self._made += 1
        segment = Segment(self._made, handle, size, memory)
        self._by_number[segment.number] = segment
        self.news.append(segment)
        return segment

    def _writable(self, place: Spot) -> Array:
        memory = self._by_number[place.segment].memory
        assert memory is not None, "a file is read alone"
        return array_at(memory, place)

    def _take_back(self) -> None:
        while self._released:
            segment = self._released.popleft()
            self._users[segment] -= 1
            if self._users[segment]:
                continue
            del self._users[segment]
            waiting = self._free.setdefault(segment.size, [])
            if segment.memory is not None and len(waiting) < KEPT:
                waiting.append(segment)
            else:
                del self._by_number[segment.number]
                segment.shut()
                if segment in self.news:
                    self.news.remove(segment)
                else:
                    self.gone.append(segment.number)


def array_at(memory: np.ndarray, place: Spot) -> Array:
    """Returns the tensor at a location of a mapped segment."""
    return np.frombuffer(memory, np.dtype(place.dtype), math.prod(place.shape), place.offset).reshape(place.shape)
