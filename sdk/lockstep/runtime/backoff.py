"""Retries with exponential back-off: the delay doubles with each failure, up to a bound."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Backoff(Generic[Key]):
    """Tracks the delay of each key that failed. The caller's clock may count chain seconds or machine seconds."""

    def __init__(self, first: float, most: float | None = None) -> None:
        """The delay is `first` seconds; it doubles with each failure up to `most`, or stays `first` without `most`."""
        self._first = first
        self._most = first if most is None else most
        self._delays: dict[Key, tuple[float, float]] = {}

    def in_backoff(self, key: Key, now: float) -> bool:
        """Returns True if it is too early to try the key again."""
        # A single look-up, because the key may succeed on another thread.
        until, _ = self._delays.get(key, (now, 0.0))
        return now < until

    def failed(self, key: Key, now: float, *, at_most: float | None = None) -> None:
        """Records a failure: the delay doubles.

        `at_most` bounds this delay, and then this failure does not lengthen the next one.
        """
        _, last = self._delays.get(key, (now, self._first / 2))
        delay = min(2 * last, self._most)
        self._delays[key] = (now + delay, delay) if at_most is None else (now + min(delay, at_most), last)

    def until(self, key: Key) -> int | None:
        """Returns the time of the next try, on the caller's clock; None if the key has not failed."""
        return int(self._delays[key][0]) if key in self._delays else None

    def __contains__(self, key: Key) -> bool:
        """Returns True if the key failed and has not succeeded since."""
        return key in self._delays

    @property
    def failing(self) -> int:
        """Number of keys that failed and have not succeeded since."""
        return len(self._delays)

    def succeeded(self, key: Key) -> None:
        """Forgets the key's failures."""
        self._delays.pop(key, None)
