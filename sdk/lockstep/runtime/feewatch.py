"""Reports transactions that wait because the network's fee is above `max_fee`: when the first begins to wait, and when
none waits any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockstep.base.log import Logger
from lockstep.base.vitals import VITALS, Vitals
from lockstep.chain.wire import HELD
from lockstep.protocol.errors import TryLater

if TYPE_CHECKING:
    from lockstep.chain.outbox import Outbox

HINT = "raise max_fee in networks.toml or LOCKSTEP_MAX_FEE, or wait: it is sent once the base fee is lower"
"""Advice for the operator who has set the bound."""

log = Logger(__name__)


@contextmanager
def waiting_for_fee() -> Iterator[None]:
    """Suppresses the error of a transaction that the fee bound holds back: a later poll sends it, and a `FeeWatch`
    reports it.
    """
    try:
        yield
    except TryLater as error:
        # INVARIANT: a fee is no outage: what it holds back holds up nothing else.
        if error.code != HELD:
            raise


class FeeWatch:
    """Tracks the transactions that one process's fee bound holds back, by this machine's clock."""

    def __init__(
        self, outbox: Outbox, tell: Callable[..., None], clock: Callable[[], float] = time.monotonic,
        vitals: Vitals = VITALS,
    ) -> None:  # fmt: skip
        """`tell(event, **fields)` prints an event."""
        self._outbox = outbox
        self._tell = tell
        self._clock = clock
        self._vitals = vitals
        self._since: float | None = None
        self._head: object = None

    def poll(self, head: object) -> str:
        """Returns a message about the transactions that the fee bound holds back; "" if there are none. Raises
        Unreachable.

        The chain is asked once for each head, and not at all while no transaction waits to be mined.
        """
        if head == self._head:
            return self._vitals.held
        held = self._outbox.held()
        self._head = head
        self._vitals.held = held
        if held and self._since is None:
            self._since = self._clock()
            log.warning("transactions wait for a lower fee; a missed deadline costs stake", why=held, hint=HINT)
            self._tell("held", message=held)
        elif not held and self._since is not None:
            seconds, self._since = round(self._clock() - self._since, 1), None
            self._tell("released", seconds=seconds)
        return held
