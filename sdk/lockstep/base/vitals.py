"""Counters and state of this process for metrics (`runtime.metrics`).

Recording a number takes less than a microsecond and never fails, so that metrics never delay work.
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
    """Counters that only grow, and the state at the latest block processed."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counters by (name, label); the label is "" if there is none."""
    gauges: dict[str, float] = field(default_factory=dict)
    games: tuple[Any, ...] = ()
    """Ids of own running games."""
    locks: tuple[bytes, ...] = ()
    """Keys of own locked stakes."""
    head: tuple[int, int] = (0, 0)
    """(number, chain time) of the block processed last."""
    held: str = ""
    """Message about own transactions that wait for a lower fee; "" if there are none."""
    beat_at: float | None = None
    """Monotonic time of the loop's last iteration; None before the first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str, label: str = "", by: int = 1) -> None:
        """Adds to a counter."""
        with self._lock:
            self.counts[name, label] += by

    def beat(
        self, number: int, time_: int, games: tuple[Any, ...], locks: tuple[bytes, ...], gauges: Mapping[str, float]
    ) -> None:
        """Records an iteration of the loop at this block."""
        self.head, self.games, self.locks = (number, time_), games, locks
        self.gauges = dict(gauges)
        self.beat_at = time.monotonic()

    def counted(self) -> dict[tuple[str, str], int]:
        """Returns a copy of the counters."""
        with self._lock:
            return dict(self.counts)


VITALS = Vitals()
"""The vitals of this process."""
