"""Obtains the checkpoints that rounds start from: the chain names their roots; they are fetched or computed from
payloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lockstep.base.log import Logger
from lockstep.execution import jobs, merging
from lockstep.execution.rounds import RoundRecord
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.types import JobId, Seconds
from lockstep.runtime.backoff import Backoff
from lockstep.storage.payload import Checkpoint
from worker.decide import Roots
from worker.parts import ComputeExecutor, TrackedJob

if TYPE_CHECKING:
    from lockstep.storage import ContentStore

RETRY_SECONDS = 2

log = Logger(__name__)


@dataclass(frozen=True)
class Base:
    """A checkpoint whose tensors hash to the roots on chain."""

    roots: Roots
    checkpoint: Checkpoint


class Bases:
    """Holds one checkpoint for each job: the base of its next round or of its latest one."""

    def __init__(self, store: ContentStore, executor: ComputeExecutor) -> None:
        self._store = store
        self._executor = executor
        self._held: dict[JobId, Base] = {}
        self._backoff: Backoff[JobId] = Backoff(RETRY_SECONDS)

    def held(self, job: JobId) -> Roots | None:
        """Returns the roots of the checkpoint that is held for a job, if there is one."""
        found = self._held.get(job)
        return None if found is None else found.roots

    def fetch(self, taken: TrackedJob, number: int, roots: Roots, now: Seconds) -> None:
        """Starts to fetch a round's base, or to compute it again from payloads, unless that is under way."""
        job, key = taken.ledger.id, ("base", taken.ledger.id)
        if key in self._executor and not self._executor.over(key):
            return
        try:
            self._executor.take(key)
        except Exception as error:
            self._backoff.failed(job, now)
            if not isinstance(error, LockstepError):
                raise
            log.warning(
                "the checkpoint that a round starts from cannot be fetched yet",
                round=number,
                code=error.code,
                message=error.message,
            )
        genesis = roots == (taken.params.genesis.shared, taken.params.genesis.outer)
        # The view may be a block ahead of the events.
        known = genesis or taken.ledger.merge_of(*roots, number) is not None
        if known and not self._backoff.in_backoff(job, now):
            records = taken.ledger.records_to(*roots, number, taken.params.role.slots)
            self._executor.begin(key, partial(self.load, taken, records, roots))

    def load(self, taken: TrackedJob, records: Sequence[RoundRecord], roots: Roots) -> Base:
        """Returns the cached base, or computes it from `records` and caches it. Runs on the worker thread."""
        held = self._held.get(taken.ledger.id)
        if held is None or held.roots != roots:
            found = merging.base_checkpoint(taken.job, self._store, records)
            held = Base(roots, jobs.check_checkpoint(taken.job, found, *roots))
            self._held[taken.ledger.id] = held
        return held

    def forget(self, job: JobId) -> None:
        """Drops a job's cached checkpoint."""
        self._held.pop(job, None)
