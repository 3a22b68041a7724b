"""An in-memory cache for values that are expensive to compute, bounded in bytes.

Every value can be recomputed. Values that nothing needs are evicted first, then the least recently used.
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
"""Default share of the machine's memory."""


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
        """`limit` is in bytes; None: a quarter of the machine's memory."""
        self._limit = default_limit() if limit is None else limit
        self._items: OrderedDict[Hashable, _Item] = OrderedDict()
        self._lock = threading.Lock()
        self.used = 0
        """Bytes of the cached values."""

    def get(self, key: Hashable) -> Any | None:
        """Returns the value of a key and marks it as most recently used; None if there is none."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return None
            self._items.move_to_end(key)
            return item.value

    def __contains__(self, key: Hashable) -> bool:
        """Returns True if the cache has the key, without marking it as used."""
        return key in self._items

    def keys(self) -> list[Hashable]:
        """Returns all keys, the least recently used first."""
        with self._lock:
            return list(self._items)

    def put(self, key: Hashable, value: Any, size: int, needed: Callable[[], bool] = lambda: False) -> None:
        """Caches a value; `needed` is called on each eviction, and returns True while the value is still needed.

        The new value itself is kept however large it is, until the next one is put.
        """
        with self._lock:
            self._drop(key)
            self._items[key] = _Item(value, size, needed)
            self.used += size
            while self.used > self._limit and len(self._items) > 1:
                self._drop(self._first_to_go(key))

    def drop(self, key: Hashable) -> None:
        """Drops the value of a key, if there is one."""
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
    """Returns the bytes of distinct arrays, without those in `besides`."""
    known = {id(a) for a in besides}
    distinct = {id(a): a.nbytes for a in arrays if a is not None and id(a) not in known}
    return sum(distinct.values())
