"""Fetches published lists of state roots on threads of their own, so that a slow store delays no game and no other
claim."""

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
"""Lists that are fetched at a time; one whose store hangs occupies a thread until the store's timeout."""
KEPT = 64
"""Fetched lists that are kept until a caller asks for them; older ones are dropped."""

Roots = tuple[StateRoot, ...]


class OnItsWay(Exception):
    """The list is being fetched."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self.begun = begun
        """True if this call started the fetch."""


@dataclass(frozen=True)
class _Listed:
    """The key of a fetch: a claim, its trace root, and the CID of its list."""

    claim: ClaimId
    root: TraceRoot
    cid: Cid | None


class Lists:
    """Fetches the lists of state roots that a verifier needs."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self._executor: KeyedExecutor[_Listed, Roots | None] = KeyedExecutor("lists", threads=THREADS)

    def find(self, record: ClaimRecord, transitions: int) -> Roots | None:
        """Returns S_1 .. S_T of a claim as fetched since the last call; None if its list does not exist.

        Raises OnItsWay while the list is being fetched, which this call starts if need be; Unreachable if the store did
        not answer.
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
        """Waits for the fetches in flight, at most the store's timeout."""
        self._executor.close()
