"""Cross-checks blocks and logs with a second provider: no data on which the two disagree are used.

    the second is behind          what both have is read
    another hash, other logs      `TryLater`: nothing is read until they agree; logged once a minute
    the second does not answer    `Unreachable`: an outage like any other

A provider that lies can delay a process, but cannot make it act on the lie.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from lockstep.base.log import Logger
from lockstep.chain.logcache import RawLog
from lockstep.chain.ranges import logs_of, span_of
from lockstep.protocol.errors import TryLater
from lockstep.protocol.types import Seconds

if TYPE_CHECKING:
    from web3 import Web3

TELL_SECONDS = 60.0

log = Logger(__name__)


class CrossCheck:
    """Compares blocks and logs with those of a second provider."""

    def __init__(
        self, w3: Web3, first: str, second: str, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        """`w3` connects to the second provider. `first` and `second` name the providers in messages, without their
        keys."""
        self._w3 = w3
        self._first, self._second = first, second
        self._clock = clock
        self._reported_at: float | None = None

    def head(self) -> int:
        """Returns the number of the second provider's latest block."""
        return int(self._w3.eth.block_number)

    def block(self, number: int, hash_: str) -> None:
        """Raises `TryLater` unless the second provider has this block."""
        from web3.exceptions import BlockNotFound

        try:
            theirs = self._w3.eth.get_block(number)["hash"].hex()
        except BlockNotFound:
            theirs = "no block"
        if theirs != hash_:
            raise self._differ(f"block {number}", hash_[:16], theirs[:16])

    def logs(self, query: Mapping[str, Any], first: int, last: int, ours: Iterable[Any]) -> None:
        """Raises `TryLater` unless the second provider has exactly these logs in these blocks."""
        found: list[Any] = []
        begin = first
        while begin <= last:
            end = min(last, begin + span_of(self._w3).blocks - 1)
            part = logs_of(self._w3, query, begin, end)
            if part is not None:
                found, begin = found + part, end + 1
        mine, theirs = _values(ours), _values(found)
        if mine != theirs:
            what = f"the logs of blocks {first} to {last}" if first < last else f"the logs of block {last}"
            raise self._differ(what, f"{len(mine)} logs", f"{len(theirs)} logs")
        self._reported_at = None

    def _differ(self, what: str, ours: str, theirs: str) -> TryLater:
        error = TryLater(
            f"{self._first} and {self._second} tell {what} differently ({ours}, {theirs})",
            "nothing is done until they agree: one lies, lags, or is on another branch: replace it if that lasts",
            code="try_later.rpc_check",
        )
        now = self._clock()
        if self._reported_at is None or now - self._reported_at >= TELL_SECONDS:
            self._reported_at = now
            log.error("two RPC providers differ: nothing is done until they agree", message=error.message)
        return error


def _values(entries: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Returns the compared values of logs, in order."""
    return sorted(astuple(RawLog.of({**entry, "address": entry["address"].lower()}, Seconds(0))) for entry in entries)
