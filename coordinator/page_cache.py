"""A cache of rendered pages, keyed by everything that they show.

The key changes with the index, so that nothing has to be invalidated; the least recently used pages are evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

KEPT_PAGES = 64
KEPT_BYTES = 16 << 20
"""The most bytes of pages that are kept, whoever asks for whatever."""


class PageCache:
    """Rendered bodies by key, the most recently used last; thread-safe."""

    def __init__(self, pages: int = KEPT_PAGES, size: int = KEPT_BYTES) -> None:
        """`pages`, `size`: the most bodies, and the most bytes of them together."""
        self._pages, self._size = pages, size
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        """Returns the body of this key, if it is cached."""
        with self._lock:
            body = self._bodies.get(key)
            if body is not None:
                self._bodies.move_to_end(key)
            return body

    def keep(self, key: Hashable, body: bytes) -> None:
        """Caches a body, and evicts the least recently used ones."""
        if len(body) > self._size:
            return
        with self._lock:
            self._held += len(body) - len(self._bodies.pop(key, b""))
            self._bodies[key] = body
            while len(self._bodies) > self._pages or self._held > self._size:
                self._held -= len(self._bodies.popitem(last=False)[1])
