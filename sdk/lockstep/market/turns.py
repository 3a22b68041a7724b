"""Turns among accounts that may all do a thing that has to be done once: a second one would pay gas for nothing.

    turns.mine(subject, since, now)             # True once it is this account's turn
    turns.mine(subject, since, now, known)      # `known` come first

Accounts know at most a round's owners of one another. These stand in a line, ordered by keccak(subject, account);
behind them every other account draws a place by the same hash. A turn is long enough that the next in line sees the
transaction of the one before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, Seconds

COURTESY_SECONDS = Seconds(30)
"""Chain seconds after a deadline that are left to the accounts directly concerned."""
TURN_SECONDS = 24.0
"""Chain seconds of a turn, two blocks of twelve seconds: one to send a transaction, one for the next in line to see
it."""
DRAWN = 32
"""Number of places from which accounts draw: of sixteen at once, one or two draw the first place that is taken."""
SLACK_SHARE = 0.5
"""The largest share of the available time that waiting for turns may take."""
KEPT = 4096
"""Number of subjects whose first poll is remembered."""


def place_of(subject: bytes, me: Address, known: Collection[Address] = ()) -> int:
    """Returns an account's place in line for a subject, from 0."""
    line = sorted(known, key=lambda account: keccak(subject + account.encode()))
    if me in line:
        return line.index(me)
    return len(line) + int.from_bytes(keccak(subject + me.encode()), "big") % DRAWN


class Turns:
    """Decides when it is one account's turn."""

    def __init__(self, me: Address, clock: Callable[[], float] = time.monotonic) -> None:
        self._me = me
        self._clock = clock
        self._seen: dict[bytes, tuple[float, Seconds]] = {}
        """By subject: the machine time and the chain time of its first poll."""

    def mine(
        self, subject: bytes, since: float | None, now: Seconds, known: Collection[Address] = (),
        turn: float = TURN_SECONDS,
    ) -> bool:  # fmt: skip
        """Tells if it is this account's turn with a thing that has been possible `since` that chain time; None: since
        its first poll.

        A chain whose time stands still until somebody sends a transaction would give nobody a turn, so this machine's
        time counts as well.
        """
        wait = turn * place_of(subject, self._me, known)
        while len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        looked, first = self._seen.setdefault(subject, (self._clock(), now))
        return now >= (first if since is None else since) + wait or self._clock() - looked >= wait
