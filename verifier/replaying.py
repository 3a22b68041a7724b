"""Replays claims beside the loop, one at a time.

the backlog's next claim -> its job and public data -> every state against the published list -> Replayed
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from lockstep.base.cache import MemoryCache
from lockstep.base.log import Logger
from lockstep.execution.box.handle import Cancelled
from lockstep.execution.capacity import SHARE
from lockstep.execution.invalidity import Undefendable
from lockstep.execution.jobs import ClaimRun
from lockstep.execution.states import ClaimStates, States
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import ClaimRecord, JobLedger, RoundLedger
from lockstep.market.replay import Replay, WrongSource, audit
from lockstep.protocol.errors import Crashed, LockstepError, RowMissing, Unfit
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import JobId, Seconds, StateRoot
from lockstep.runtime.keyed_executor import KeyedExecutor, Stopped
from lockstep.storage import ContentStore
from verifier.choosing import Backlog, Task
from verifier.demanding import Demander
from verifier.loading import LoadedJobs
from verifier.playing import GamePlayers
from verifier.proving import Prover
from verifier.reading import MarketView

log = Logger(__name__)


LEAST_SECONDS, MOST_SECONDS = 60.0, 1800.0
"""Bounds of a replay's budget in machine seconds, whatever a job's windows are."""


@dataclass(frozen=True)
class Replayed:
    """The result of one replay."""

    task: Task
    audit: Replay
    seconds: float
    """The duration of the replay on this machine."""
    payload: str | None = None
    """The fault of the stored payload, if it has one; it is reported, and gives no ground for a game."""
    lacking: tuple[tuple[int, int], ...] = ()
    """(tensor, leaf) of the stored payload's leaves that differ from the replay's."""


class Replayer:
    """Replays claims on one worker thread."""

    def __init__(
        self,
        store: ContentStore,
        jobs: LoadedJobs,
        cache: MemoryCache,
        states: States,
        backlog: Backlog,
        seats: GamePlayers,
        demander: Demander,
        reporter: Prover,
    ) -> None:
        """`cache` and `states` keep states of claims, in memory and on disk, for games."""
        self._store = store
        self._jobs = jobs
        self._cache = cache
        self._states = states
        self._backlog = backlog
        self._seats = seats
        self._demander = demander
        self._reporter = reporter
        self._executor: KeyedExecutor[Task, Replayed] = KeyedExecutor("replay")
        self._task: Task | None = None
        """The replay that the worker thread runs, or has finished."""
        self._thread: int | None = None
        """The worker thread's identifier."""
        self._began = 0.0
        self._late = False
        """True once the work has used up its budget."""
        self._turned = False
        """True once it was cancelled in favour of other jobs."""

    def step(self, view: MarketView) -> None:
        """Starts the next replay if none runs; while this process ends, only those that games and duties need."""
        task = self._task
        if task is not None and not self._executor.over(task) and task.game is None:
            # INVARIANT: a game that runs is answered before anything new is looked at: no replay keeps the thread from
            # it, and none keeps it from other claims for longer than its budget.
            owed = self._backlog.owes(task)
            spent, job = time.monotonic() - self._began, task.claim.job
            self._late = self._late or (not owed and spent > budget(view.params[job]))
            self._turned = self._turned or (not owed and self._backlog.turn_is_over(view, job, spent))
            waited_for = self._backlog.urgent(view, self._seats.unplayed(view))
            if self._late or self._turned or waited_for or (view.draining and not owed):
                self._cancel(task)
        self.begin(view)

    def _cancel(self, task: Task) -> None:
        self._executor.cancel(task)
        if self._thread is not None:
            self._jobs.stop(task.claim.job, self._thread)

    def begin(self, view: MarketView) -> None:
        """Starts the next replay, if none runs."""
        self._backlog.settle_missed(view)
        if self._task is None and (task := self._backlog.next(view, self._seats.unplayed(view))) is not None:
            known = view.ledger.find(task.claim.id)
            assert known is not None, "a task comes from the ledger"
            self._task, self._began, self._late, self._turned = task, time.monotonic(), False, False
            self._executor.begin(task, partial(self._replay, task, view.params[task.claim.job], *known))

    @property
    def job(self) -> JobId | None:
        """The job of the claim that the worker thread replays or has replayed."""
        return None if self._task is None else self._task.claim.job

    @property
    def done(self) -> bool:
        """True if a result is ready to be taken."""
        return self._task is not None and self._executor.over(self._task)

    def take(self, view: MarketView) -> Replayed | None:
        """Returns the result, once; None for a replay that was cancelled, or whose failure is handled here."""
        assert self._task is not None, "something is done"
        task, self._task = self._task, None
        record = task.claim
        try:
            return self._executor.take(task)
        except (Stopped, Cancelled):
            if self._late:
                most = Seconds(view.params[record.job].windows.challenge_seconds)
                self._backlog.late(record.job, _dear(), view.now, most)
            elif self._turned:
                self._backlog.turned(record.job)
            return None
        except Crashed as error:
            self._backlog.crashed(record.job, error)
            return None
        except Unfit as error:
            self._backlog.refused(record.job, error, view.now)
            return None
        except LockstepError as error:
            if isinstance(error, Undefendable):
                self._reporter.void(record.job, error)
            if isinstance(error, WrongSource):
                # Nobody can replay what stands on it: it is challenged itself.
                self._backlog.suspect(error.record)
            if isinstance(error, RowMissing):
                self._demander.demand_row(view, record.job, error)
            self._backlog.failed(record, error, view.now)
            return None
        except Exception as error:  # whatever a claimant published must not end the games that run
            log.exception("a replay failed", claim=record.id.hex())
            self._backlog.failed(record, LockstepError(f"{type(error).__name__}: {error}"), view.now)
            return None

    def close(self) -> None:
        """Stops the replay after its current step."""
        self._executor.close()

    def _replay(
        self, task: Task, params: JobParams, ledger: JobLedger, round_: RoundLedger, record: ClaimRecord
    ) -> Replayed:
        """Replays a claim. Runs on the worker thread."""
        began, self._thread = time.monotonic(), threading.get_ident()
        # INVARIANT: whatever it needs, a job is loaded in which a game of ours runs.
        public = self._jobs.get(record.job, params, fits=not task.game)
        run = public.run_of(ledger, round_, record)
        self._executor.go_on(task)

        def hold(run: ClaimRun, trace: Sequence[StateRoot]) -> HeldClaim:
            return HeldClaim(run, trace, self._cache, ClaimStates(self._states, record.id))

        found = audit(run, record, self._store, lambda t, root: self._executor.go_on(task), hold)
        if not found.matches or found.final is None:
            return Replayed(task, found, time.monotonic() - began)
        public.keep(record, found.final)
        fault = None if record.is_merge else public.fault_of_payload(record)
        lacking = public.wrong_leaves(record) if fault else ()
        return Replayed(task, found, time.monotonic() - began, fault, lacking)


def budget(params: JobParams) -> float:
    """Returns the machine seconds allowed for the replay of one claim without an own game."""
    return max(LEAST_SECONDS, min(SHARE * params.windows.challenge_seconds, MOST_SECONDS))


def _dear() -> Unfit:
    return Unfit(
        "the replay of one of its claims takes longer than its share of this machine",
        hint="give the process more --threads, or leave this job to faster machines",
    )
