"""Chooses the next claim to replay: first those with own games, then the one whose challenge window ends first.

Jobs take turns. A replay that takes long is cancelled in favour of jobs that have had fewer turns, and restarts later
with twice the time. The verifier prints one event when a claim needs no more replaying, and one when its data cannot be
fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.base.log import Logger
from lockstep.base.vitals import VITALS
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.market.ledger import ClaimRecord, GameRecord
from lockstep.market.replay import UNAVAILABLE
from lockstep.protocol.errors import Crashed, LockstepError, Unfit
from lockstep.protocol.types import ClaimId, JobId, Seconds, TraceRoot
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.refusals import Refusals
from verifier import decide
from verifier.decide import AuditResult, Candidate
from verifier.journal import Journal
from verifier.reading import MarketView
from verifier.telling import EventPrinter

log = Logger(__name__)

TURN_SECONDS = 60.0
"""Machine seconds of a job's first turn while other jobs wait; each unfinished turn doubles the next."""


@dataclass(frozen=True)
class Task:
    """A claim to replay: for an audit, or again because an own game about it runs."""

    claim: ClaimRecord
    game: GameRecord | None = None


class Backlog:
    """Holds the claims that are still to be replayed."""

    def __init__(
        self,
        journal: Journal,
        printer: EventPrinter,
        backoff: Backoff[ClaimId],
        refused: Refusals,
        *,
        volunteers: bool,
        witnesses: bool,
    ) -> None:
        """`volunteers`: every claim is a candidate; otherwise suspects alone. `backoff` holds the claims that are not
        to be tried now."""
        self._refused = refused
        """Jobs whose claims are not replayed until a command clears the refusal."""
        self._journal = journal
        self._printer = printer
        self._backoff = backoff
        self._volunteers = volunteers
        self._witnesses = witnesses
        self._settled: dict[ClaimId, TraceRoot] = {}
        """Claims that need no (more) replaying, with the trace that was replayed: after a reorganisation, a claim can
        reappear with another trace."""
        self._suspects: set[ClaimId] = set()
        """Claims to replay to their end although this verifier is only a witness, because a duty cast doubt on them."""
        self._unavailable: set[ClaimId] = set()
        self._too_large: Backoff[JobId] = Backoff(AGAIN_SECONDS)
        """Jobs that this machine cannot hold."""
        self._turns: dict[JobId, int] = {}
        """Turns since a claim of the job was replayed to its end."""
        self._late: dict[JobId, tuple[int, Seconds]] = {}
        """By job whose replay used up its whole budget: the number of times, and the end of its back-off."""
        self._left_alone: set[JobId] = set()
        """Refused jobs that had claims to replay at the last look."""

    # -- what is next

    def next(self, view: MarketView, games: Iterable[GameRecord]) -> Task | None:
        """Returns the claim to replay now. `games` are the own ones whose claim has not been replayed in this
        process."""
        # INVARIANT: a game that runs is answered before anything new is looked at.
        for game in games:
            known = view.ledger.find(game.claim)
            if known is not None and not self._backoff.in_backoff(game.claim, view.now):
                self._settled[game.claim] = known[2].trace_root
                return Task(known[2], game)
        if view.draining and (self._volunteers or not self._suspects):
            return None
        found = self._candidates(view)
        while (chosen := self._next_of(found, view.now)) is not None:
            if not self._is_known(chosen.record):
                return Task(chosen.record)
            self._settle(chosen.record, AuditResult.MATCH)
        return None

    def turn_is_over(self, view: MarketView, job: JobId, spent: float) -> bool:
        """Tells if a replay must yield: its job has used up its turn, and a job with no more turns is waiting."""
        turns = self._turns.get(job, 0)
        if spent <= TURN_SECONDS * 2**turns:
            return False
        others = [c for c in self._candidates(view) if c.record.job != job]
        waits = self._next_of(others, view.now)
        return waits is not None and self._turns.get(waits.record.job, 0) <= turns

    def urgent(self, view: MarketView, games: Iterable[GameRecord]) -> bool:
        """Tells if an own game waits for a replay. `games` are the own ones whose claim has not been replayed in this
        process."""
        return any(
            view.ledger.find(game.claim) is not None and not self._backoff.in_backoff(game.claim, view.now)
            for game in games
        )

    def owes(self, task: Task) -> bool:
        """Tells if a replay is due even while this process ends: a game needs it, or a witness's verdict does."""
        return task.game is not None or (not self._volunteers and task.claim.id in self._suspects)

    def settle_missed(self, view: MarketView) -> None:
        """Settles the claims whose challenge window is over."""
        for passed in decide.missed(self._candidates(view), self._settled, view.now):
            self._settle(passed.record, AuditResult.MATCH if self._is_known(passed.record) else AuditResult.CLOSED)

    def suspect(self, record: ClaimRecord) -> None:
        """Queues a claim for a replay to its end, and for a challenge if it is wrong."""
        self._suspects.add(record.id)

    def reopen(self, claim: ClaimId) -> None:
        """Makes a settled claim a candidate again."""
        self._settled.pop(claim, None)

    # -- what came of it

    def matched(self, record: ClaimRecord, seconds: float, payload: str | None) -> None:
        """Records that a claim is right; `payload` names the fault of its stored payload, if any."""
        self._turns.pop(record.job, None)
        self._journal.remember(record.id, record.trace_root)
        self._settle(record, AuditResult.MATCH, seconds=round(seconds, 3), payload=payload)

    def mismatched(self, record: ClaimRecord, t: int | None, seconds: float) -> None:
        """Records that a claim is wrong from transition t on; t is None while its list of states is not available."""
        self._turns.pop(record.job, None)
        self._settle(record, AuditResult.MISMATCH, t=t, seconds=round(seconds, 3))

    def failed(self, record: ClaimRecord, error: LockstepError, now: Seconds) -> None:
        """Puts a claim that could not be replayed into back-off; it is retried while its window is open."""
        level = log.info if isinstance(error, UNAVAILABLE) else log.error
        level("a claim cannot be replayed yet", claim=record.id.hex(), why=error.message, hint=error.hint)
        self._backoff.failed(record.id, now)
        if record.id not in self._unavailable:
            self._unavailable.add(record.id)
            self._printer.audited(record, AuditResult.UNAVAILABLE, reason=error.code)

    def refused(self, job: JobId, error: Unfit, now: Seconds) -> None:
        """Puts a job that this machine cannot hold into back-off, in case memory comes free, and prints one event about
        it."""
        if job not in self._too_large:
            self._printer.print_event("refused", job=job.hex(), code=error.code, message=error.message)
        self._too_large.failed(job, now)

    def turned(self, job: JobId) -> None:
        """Counts a turn of a job whose replay was cancelled for others; it restarts once those had as many turns."""
        self._turns[job] = self._turns.get(job, 0) + 1

    def late(self, job: JobId, error: Unfit, now: Seconds, most: Seconds) -> None:
        """Put a job whose replay used up its budget into back-off, twice as long each time, `most` at the most; log
        it once."""
        # INVARIANT: jobs take turns on a verifier's thread: none is replayed for long while one with fewer turns waits,
        # and one that used up its budget is in back-off for longer each time.
        times, _ = self._late.get(job, (0, now))
        if not times:
            self._printer.print_event("refused", job=job.hex(), code=error.code, message=error.message)
        self._late[job] = times + 1, Seconds(now + min(AGAIN_SECONDS * 2 ** min(times, 32), most))
        self.turned(job)

    def crashed(self, job: JobId, error: Crashed) -> None:
        """Refuses a job that killed the process running its Programs: its claims are replayed only for own games."""
        # INVARIANT: a job whose Programs end what runs them is not looked at again, in no later process either.
        self._refused.record(job, error)
        self._printer.print_event("refused", job=job.hex(), code=error.code, message=error.message)

    # -- for who watches

    def waiting(self, view: MarketView) -> int:
        """Returns the number of claims still to be replayed, without reading the journal."""
        return sum(not c.is_settled(self._settled) for c in self._candidates(view))

    @property
    def refusals(self) -> int:
        """The number of refused jobs with claims to replay: too large for this machine, over budget, or crashed."""
        return self._too_large.failing + len(self._late) + len(self._left_alone)

    # -- inside

    def _next_of(self, found: list[Candidate], now: Seconds) -> Candidate | None:
        awake = [c for c in found if not self._in_backoff(c.record.job, now)]
        delayed = {c.record.id for c in awake if self._backoff.in_backoff(c.record.id, now)}
        return decide.next_claim(awake, self._settled, delayed, now, self._turns)

    def _in_backoff(self, job: JobId, now: Seconds) -> bool:
        return self._too_large.in_backoff(job, now) or (job in self._late and now < self._late[job][1])

    def _candidates(self, view: MarketView) -> list[Candidate]:
        found = decide.candidates(view.ledger, view.params)
        looked = [
            c for c in found if (self._volunteers or c.record.id in self._suspects) and not c.is_settled(self._settled)
        ]
        # A stranger may have had any number of jobs refused: those alone are asked for that have something to replay.
        self._left_alone = {job for job in {c.record.job for c in looked} if self._refused.of(job) is not None}
        return [c for c in looked if c.record.job not in self._left_alone]

    def _is_known(self, record: ClaimRecord) -> bool:
        # A witness that must agree without a list needs the roots of its own replay.
        return not self._witnesses and self._journal.matched(record.id, record.trace_root)

    def _settle(self, record: ClaimRecord, result: AuditResult, **more: object) -> None:
        self._settled[record.id] = record.trace_root
        VITALS.count("claims_replayed", result.value)
        self._printer.audited(record, result, **more)
