"""Reads the market: its events folded into the ledger, the parameters of each job, the latest block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.chain.events import EventReader
from lockstep.market.ledger import GameRecord, Ledger, Watcher
from lockstep.protocol.errors import ChainError, NotFoundError, TryLater
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import JobId, Seconds
from lockstep.runtime.party import Head, Party


@dataclass(frozen=True)
class MarketView:
    """The market at one block, from which all decisions are made."""

    ledger: Ledger
    params: Mapping[JobId, JobParams]
    head: Head
    draining: bool
    """True while this process ends: nothing new is begun."""
    block: int
    """The last block that the ledger holds: the head, or one that came after it."""

    @property
    def now(self) -> Seconds:
        """Chain time."""
        return self.head.time

    @property
    def games(self) -> list[GameRecord]:
        """Every game ever opened."""
        return self.ledger.all_games()


class MarketReader:
    """Reads the chain's events, and each job's parameters once."""

    def __init__(self, party: Party) -> None:
        self._market = party.contracts.market
        self._cache = party.log_cache()
        self._watcher = Watcher(EventReader(party.w3, party.addresses, cache=self._cache, check=party.check))
        self._params: dict[JobId, JobParams] = {}

    def read(self) -> None:
        """Brings the ledger up to the latest block."""
        self._watcher.poll()
        for job in self._watcher.ledger.jobs:
            if job not in self._params:
                self._params[job] = self._params_of(job)

    def _params_of(self, job: JobId) -> JobParams:
        try:
            return self._market.params(job)
        except (ChainError, NotFoundError) as error:
            # INVARIANT: a node that refuses a job which its own logs name lags behind, or lies: it ends no verifier.
            raise TryLater(
                f"the chain's node does not know job {job.hex()[:16]}, which its logs name: {error.message}",
                "no action is needed: it is asked again; use another RPC provider if that lasts",
            ) from error

    def view(self, head: Head, draining: bool) -> MarketView:
        """Returns the market as of the last `read`."""
        return MarketView(self._watcher.ledger, self._params, head, draining, self._watcher.block)

    def close(self) -> None:
        """Closes the local copy of the chain's logs."""
        self._cache.close()
