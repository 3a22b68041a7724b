"""Published lists of state roots, fetched beside the loop: a store that is slow keeps no game and no other claim."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from lockstep.market.ledger import ClaimRecord
from lockstep.market.replay import published_trace
from lockstep.protocol.types import Cid, ClaimId, StateRoot, TraceRoot
from lockstep.runtime.keyed_executor import KeyedExecutor
from lockstep.storage import ContentStore

THREADS = 4
"""Lists that are fetched at a time: of those that hang, each takes as long as the store waits."""
KEPT = 64
"""Lists that were fetched and that nobody has asked for since."""

Roots = tuple[StateRoot, ...]


class OnItsWay(Exception):
    """The list is being fetched."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self.begun = begun
        """True if this call began the fetch; False if it was under way."""


@dataclass(frozen=True)
class _Listed:
    """A claim's list, as the claim names it."""

    claim: ClaimId
    root: TraceRoot
    cid: Cid | None


class Lists:
    """The lists that a verifier waits for."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self._executor: KeyedExecutor[_Listed, Roots | None] = KeyedExecutor("lists", threads=THREADS)

    def find(self, record: ClaimRecord, transitions: int) -> Roots | None:
        """S_1 .. S_T of a claim as it was fetched since the last call; None if there is no such list.

        Raises OnItsWay while it is fetched, which begins now if it has not; Unreachable if nobody answered.
        """
        listed = _Listed(record.id, record.trace_root, record.trace_cid)
        if self._executor.over(listed):
            return self._executor.take(listed)
        begun = listed not in self._executor
        for unasked in self._executor.finished()[:-KEPT]:
            with suppress(Exception):
                self._executor.take(unasked)
        self._executor.begin(listed, partial(published_trace, self._store, record, transitions))
        raise OnItsWay(begun=begun)

    def close(self) -> None:
        """Let what is being fetched end, within the store's time."""
        self._executor.close()
