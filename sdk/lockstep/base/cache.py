"""Values that a process keeps in memory because they were costly to make, up to a number of bytes.

Everything here can be made again. What nothing needs any more goes first, then what was used longest ago.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.base.machine import memory

SHARE = 0.25
"""The share of the machine's memory to use where nobody says how much may be kept."""


def default_limit() -> int:
    """A quarter of the machine's memory, in bytes."""
    return int(SHARE * memory().total)


@dataclass(frozen=True)
class _Item:
    value: Any
    size: int
    needed: Callable[[], bool]


class MemoryCache:
    """A cache bounded in bytes. Safe for threads."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: bytes; None: a quarter of the machine's memory."""
        self._limit = default_limit() if limit is None else limit
        self._items: OrderedDict[Hashable, _Item] = OrderedDict()
        self._lock = threading.Lock()
        self.used = 0
        """Bytes."""

    def get(self, key: Hashable) -> Any | None:
        """Returns the value under a key, which is the last to go from now on; None if there is none."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            self._items.move_to_end(key)
            return item.value

    def __contains__(self, key: Hashable) -> bool:
        """Tells if something is kept under a key; its turn to go stays what it was."""
        return key in self._items

    def keys(self) -> list[Hashable]:
        """Everything that is kept, what was used longest ago first."""
        with self._lock:
            return list(self._items)

    def put(self, key: Hashable, value: Any, size: int, needed: Callable[[], bool] = lambda: False) -> None:
        """Keep a value; `needed` tells, whenever room is made, if something still waits for it.

        The value itself is kept however large it is, until the next one comes.
        """
        with self._lock:
            self._drop(key)
            self._items[key] = _Item(value, size, needed)
            self.used += size
            while self.used > self._limit and len(self._items) > 1:
                self._drop(self._first_to_go(key))

    def drop(self, key: Hashable) -> None:
        """Let go of what is kept under a key, if anything is."""
        with self._lock:
            self._drop(key)

    def _first_to_go(self, last: Hashable) -> Hashable:
        others = [key for key in self._items if key != last]
        return next((key for key in others if not self._items[key].needed()), others[0])

    def _drop(self, key: Hashable) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self.used -= item.size


def bytes_of(arrays: Iterable[np.ndarray | None], besides: Iterable[np.ndarray | None] = ()) -> int:
    """The memory of arrays, each counted once, those of `besides` left out."""
    known = {id(a) for a in besides}
    distinct = {id(a): a.nbytes for a in arrays if a is not None and id(a) not in known}
    return sum(distinct.values())
