"""Quotas on the coordinator's memory and storage, for each account and for all together.

They are counted in this process's memory by this machine's clock: a restart resets them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lockstep.protocol.errors import TryLater
from lockstep.protocol.types import Address

REQUESTS_IN_FLIGHT = 4
"""The most requests of one account at a time."""
BYTES_IN_FLIGHT = 256 << 20
"""The most bytes in bodies of all accounts: each is held in memory until it is stored."""
WINDOW_SECONDS = 3600.0
WINDOW_BYTES = 1 << 30
"""The most bytes that one account may send in a window."""
FORGET_ACCOUNTS = 10_000
"""Number of accounts from which those without current use are dropped."""


@dataclass
class _Share:
    """One account's current use."""

    in_flight: int = 0
    bytes: int = 0
    window_ends: float = 0.0


class Quotas:
    """Tracks the use of every account; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._shares: dict[Address, _Share] = {}
        self._bytes = 0

    @contextmanager
    def share(self, account: Address, size: int) -> Iterator[None]:
        """Reserves room for a request with a body of `size` bytes. Raises TryLater: `quota`, or `busy`."""
        self._take(account, size)
        try:
            yield
        finally:
            with self._lock:
                self._shares[account].in_flight -= 1
                self._bytes -= size

    def _take(self, account: Address, size: int) -> None:
        with self._lock:
            now = self._clock()
            if len(self._shares) >= FORGET_ACCOUNTS:
                kept = {a: s for a, s in self._shares.items() if s.in_flight or s.window_ends > now}
                self._shares = kept
            share = self._shares.setdefault(account, _Share())
            if share.window_ends <= now:
                share.bytes, share.window_ends = 0, now + WINDOW_SECONDS
            # INVARIANT: no account takes more than its share of what all of them need.
            if share.in_flight >= REQUESTS_IN_FLIGHT:
                raise TryLater(
                    f"{account} has {share.in_flight} requests under way", "wait for their answers", code="quota"
                )
            if share.bytes + size > WINDOW_BYTES:
                raise TryLater(
                    f"{account} has sent {share.bytes} bytes within an hour", "put large content into storage yourself",
                    code="quota",
                )  # fmt: skip
            if self._bytes + size > BYTES_IN_FLIGHT:
                raise TryLater(f"{self._bytes} bytes of bodies are under way", "try again shortly", code="busy")
            share.in_flight += 1
            share.bytes += size
            self._bytes += size
