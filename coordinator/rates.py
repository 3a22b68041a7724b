"""Limits the request rate of each address, before anything of a request is read, signed or not.

A token bucket holds BURST_SECONDS of the rate. An IPv6 client can choose among the addresses of a /64, so that counts
as one address.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

BURST_SECONDS = 4.0
"""The capacity of a bucket, in seconds of the rate."""
FORGET_ADDRESSES = 20_000
"""Number of addresses from which those with a full bucket are dropped."""


class RequestRates:
    """The token buckets of all addresses; thread-safe."""

    def __init__(self, per_second: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_second` is the rate of each address; 0 sets no limit."""
        self._rate = per_second
        self._full = max(1.0, per_second * BURST_SECONDS)
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}
        """By address: what is left, and when that was so."""

    def wait(self, address: str) -> float:
        """Takes one request of an address from its bucket; returns 0, or the seconds after which it is allowed."""
        if not self._rate:
            return 0.0
        key, now = network(address), self._clock()
        with self._lock:
            if len(self._buckets) >= FORGET_ADDRESSES and key not in self._buckets:
                self._forget(now)
            left, then = self._buckets.get(key, (self._full, now))
            left = min(self._full, left + (now - then) * self._rate)
            # INVARIANT: no address takes more of the server than its rate.
            if left < 1:
                self._buckets[key] = left, now
                return (1 - left) / self._rate
            self._buckets[key] = left - 1, now
            return 0.0

    def _forget(self, now: float) -> None:
        self._buckets = {
            key: (left, then)
            for key, (left, then) in self._buckets.items()
            if left + (now - then) * self._rate < self._full
        }
        if len(self._buckets) >= FORGET_ADDRESSES:
            # As many at once are no clients: everybody begins anew.
            self._buckets.clear()


def network(address: str) -> str:
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped or int(ip) >> 64)
    return str(ip)
