"""Assigns turns among accounts for an act that is needed once: a second transaction would waste gas.

    turns.mine(subject, since, now)             # True once it is this account's turn
    turns.mine(subject, since, now, known)      # `known` come first

Accounts know at most the owners of a round's slots. These come first, ordered by keccak(subject, account); every other
account draws a later place by the same hash. A turn is long enough for the next account to see the transaction of the
previous one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, Seconds

COURTESY_SECONDS = Seconds(30)
"""Chain seconds after a deadline that are reserved for the accounts directly concerned."""
TURN_SECONDS = 24.0
"""Chain seconds of a turn: two blocks of twelve seconds, one to send a transaction and one for the next account to see
it.
"""
DRAWN = 32
"""Number of places from which accounts draw: of sixteen accounts, one or two draw the first occupied place."""
SLACK_SHARE = 0.5
"""Largest share of the available time spent waiting for turns."""
KEPT = 4096
"""Most subjects whose first poll is remembered."""


def place_of(subject: bytes, me: Address, known: Collection[Address] = ()) -> int:
    """Returns an account's place in the order for a subject, from 0."""
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
        """For each subject, the machine time and the chain time of its first poll."""

    def mine(
        self, subject: bytes, since: float | None, now: Seconds, known: Collection[Address] = (),
        turn: float = TURN_SECONDS,
    ) -> bool:  # fmt: skip
        """Returns True if it is this account's turn for an act that has been possible since the chain time `since`;
        None: since its first poll.

        On a chain whose time advances only with transactions no account would get a turn, so this machine's time counts
        as well.
        """
        wait = turn * place_of(subject, self._me, known)
        while len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        looked, first = self._seen.setdefault(subject, (self._clock(), now))
        return now >= (first if since is None else since) + wait or self._clock() - looked >= wait
