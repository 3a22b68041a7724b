"""Loads a worker's jobs in parallel with its loop, checks them, takes or refuses them, and drops finished ones.

Jobs in which this worker has stake locked load on a thread of their own, so that no stranger's job delays them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.base.machine import room_on_disk
from lockstep.execution import capacity, footprint, invalidity
from lockstep.execution.footprint import Fitting
from lockstep.execution.invalidity import Undefendable
from lockstep.execution.jobs import Job
from lockstep.market.acts import Action
from lockstep.market.demands import DemandIssuer
from lockstep.market.ledger import JobLedger, Ledger
from lockstep.protocol.errors import (
    BlobMissing,
    Crashed,
    DoctorError,
    LockstepError,
    RowMissing,
    TryLater,
    Unfit,
    Unreachable,
)
from lockstep.protocol.types import JobId, Seconds, Wei
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.error_boundary import ErrorBoundary
from lockstep.runtime.feewatch import waiting_for_fee
from lockstep.runtime.keyed_executor import KeyedExecutor
from lockstep.runtime.sender import Sender
from worker.notes import Note, of_refusal
from worker.parts import TrackedJob

if TYPE_CHECKING:
    from worker.parts import WorkerParts

RETRY_SECONDS, MOST_SECONDS = 2, 120
"""Chain seconds until a job that failed to load is tried again, at first and at most; always the first for a job in
which this worker has stake."""

log = Logger(__name__)


class Jobs:
    """Tracks every job that is taken, being loaded, or refused."""

    def __init__(
        self, parts: WorkerParts, sender: Sender[Action], on_done: Callable[[], None], only: JobId | None
    ) -> None:
        self._parts = parts
        self._sender = sender
        self._only = only
        self._loader: KeyedExecutor[JobId, Job] = KeyedExecutor("load", on_done)
        self._urgent: KeyedExecutor[JobId, Job] = KeyedExecutor("load-own", on_done)
        self._missing: Backoff[JobId] = Backoff(RETRY_SECONDS, MOST_SECONDS)
        self._unfit: Backoff[JobId] = Backoff(capacity.AGAIN_SECONDS)
        """Jobs that this machine cannot hold now: they are looked at again, in case memory comes free."""
        self._refused: set[JobId] = set()
        """Jobs that are not looked at while nothing of ours is at stake in them."""
        self._broken: set[JobId] = set()
        """Jobs that break a rule, which no later check can change."""
        self._undefendable: dict[JobId, Undefendable] = {}
        """Jobs that break a rule and whose proof is not on chain yet."""
        self._asks = DemandIssuer(parts.contracts, parts.address)
        self._boundary = ErrorBoundary()
        self.taken: dict[JobId, TrackedJob] = {}
        self.kept: set[JobId] = set()
        """Jobs that have files in this home."""

    def take(self, ledger: Ledger, free: Wei, joins: bool, now: Seconds) -> list[JobId]:
        """Loads new jobs and takes the loaded ones; returns the jobs that are over and whose material here is not
        needed.

        `joins` is True if new jobs may be joined; a job in which this worker can lose stake is taken in either case.
        """
        at_stake = ledger.at_stake(self._parts.address)
        over = []
        for job, known in ledger.jobs.items():
            if job in self.taken:
                self.taken[job].ledger = known
            elif job in self._broken or (job in self._refused and job not in at_stake):
                continue
            elif job not in at_stake and (unwanted := self._parts.policy.refuses_requester(known.requester)):
                self._refused.add(job)
                if not known.done:
                    self._parts.notes.refused(job, Note("policy", unwanted), now)
            elif not known.done and job not in at_stake and (refusal := self._parts.refusals.of(job)):
                self._parts.notes.refused(job, of_refusal(refusal), now)
            # INVARIANT: whatever its state, a job is loaded in which a stake of ours can still be lost.
            elif job in at_stake or (not known.done and joins and self._only in (None, job)):
                self._load(known, job in at_stake, ledger, free, now)
            elif known.done and job in self.kept:
                self.kept.discard(job)
                over.append(job)
        return over

    def prove(self, now: Seconds) -> None:
        """Commits to the proof that a job breaks a rule and, once that is mined, reveals the proof."""
        for job, error in list(self._undefendable.items()):
            key, call = invalidity.proof(self._parts.contracts.validator, self._parts.address, job, error.evidence)
            sent = self._sender.submit(key, call)
            if key.startswith("commit"):
                continue
            del self._undefendable[job]
            if sent:
                event("voided", time=now, job=job.hex(), rule=error.rule.name.lower())

    def loaded(self, job: JobId) -> Job | None:
        """Returns a job that is taken, or None."""
        taken = self.taken.get(job)
        return None if taken is None else taken.job

    def leave(self, job: JobId) -> None:
        """Drops a job and closes its box."""
        box = self.taken.pop(job).job.box
        if box is not None:
            box.close()

    def close(self) -> None:
        """Stops loading and ends the processes that run Programs."""
        for taken in self.taken.values():
            if taken.job.box is not None:
                taken.job.box.close()
        self._loader.close(wait=False)
        self._urgent.close(wait=False)

    # -- inside

    def _load(self, known: JobLedger, at_stake: bool, ledger: Ledger, free: Wei, now: Seconds) -> None:
        job = known.id
        if job not in self._urgent and job not in self._loader:
            if not self._missing.in_backoff(job, now) and not self._unfit.in_backoff(job, now):
                executor = self._urgent if at_stake else self._loader
                executor.begin(job, partial(self._read, job, at_stake))
            return
        executor = self._urgent if job in self._urgent else self._loader
        if not executor.over(job):
            return
        try:
            with room_on_disk():
                loaded = executor.take(job)
        except Exception as error:
            self._not_loaded(job, error, ledger, free, now)
            return
        assert loaded is not None, "it is over"
        joins = self._only in (None, job) and not known.done
        self.taken[job] = TrackedJob(known, loaded.params, loaded, joins=joins)
        self.kept.add(job)

    def _read(self, job: JobId, at_stake: bool) -> Job:
        """Loads a job. Runs on a worker thread."""
        params, settings = self._parts.contracts.market.params(job), self._parts.party.settings
        # INVARIANT: whatever it needs, a job is loaded in which a stake of ours can still be lost.
        fits = None if at_stake else Fitting(footprint.worker, self._parts.max_memory_bytes, settings.path)
        loaded = self._parts.load(job, params, self._parts.store, settings.threads, settings.path, fits=fits)
        for program in (loaded.programs.step, loaded.programs.encode):
            loaded.executable(program)
        return loaded

    def _not_loaded(self, job: JobId, error: Exception, ledger: Ledger, free: Wei, now: Seconds) -> None:
        at_stake = ledger.at_stake(self._parts.address)
        if isinstance(error, BlobMissing | Unreachable):
            log.info("a job's data cannot be fetched yet: trying again", job=job.hex(), message=error.message)
            if isinstance(error, RowMissing):
                self._ask_row(job, error, free, now)
            self._missing.failed(job, now, at_most=RETRY_SECONDS if job in at_stake else None)
            self._parts.notes.waits(job, Note(error.code, error.message, self._missing.until(job)))
        elif isinstance(error, Unfit | TryLater) or (isinstance(error, DoctorError) and job in at_stake):
            self._unfit.failed(job, now)
            self._tell(job, error, now, self._unfit.until(job))
        elif isinstance(error, Undefendable):
            self._broken.add(job)
            self._undefendable[job] = error
            self._tell(job, error, now)
        # INVARIANT: whatever kept it from being loaded, a job is tried again in which a stake of ours can be lost.
        elif job in at_stake:
            self._missing.failed(job, now, at_most=RETRY_SECONDS)
            self._tell(job, error, now, self._missing.until(job))
        elif isinstance(error, Crashed):
            # INVARIANT: a job whose Programs end what runs them is not looked at again, in no later process either.
            self._parts.refusals.record(job, error)
            self._tell(job, error, now)
        # INVARIANT: a worker joins only jobs whose every part it has checked.
        elif isinstance(error, DoctorError) and not at_stake:
            raise error
        else:
            self._refused.add(job)
            self._tell(job, error, now)

    def _tell(self, job: JobId, error: Exception, now: Seconds, again: int | None = None) -> None:
        """Notes why a job is not taken."""
        if isinstance(error, LockstepError):
            code, message = error.code, error.message
        else:
            code, message = "defect", f"{type(error).__name__} while it was loaded"
            self._boundary.log(error, (job, "load"))
        self._parts.notes.refused(job, Note(code, message, again), now)

    def _ask_row(self, job: JobId, missing: RowMissing, free: Wei, now: Seconds) -> None:
        """Demands a missing dataset row, if free stake covers the bond: the defence of this home's claims may need the
        row."""
        found = self._asks.row(job, self._parts.contracts.market.params(job), missing, now)
        bond = self._parts.contracts.demands.row_bond_of(job, missing.row)
        if found is None or free < bond:
            return
        with waiting_for_fee():
            if self._sender.submit(*found):
                event("demanded", time=now, job=job.hex(), row=missing.row)
