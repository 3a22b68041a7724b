"""Turns among those who may all do what has to be done once: who is second would pay gas for nothing.

    turns.mine(subject, since, now)             # True once it is this account's turn
    turns.mine(subject, since, now, known)      # `known` come first

Who is there is known of a round's owners at most. These stand in a line, ordered by keccak(subject, account); behind
them everybody else draws a place by the same hash. A turn is so long that the next in line sees what was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, Seconds

COURTESY_SECONDS = Seconds(30)
"""After a deadline, the time of those whom a thing concerns to do it themselves."""
TURN_SECONDS = 24.0
"""Two blocks of twelve seconds: in the first the one before has sent, in the second it is seen to be done."""
DRAWN = 32
"""Places of those who do not know one another: of sixteen at once, one or two draw the first that is taken."""
SLACK_SHARE = 0.5
"""The share that waiting for turns may take of the time that a thing can wait."""
KEPT = 4096
"""Subjects of which the first look is remembered."""


def place_of(subject: bytes, me: Address, known: Collection[Address] = ()) -> int:
    """Returns an account's place in line for a subject, from 0."""
    line = sorted(known, key=lambda account: keccak(subject + account.encode()))
    if me in line:
        return line.index(me)
    return len(line) + int.from_bytes(keccak(subject + me.encode()), "big") % DRAWN


class Turns:
    """One account's turns."""

    def __init__(self, me: Address, clock: Callable[[], float] = time.monotonic) -> None:
        self._me = me
        self._clock = clock
        self._seen: dict[bytes, tuple[float, Seconds]] = {}
        """The first look at each subject, by this machine's clock and in chain time."""

    def mine(
        self, subject: bytes, since: float | None, now: Seconds, known: Collection[Address] = (),
        turn: float = TURN_SECONDS,
    ) -> bool:  # fmt: skip
        """Tells if it is this account's turn with a thing that could be done `since`, in chain time; None: since its
        first look.

        A chain whose time stands still until somebody sends something gives nobody a turn: there this machine's does.
        """
        wait = turn * place_of(subject, self._me, known)
        while len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        looked, first = self._seen.setdefault(subject, (self._clock(), now))
        return now >= (first if since is None else since) + wait or self._clock() - looked >= wait
