"""The coordinator's loop: read chain and storage -> decide (pure) -> act, one job at a time.

Every decision follows from the chain's state at that moment, so the process may be killed at any line.

A merge goes through five modules: `coordinator.decide` says that one is due; `coordinator.acting` has it computed and
sends it; `coordinator.merging` keeps each job loaded and its payloads judged; `coordinator.aggregator` computes one
job's merge by `lockstep.execution.merging`; `lockstep.runtime.merges` binds its place before anybody hears of it.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from coordinator import leases, reading, receipts
from coordinator.acting import ActionSender
from coordinator.answering import DemandsOfJobs
from coordinator.background import run_in_background
from coordinator.decide import AggregatorJob, Decider, decide, wanted_payloads
from coordinator.folds import MARKET
from coordinator.indexer import Indexed, Indexer, jobs_to_look_at
from coordinator.losses import RunLosses
from coordinator.merging import Aggregators
from coordinator.models import EventRow, JobRow
from coordinator.parts import CoordinatorParts
from coordinator.settings import CoordinatorSettings
from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.protocol.errors import TryLater, Unreachable
from lockstep.protocol.jobs import JobParams, JobStatus
from lockstep.protocol.types import JobId
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.error_boundary import ErrorBoundary
from lockstep.runtime.feewatch import FeeWatch
from lockstep.runtime.party import Head, HeadTracker
from lockstep.runtime.sender import Sender

LOOKS = 12
"""Most passes over one job in a row while each finds something to do: a round's last acts follow one another by a
block."""

CATCH_UP_STEPS = 50
HEAD_SECONDS = 0.25
"""Machine seconds between two requests for the latest block, whatever notifications arrive."""
BACKOFF_SECONDS = (1.0, 60.0)
"""Machine seconds of back-off of a job whose pass failed, at first and at most."""
TOLD = {"Attested": "attested", "Frozen": "frozen", "Merged": "merged", "JobDone": "done"}
"""The events of own jobs on chain that are printed, by their name there."""

log = Logger(__name__)

Result = TypeVar("Result")


class Coordinator:
    """The worker process of one coordinator."""

    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts
        self._indexer = Indexer(parts.database, parts.party.w3, parts.party.addresses, parts.party.check)
        self._sender: Sender[None] = Sender(parts.party.outbox)
        self._aggregators = self.aggregators(parts)
        self._actions = ActionSender(parts, self._sender, self._aggregators, self._beside)
        self._demands = DemandsOfJobs(parts, self._sender, self._aggregators)
        self._losses = RunLosses(parts.database, parts.party.store, parts.settings.home)
        self._holder = f"{parts.settings.home_name}/{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._params: dict[JobId, JobParams] = {}
        self._closed: set[str] = set()
        self._backoff: Backoff[str] = Backoff(*BACKOFF_SECONDS)
        self._boundary = ErrorBoundary()
        self._idle: dict[str, tuple[int, int]] = {}
        """By job: the block in which nothing was due, and how many receipts were held then."""
        self._indexed = 0
        self._fees = FeeWatch(parts.party.outbox, event)
        self._head_tracker = HeadTracker(lambda: parts.party.head(), HEAD_SECONDS)
        self._differ = False
        """True while two RPC providers disagree."""
        self._taken: Head | None = None
        """The block up to which the index is complete."""

    def aggregators(self, parts: CoordinatorParts) -> Aggregators:
        """Returns the aggregators that work on the jobs."""
        return Aggregators(parts)

    @classmethod
    def open(cls, settings: CoordinatorSettings) -> Coordinator:
        """Opens the parts, waits for transactions of an earlier process, and drops that process's leases."""
        parts = CoordinatorParts.open(settings)
        parts.database.check()
        leases.clear(parts.database, settings.home_name)
        for key in parts.party.settle():
            log.info("a transaction of an earlier process reverted", key=key)
        return cls(parts)

    def index(self) -> list[str]:
        """Indexes new blocks; returns the jobs to process."""
        head = self._head_tracker.poll()
        if head == self._taken:
            self._indexer.touch()
        else:
            self._parts.party.outbox.tend()
        for _ in range(CATCH_UP_STEPS if head != self._taken else 0):
            # INVARIANT: while two providers differ nothing is done.
            self._differ = self._parts.party.check is not None
            done = self._step()
            self._differ = False
            if done.behind <= 0:
                self._taken = head
                break
        # The API is a process of its own: it reads what is held from the index.
        self._indexer.note(self._fees.poll(head))
        self._parts.nonces.forget(head.time)
        with self._parts.database.reading() as session:
            return [job for job in jobs_to_look_at(session, self._parts.me) if job not in self._closed]

    def poll(self, job: str) -> None:
        """Does what is due for one job, until nothing is.

        A block in which nothing was due is not processed again, unless a receipt has arrived since.
        """
        if self._differ or self._backoff.in_backoff(job, time.monotonic()):
            return
        # INVARIANT: no job keeps the service from the others.
        error = self._boundary.run(partial(self._visit, job), job, job=job)
        if error is None:
            self._backoff.succeeded(job)
            return
        with self._parts.database.reading() as session:
            playing = reading.my_open_games(session, job, self._parts.me)
        # A clock that runs does not rest.
        self._backoff.failed(job, time.monotonic(), at_most=BACKOFF_SECONDS[0] if playing else None)

    def _visit(self, job: str) -> None:
        with leases.held(self._parts.database, f"job:{job}", self._holder) as taken:
            if not taken or self._idle.get(job) == (self._head_tracker.poll().number, self._held(job)):
                return
            for _ in range(LOOKS):
                block, held = self._parts.party.head().number, self._held(job)
                if not self._once(JobId(reading.unhex(job))):
                    # An index that lags may have hidden something that is due.
                    self._idle[job] = min(block, self._indexed), held
                    return
                self._step()

    def close(self) -> None:
        """Closes files; sent transactions stay sent."""
        self._aggregators.close()
        self._parts.close()

    # -- read

    def _step(self) -> Indexed:
        done = self._indexer.step()
        self._indexed = done.block
        if done.events:
            event("indexed", time=done.time, block=done.block, events=len(done.events))
        with self._parts.database.reading() as session:
            own = {job for job in {e.job for e in done.events if e.job} if self._is_mine(session.get(JobRow, job))}
            final = [
                c for e in done.events if e.name == "RoundFinal" for c in reading.merges_of(session, e.job, e.args)
            ]
        if done.events and done.behind <= 0:
            with self._parts.database.session() as session:
                receipts.forget(session)
        for told in done.events:
            if told.contract == MARKET and told.name in TOLD and told.job in own:
                self._tell(told)
        for claim in final:
            self._aggregators.forget(claim)
        return done

    def _once(self, job: JobId) -> bool:
        """Makes one pass over a job; returns True if it did anything."""
        params = self._params_of(job)
        if params.merge.aggregator != self._parts.me:
            return False
        decider = reading.read_decider(self._parts.party, self._parts.settings.demands)
        seen = self._read(job, params, decider)
        prepared = partial(self._aggregators.prepared, job, params, decider.now)
        if seen.job.status != JobStatus.DONE and not self._beside(job, prepared):
            return False
        defended = self._aggregators.defend(job, params, Head(decider.block, decider.now))
        answered = self._demands.tend(job, params, decider.now)
        actions = decide(seen, decider)
        # What has a deadline comes first; a loss is for those who look on.
        idle = not actions and not defended and not answered
        computed = idle and self._aggregators.loaded(job) and self._loss(job, params)
        if seen.job.status == JobStatus.DONE and not actions and not computed:
            self._close_job(job, seen)
        acted = self._actions.act(job, seen, actions, decider)
        # A store that is slow to say that it holds nothing keeps no transaction.
        if wanted := wanted_payloads(seen, decider):
            self._beside(job, partial(self._aggregators.judge, job, params, seen, wanted))
        return acted or defended or answered or computed

    def _beside(self, job: JobId, work: Callable[[], Result]) -> Result:
        """Runs a job's long work, and plays the games of other jobs until it is done."""
        return run_in_background(work, partial(self._play_others, job))

    def _play_others(self, busy: JobId) -> None:
        """Indexes new blocks, and makes the due moves in every game but the busy job's."""
        if self._differ:
            return
        # INVARIANT: no work on one job keeps a move in another's game.
        try:
            self._step()
            with self._parts.database.reading() as session:
                playing = reading.jobs_in_game(session, self._parts.me)
            for job in playing:
                id_ = JobId(reading.unhex(job))
                if id_ != busy:
                    self._boundary.run(partial(self._play, job, id_), job, job=job)
        except (Unreachable, TryLater) as error:
            log.info("the games could not be read from the chain", why=error.message)

    def _play(self, job: str, id_: JobId) -> None:
        with leases.held(self._parts.database, f"job:{job}", self._holder) as taken:
            if taken:
                self._aggregators.defend(id_, self._params_of(id_), self._parts.party.head())

    def _loss(self, job: JobId, params: JobParams) -> bool:
        return self._beside(job, lambda: self._losses.poll(job, lambda: self._aggregators.of(job, params).job))

    def _close_job(self, job: JobId, seen: AggregatorJob) -> None:
        """Finishes with a job that is done, once no game about this account's merges is open and none of its stake is
        locked."""
        name = reading.hex32(job)
        with self._parts.database.reading() as session:
            playing = reading.my_open_games(session, name, self._parts.me)
            made = reading.merges_by(session, name, self._parts.me)
            asked = reading.own_demands(session, name, self._parts.me)
        # INVARIANT: who could still lose a stake by silence stays.
        if playing or asked or any(r.mine for r in seen.rounds):
            return
        for claim in made:
            self._aggregators.forget(claim)
        self._aggregators.drop(job)
        self._losses.drop(job)
        self._closed.add(name)

    def _read(self, job: JobId, params: JobParams, decider: Decider) -> AggregatorJob:
        with self._parts.database.reading() as session:
            return reading.read_job(self._parts.party.contracts, session, job, params, decider)

    def _params_of(self, job: JobId) -> JobParams:
        if job not in self._params:
            self._params[job] = self._parts.party.contracts.market.params(job)
        return self._params[job]

    def _is_mine(self, row: JobRow | None) -> bool:
        return row is not None and row.aggregator.lower() == self._parts.me.lower()

    def _held(self, job: str) -> int:
        with self._parts.database.reading() as session:
            return receipts.count(session, job)

    # -- tell

    def _tell(self, told: EventRow) -> None:
        fields = {k: v for k, v in told.args.items() if k != "job"}
        event(TOLD[told.name], time=told.time, job=told.job, **fields)
