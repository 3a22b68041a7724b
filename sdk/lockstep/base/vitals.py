"""This process's work and state, in numbers, for whoever watches it (`runtime.metrics`).

Writing a number costs less than a microsecond and never fails: nothing that works waits for who looks on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Vitals:
    """Counters that only grow, and the state as of the last look at the chain."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (name, label): label "" where there is none."""
    gauges: dict[str, float] = field(default_factory=dict)
    games: tuple[Any, ...] = ()
    """Ids of own games that run."""
    locks: tuple[bytes, ...] = ()
    """Keys of own stakes that are locked."""
    head: tuple[int, int] = (0, 0)
    """(number, chain time) of the block that was acted on last."""
    held: str = ""
    """Own transactions that wait for a lower fee, and why; "" if there are none."""
    beat_at: float | None = None
    """The monotonic time when the loop last went round; None: it has not."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str, label: str = "", by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self.counts[name, label] += by

    def beat(
        self, number: int, time_: int, games: tuple[Any, ...], locks: tuple[bytes, ...], gauges: Mapping[str, float]
    ) -> None:
        """The loop went round with this block."""
        self.head, self.games, self.locks = (number, time_), games, locks
        self.gauges = dict(gauges)
        self.beat_at = time.monotonic()

    def counted(self) -> dict[tuple[str, str], int]:
        """A copy of the counters."""
        with self._lock:
            return dict(self.counts)


VITALS = Vitals()
"""This process's."""
