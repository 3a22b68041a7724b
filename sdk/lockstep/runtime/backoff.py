"""Retries with backoff: a failed thing rests for a while, twice as long each time, up to a bound."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Backoff(Generic[Key]):
    """The rests of keys that failed. The clock is the caller's: the chain's seconds, or this machine's."""

    def __init__(self, first: float, most: float | None = None) -> None:
        """A rest lasts `first` seconds, and up to `most` if a key fails again and again; always `first` without it."""
        self._first = first
        self._most = first if most is None else most
        self._rests: dict[Key, tuple[float, float]] = {}

    def rests(self, key: Key, now: float) -> bool:
        """Returns True if it is too early to try the key again."""
        # One look-up: the key may succeed on another thread.
        until, _ = self._rests.get(key, (now, 0.0))
        return now < until

    def failed(self, key: Key, now: float, *, at_most: float | None = None) -> None:
        """It failed now: it rests, twice as long as before.

        With `at_most` it rests no longer than that, and the rest after it is no longer for this one.
        """
        _, last = self._rests.get(key, (now, self._first / 2))
        rest = min(2 * last, self._most)
        self._rests[key] = (now + rest, rest) if at_most is None else (now + min(rest, at_most), last)

    def until(self, key: Key) -> int | None:
        """Returns the time of the next try, on the caller's clock; None if the key does not rest."""
        return int(self._rests[key][0]) if key in self._rests else None

    def __contains__(self, key: Key) -> bool:
        """Returns True if the key failed, and did not succeed since."""
        return key in self._rests

    @property
    def failing(self) -> int:
        """The number of keys that failed, and did not succeed since."""
        return len(self._rests)

    def succeeded(self, key: Key) -> None:
        """It went well: it does not rest."""
        self._rests.pop(key, None)
