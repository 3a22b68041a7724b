"""Pages that were made, kept until what they were made of has changed.

A page's key holds everything that it is made of, so that nothing has to be told when the index moves: the key is
another one then, and what nobody asks for any more is dropped first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

KEPT_PAGES = 64
KEPT_BYTES = 16 << 20
"""The most bytes of pages that are kept, whoever asks for whatever."""


class KeptPages:
    """Bodies by key, those asked for last; usable from several threads."""

    def __init__(self, pages: int = KEPT_PAGES, size: int = KEPT_BYTES) -> None:
        """`pages`, `size`: the most bodies, and the most bytes of them together."""
        self._pages, self._size = pages, size
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        """The body that was kept for exactly this key."""
        with self._lock:
            body = self._bodies.get(key)
            if body is not None:
                self._bodies.move_to_end(key)
            return body

    def keep(self, key: Hashable, body: bytes) -> None:
        """Keep a body; the ones that were asked for longest ago make room."""
        if len(body) > self._size:
            return
        with self._lock:
            self._held += len(body) - len(self._bodies.pop(key, b""))
            self._bodies[key] = body
            while len(self._bodies) > self._pages or self._held > self._size:
                self._held -= len(self._bodies.popitem(last=False)[1])
