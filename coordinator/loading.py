"""The jobs that this coordinator merges, loaded once: what is not what the chain names is refused for good, what this
machine cannot hold for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from coordinator import reading
from coordinator.aggregator import Aggregator
from lockstep.base.cache import MemoryCache
from lockstep.execution import footprint, jobs
from lockstep.execution.box import loading
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.node.backoff import Backoff
from lockstep.node.refusals import Refusals
from lockstep.protocol.errors import Crashed, LockstepError, Mismatch, ProgramInvalid, Unfit
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import ClaimId, JobId, Seconds

if TYPE_CHECKING:
    from coordinator.models import ClaimRow
    from coordinator.parts import CoordinatorParts

log = structlog.get_logger(__name__)


class Aggregators:
    """The aggregators, one for each job."""

    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts
        self._made: dict[JobId, Aggregator] = {}
        self._ended = Refusals(parts.settings.home)
        """Jobs that ended what ran them; a command clears what is read here."""
        self._refused: set[JobId] = set()
        self._unfit: Backoff[JobId] = Backoff(AGAIN_SECONDS)
        """Jobs that this machine cannot hold: they are looked at again, in case memory comes free."""
        self._cache = MemoryCache(parts.settings.shared.memory_bytes)

    def prepared(self, job: JobId, params: JobParams, now: Seconds) -> bool:
        """Load the job before its first payload comes; False for good if it is not what the chain names, and for a
        while if this machine cannot hold it."""
        if job in self._refused or self._unfit.rests(job, now):
            return False
        with self._parts.database.reading() as session:
            made = reading.merges_by(session, reading.hex32(job), self._parts.me)
        if not made and self._ended.of(job) is not None:
            return False
        try:
            # INVARIANT: whatever it needs, a job is loaded in which a merge of ours may be challenged.
            self.of(job, params, None if made else footprint.fitting(footprint.aggregator))
        except Unfit as error:
            if job not in self._unfit:
                self._tell_refused(job, error)
            self._unfit.failed(job, now)
            return False
        except Crashed as error:
            # INVARIANT: a job whose Programs end what runs them is not looked at again, in no later process either; one
            # whose merge of ours may be challenged is tried again.
            if made:
                self._unfit.failed(job, now)
            else:
                self._ended.record(job, error)
            self._tell_refused(job, error)
            return False
        except (ProgramInvalid, Mismatch) as error:
            self._refused.add(job)
            self._tell_refused(job, error)
            return False
        return True

    @contextmanager
    def merging(self, job: JobId, params: JobParams) -> Iterator[Aggregator]:
        """A job's, for a merge. Raises Crashed if what runs its Programs was ended by them, now or before."""
        before = self._ended.of(job)
        if before is not None:
            raise Crashed(before.message, hint="`lockstep coordinator retry` has it tried again")
        try:
            yield self.of(job, params)
        except Crashed as error:
            # INVARIANT: a merge that ends what runs it is not begun again, in no later process either.
            self._ended.record(job, error)
            self._tell_refused(job, error)
            raise

    def loaded(self, job: JobId) -> bool:
        """Tells if a job is in memory."""
        return job in self._made

    def of(self, job: JobId, params: JobParams, fits: footprint.Fitting | None = None) -> Aggregator:
        """A job's, loaded now if it was not."""
        if job not in self._made:
            settings = self._parts.settings
            store, shared = self._parts.party.store, settings.shared
            loaded = loading.load(job, params, store, shared.threads, shared.path, fits=fits)
            loaded.executable(loaded.programs.merge)
            self._made[job] = self.make(loaded, settings.home / "claims", self._cache)
        return self._made[job]

    def make(self, job: jobs.Job, archive: Path, cache: MemoryCache) -> Aggregator:
        """Returns the aggregator of a loaded job; its merges' material is kept in `archive`."""
        return Aggregator(job, self._parts.party.store, self._parts.guard, archive, cache)

    def forget(self, claim: ClaimRow) -> None:
        """Drop what defends a merge that can no longer be challenged."""
        made = self._made.get(JobId(reading.unhex(claim.job)))
        if made is not None:
            made.forget(ClaimId(reading.unhex(claim.id)))

    def drop(self, job: JobId) -> None:
        """Let a job go that is over."""
        _end(self._made.pop(job, None))

    def close(self) -> None:
        """Let all of them go."""
        for made in self._made.values():
            _end(made)
        self._made.clear()

    @staticmethod
    def _tell_refused(job: JobId, error: LockstepError) -> None:
        log.error("the job is refused", job=reading.hex32(job), why=error.message, hint=error.hint)


def _end(made: Aggregator | None) -> None:
    """Ends what runs a job's Programs."""
    if made is not None and made.job.box is not None:
        made.job.box.close()
