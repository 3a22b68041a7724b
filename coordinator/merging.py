"""The jobs that this coordinator merges: loads each once, checks payloads, computes merges and defends them.

One job's work is in `aggregator.py`, the conditions of a merge's claim in `runtime/merges.py`, its arithmetic in
`execution/merging.py`. A job that differs from the chain's record is refused for good, one that is too large for this
machine for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator import reading
from coordinator.aggregator import Aggregator
from coordinator.models import ClaimRow, PayloadRow
from lockstep.base.cache import MemoryCache
from lockstep.base.log import Logger
from lockstep.execution import footprint, jobs
from lockstep.execution.box import loading
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.execution.footprint import Fitting
from lockstep.execution.rounds import RoundRecord
from lockstep.market.held import HeldClaim
from lockstep.protocol.errors import Crashed, LockstepError, Mismatch, ProgramInvalid, Unfit
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Cid, ClaimId, GameId, JobId, Seconds, Seed, StateRoot
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.guard.memory import RecordKey
from lockstep.runtime.refusals import Refusals

if TYPE_CHECKING:
    from coordinator.decide import AggregatorJob
    from coordinator.parts import CoordinatorParts
    from lockstep.runtime.party import Head

log = Logger(__name__)


class Aggregators:
    """Holds the aggregators, one for each job."""

    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts
        self._made: dict[JobId, Aggregator] = {}
        self._ended = Refusals(parts.settings.home)
        """Jobs that killed the process running their Programs, until a command clears the refusal."""
        self._refused: set[JobId] = set()
        self._unfit: Backoff[JobId] = Backoff(AGAIN_SECONDS)
        """Jobs that this machine cannot hold: they are looked at again, in case memory comes free."""
        self._cache = MemoryCache(parts.settings.shared.memory_bytes)

    def prepared(self, job: JobId, params: JobParams, now: Seconds) -> bool:
        """Loads the job before its first payload arrives; returns False for good if it differs from the chain's record,
        and for a while if this machine cannot hold it."""
        if job in self._refused or self._unfit.in_backoff(job, now):
            return False
        with self._parts.database.reading() as session:
            made = reading.merges_by(session, reading.hex32(job), self._parts.me)
        if not made and self._ended.of(job) is not None:
            return False
        try:
            # INVARIANT: whatever it needs, a job is loaded in which a merge of ours may be challenged.
            self.of(job, params, fits=not made)
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

    def judge(self, job: JobId, params: JobParams, seen: AggregatorJob, wanted: Sequence[tuple[int, int]]) -> None:
        """Fetches and decodes the payloads of `wanted`, (round, slot), and stores the reports."""
        aggregator, found = self.of(job, params), []
        with self._parts.database.reading() as session:
            claims = {
                (r.number, claim.slot): claim
                for r in seen.rounds
                for claim in reading.revealed(session, reading.hex32(job), r.number, r.state.attempt)
            }
        for place in wanted:
            claim = claims[place]
            report, reason = aggregator.judge(reading.payload_of(claim))
            found.append(PayloadRow(claim=claim.id, report=report.value, reason=reason))
            log.info("payload checked", claim=claim.id, report=report.value, why=reason)
        with self._parts.database.session() as session:
            for row in found:
                session.merge(row)

    def defend(self, job: JobId, params: JobParams, head: Head) -> bool:
        """Makes the due moves about this account's merges and waits until they are mined; returns True if it made any.

        A task holds the lease of its one job, so it waits for the transactions that it sends.
        """
        with self._parts.database.reading() as session:
            rows = reading.my_open_games(session, reading.hex32(job), self._parts.me)
        if not rows:
            return False
        aggregator = self.of(job, params)
        rounds = {ClaimId(reading.unhex(claim.id)): claim.round for _, claim in rows}

        def held(claim: ClaimId) -> HeldClaim:
            stored = self._parts.party.contracts.market.round(job, rounds[claim])
            with self._parts.database.reading() as session:
                records = reading.merge_inputs(session, reading.hex32(job), rounds[claim], stored, params)
            return aggregator.held(RecordKey(claim, Seed(stored.seed), StateRoot(stored.merge_in)), records)

        games = {GameId(reading.unhex(game.id)): ClaimId(reading.unhex(claim.id)) for game, claim in rows}
        return aggregator.defence.turn(games, head, held) > 0

    def merge(
        self, job: JobId, params: JobParams, place: RecordKey, records: Sequence[RoundRecord]
    ) -> tuple[StateRoot, StateRoot, Cid]:
        """Computes a merge, as `Aggregator.merge` does. Raises Crashed if the job's Programs kill, or have killed,
        their process."""
        before = self._ended.of(job)
        if before is not None:
            raise Crashed(before.message, hint="`lockstep coordinator retry` allows the job again")
        try:
            return self.of(job, params).merge(place, records)
        except Crashed as error:
            # INVARIANT: a merge that ends what runs it is not begun again, in no later process either.
            self._ended.record(job, error)
            self._tell_refused(job, error)
            raise

    def loaded(self, job: JobId) -> bool:
        """Tells if a job is in memory."""
        return job in self._made

    def of(self, job: JobId, params: JobParams, *, fits: bool = False) -> Aggregator:
        """Returns the aggregator of a job, loaded now if necessary; with `fits`, raises Unfit if this machine cannot
        hold it."""
        if job not in self._made:
            store, shared = self._parts.party.store, self._parts.settings.shared
            check = Fitting(footprint.aggregator, path=shared.path) if fits else None
            loaded = loading.load(job, params, store, shared.threads, shared.path, fits=check)
            loaded.executable(loaded.programs.merge)
            self._made[job] = self.make(loaded)
        return self._made[job]

    def make(self, job: jobs.Job) -> Aggregator:
        """Returns the aggregator of a loaded job."""
        return Aggregator(job, self._parts, self._cache)

    def forget(self, claim: ClaimRow) -> None:
        """Drop what defends a merge that can no longer be challenged."""
        made = self._made.get(JobId(reading.unhex(claim.job)))
        if made is not None:
            made.forget(ClaimId(reading.unhex(claim.id)))

    def drop(self, job: JobId) -> None:
        """Drops a job that is over."""
        made = self._made.pop(job, None)
        if made is not None and made.job.box is not None:
            made.job.box.close()

    def close(self) -> None:
        """Drops all jobs."""
        for job in list(self._made):
            self.drop(job)

    @staticmethod
    def _tell_refused(job: JobId, error: LockstepError) -> None:
        log.error("a job is refused", job=reading.hex32(job), why=error.message, hint=error.hint)
