"""Answers demands for dataset rows by posting them on chain, and settles own demands that nobody answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordinator import reading
from coordinator.merging import Aggregators
from lockstep.base.lines import event
from lockstep.market.demands import DEMAND_EVENTS, DemandResponder
from lockstep.market.ledger import DemandRecord
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import JobId, Seconds
from lockstep.runtime.sender import MINED_SECONDS, Sender

if TYPE_CHECKING:
    from coordinator.parts import CoordinatorParts
    from lockstep.chain.contracts import Call


class DemandsOfJobs:
    """Posts demanded rows, since the coordinator has the data and an answer earns 60 % of the asker's bond, and settles
    its own demands for payloads."""

    def __init__(self, parts: CoordinatorParts, sender: Sender[None], aggregators: Aggregators) -> None:
        self._me = parts.me
        self._database = parts.database
        self._sender = sender
        self._aggregators = aggregators
        self._answers = DemandResponder(parts.party.contracts, parts.party.store, parts.me)

    def tend(self, job: JobId, params: JobParams, now: Seconds) -> bool:
        """Does what is due about demands for a job's data; returns True if anything was sent."""
        with self._database.reading() as session:
            asked = reading.row_demands(session, reading.hex32(job), now)
            own = reading.own_demands(session, reading.hex32(job), self._me)
        done = 0
        for demand, (key, call) in self._due(job, params, asked, own, now):
            # Another holder may have posted it in the same block.
            if self._sender.known(key) or not self._sender.attempt(key, call, MINED_SECONDS):
                continue
            done += 1
            if told := DEMAND_EVENTS.get(key.partition("/")[0]):
                event(told, time=now, demand=demand.id.hex())
        return done > 0

    def _due(
        self, job: JobId, params: JobParams, asked: list[DemandRecord], own: list[DemandRecord], now: Seconds
    ) -> Iterator[tuple[DemandRecord, tuple[str, Call]]]:
        for demand in asked:
            if (due := self._answers.row(demand, self._aggregators.of(job, params).job, now)) is not None:
                yield demand, due
        for demand in own:
            if (due := self._answers.own(demand, now)) is not None:
                yield demand, due
