"""Answering demands: rows of the data that somebody asks for are posted on chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator import reading
from coordinator.loading import Aggregators
from lockstep.cli.output import event
from lockstep.node.demands import Answers
from lockstep.node.sender import MINED_SECONDS, Sender
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import JobId, Seconds

if TYPE_CHECKING:
    from coordinator.parts import CoordinatorParts


class RowAnswers:
    """The rows that a coordinator posts: the data are here, and an answer earns 60 % of the asker's bond."""

    def __init__(self, parts: CoordinatorParts, sender: Sender[None], aggregators: Aggregators) -> None:
        self._database = parts.database
        self._sender = sender
        self._aggregators = aggregators
        self._answers = Answers(parts.party.contracts, parts.party.store, parts.me)

    def answer(self, job: JobId, params: JobParams, now: Seconds) -> bool:
        """Post what is demanded of a job's data; whether anything was posted."""
        with self._database.reading() as session:
            asked = reading.row_demands(session, reading.hex32(job), now)
        posted = 0
        for demand in asked:
            due = self._answers.row(demand, self._aggregators.of(job, params).job, now)
            if due is None or self._sender.known(due[0]):
                continue
            key, call = due
            # Another holder may have posted it in the same block.
            if not self._sender.attempt(key, call, MINED_SECONDS):
                continue
            posted += 1
            event("precommitted" if key.startswith("commit") else "answered", time=now, demand=demand.id.hex())
        return posted > 0
