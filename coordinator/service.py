"""The coordinator at work: read chain and storage -> decide (pure) -> act, one job at a time.

Everything is decided from what the chain says at that moment, so this may be killed at any line: the next look goes on.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import structlog

from coordinator import leases, reading, receipts
from coordinator.aggregator import Aggregator
from coordinator.decide import (
    Action,
    AggregatorJob,
    AggregatorRound,
    Attest,
    Back,
    Decider,
    Deposit,
    Finalize,
    Finish,
    Freeze,
    Merge,
    Release,
    Seal,
    StartRound,
    Withdraw,
    decide,
    receipts_due,
    wanted_payloads,
)
from coordinator.indexer import Indexed, Indexer, jobs_to_look_at
from coordinator.models import ClaimRow, EventRow, JobRow, PayloadRow
from coordinator.parts import CoordinatorParts
from coordinator.projections import MARKET
from coordinator.settings import CoordinatorSettings
from lockstep.base.shelf import Shelf
from lockstep.chain.contracts import Call
from lockstep.cli.output import event
from lockstep.execution import footprint, jobs
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.node.demands import Answers
from lockstep.node.player import AtHand, Due, NotAtHand, Seat, Side, Table
from lockstep.protocol.dispute.game import Game as StoredGame
from lockstep.protocol.errors import (
    ChainError,
    FundsError,
    LockstepError,
    Mismatch,
    ProgramInvalid,
    TryLater,
    Unfit,
    Unreachable,
)
from lockstep.protocol.jobs import JobParams, JobStatus
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, ClaimId, GameId, JobId, Seconds

LOOKS = 12
"""Looks at one job in a row while each finds something to do: a round's last acts follow each other by a block."""

CATCH_UP_STEPS = 50
MINED_SECONDS = 30.0
"""How long a task waits for a transaction; what is not mined then is waited for again by the next task."""

PERMIT_SECONDS = 3600
REST_SECONDS = (1.0, 60.0)
"""Of this machine's time: how long a job rests whose look failed, at first and at most."""
TOLD = {"Attested": "attested", "Frozen": "frozen", "Merged": "merged", "JobDone": "done"}
"""Events of the market about one's own jobs that a watcher may rely on."""

log = structlog.get_logger(__name__)


class Coordinator:
    """One coordinator's worker."""

    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts
        self._party = parts.party
        self._contracts = parts.party.contracts
        self._outbox = parts.party.outbox
        self._indexer = Indexer(parts.database, parts.party.w3, parts.party.addresses)
        self._table = Table(self._contracts.game, parts.party.addresses.block)
        self._answers = Answers(self._contracts, parts.party.store, parts.me)
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._params: dict[JobId, JobParams] = {}
        self._aggregators: dict[JobId, Aggregator] = {}
        self._refused: set[JobId] = set()
        self._too_large: dict[JobId, Seconds] = {}
        """Jobs that this machine cannot hold: when they are looked at again."""
        self._closed: set[str] = set()
        self._shelf = Shelf(parts.settings.shared.memory_bytes)
        self._rests: dict[str, tuple[float, float]] = {}
        """By job: when it is looked at again after a look failed, and how long it rests then."""
        self._logged: set[tuple[str, str]] = set()
        self._idle: dict[str, tuple[int, int]] = {}
        self._indexed = 0

    @classmethod
    def open(cls, settings: CoordinatorSettings) -> Coordinator:
        """Open the parts, wait for what was sent before, drop the leases of whoever worked here before."""
        parts = CoordinatorParts.open(settings)
        parts.database.check()
        leases.clear(parts.database)
        for key in parts.party.settle():
            log.info("an earlier transaction did nothing", key=key)
        return cls(parts)

    def index(self) -> list[str]:
        """Take in new blocks; returns the jobs to look at."""
        for _ in range(CATCH_UP_STEPS):
            done = self._step()
            if done.behind <= 0:
                break
        self._parts.nonces.forget(Seconds(done.time))
        with self._parts.database.reading() as session:
            return [job for job in jobs_to_look_at(session, self._parts.me) if job not in self._closed]

    def look(self, job: str) -> None:
        """Do what is due for one job, until nothing is.

        A block in which nothing was is not looked at again, unless a receipt has come since.
        """
        if self._rests.get(job, (0.0, 0.0))[0] > time.monotonic():
            return
        try:
            self._looked(job)
        except Unreachable:
            raise
        except Exception as error:
            # INVARIANT: no job keeps the service from the others.
            self._rest(job, error)
        else:
            self._rests.pop(job, None)

    def _rest(self, job: str, error: Exception) -> None:
        """Let a job rest whose look failed, longer each time; said once for each reason."""
        rest = min(2 * self._rests.get(job, (0.0, REST_SECONDS[0] / 2))[1], REST_SECONDS[1])
        with self._parts.database.reading() as session:
            playing = reading.my_open_games(session, job, self._parts.me)
        # A clock that runs does not rest.
        self._rests[job] = time.monotonic() + (REST_SECONDS[0] if playing else rest), rest
        reason = error.code if isinstance(error, LockstepError) else type(error).__name__
        if (job, reason) in self._logged:
            return
        self._logged.add((job, reason))
        if isinstance(error, LockstepError):
            log.warning("try again", job=job, code=error.code, why=error.message, hint=error.hint)
        else:
            log.error("a look failed", job=job, exc_info=error)

    def _looked(self, job: str) -> None:
        with leases.held(self._parts.database, f"job:{job}", self._holder) as taken:
            if not taken or self._idle.get(job) == (self._party.head().number, self._held(job)):
                return
            for _ in range(LOOKS):
                block, held = self._party.head().number, self._held(job)
                if not self._once(JobId(reading.unhex(job))):
                    # An index that lags may have hidden something that is due.
                    self._idle[job] = min(block, self._indexed), held
                    return
                self._step()

    def close(self) -> None:
        """Close files; what was sent stays sent."""
        self._aggregators.clear()
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
            self._forget(claim)
        return done

    def _once(self, job: JobId) -> bool:
        """One look; whether anything was done."""
        params = self._params_of(job)
        if params.merge.aggregator != self._parts.me:
            return False
        world = reading.read_world(self._party)
        seen = self._read(job, params, world)
        if seen.job.status != JobStatus.DONE and not self._prepared(job, params, world.now):
            return False
        defended = self._defend(job, params, world)
        answered = self._answer_rows(job, params, world)
        actions = decide(seen, world)
        if seen.job.status == JobStatus.DONE and not actions:
            self._close_job(job, seen)
        acted = self._act(job, seen, actions, world)
        # A store that is slow to say that it holds nothing keeps no transaction.
        self._judge(job, params, seen, wanted_payloads(seen, world))
        return acted or defended or answered

    def _close_job(self, job: JobId, seen: AggregatorJob) -> None:
        """Look no more at a job that is done, once no game about our merges is open and no stake of ours is locked."""
        name = reading.hex32(job)
        with self._parts.database.reading() as session:
            playing = reading.my_open_games(session, name, self._parts.me)
            made = reading.merges_by(session, name, self._parts.me)
        # INVARIANT: who could still lose a stake by silence stays.
        if playing or any(view.mine for view in seen.views):
            return
        for claim in made:
            self._forget(claim)
        self._aggregators.pop(job, None)
        self._closed.add(name)

    def _read(self, job: JobId, params: JobParams, world: Decider) -> AggregatorJob:
        with self._parts.database.reading() as session:
            return reading.read_job(self._contracts, session, job, params, world)

    def _params_of(self, job: JobId) -> JobParams:
        if job not in self._params:
            self._params[job] = self._contracts.market.params(job)
        return self._params[job]

    def _is_mine(self, row: JobRow | None) -> bool:
        return row is not None and row.aggregator.lower() == self._parts.me.lower()

    def _prepared(self, job: JobId, params: JobParams, now: Seconds) -> bool:
        """Load the job before its first payload comes; False for good if it is not what the chain names, and for a
        while if this machine cannot hold it."""
        if job in self._refused or self._too_large.get(job, now) > now:
            return False
        with self._parts.database.reading() as session:
            made = reading.merges_by(session, reading.hex32(job), self._parts.me)
        try:
            # INVARIANT: whatever it needs, a job is loaded in which a merge of ours may be challenged.
            self._aggregator(job, params, None if made else footprint.fitting(footprint.aggregator))
        except Unfit as error:
            if job not in self._too_large:
                log.error("the job is refused", job=reading.hex32(job), why=error.message, hint=error.hint)
            self._too_large[job] = Seconds(now + AGAIN_SECONDS)
            return False
        except (ProgramInvalid, Mismatch) as error:
            self._refused.add(job)
            log.error("the job is refused", job=reading.hex32(job), why=error.message, hint=error.hint)
            return False
        return True

    def _aggregator(self, job: JobId, params: JobParams, fits: footprint.Fits | None = None) -> Aggregator:
        if job not in self._aggregators:
            settings = self._parts.settings
            shared = settings.shared
            loaded = jobs.load(job, params, self._party.store, shared.threads, shared.path, fits=fits)
            loaded.executable(loaded.programs.merge)
            self._aggregators[job] = self.aggregator(loaded, settings.home / "claims")
        return self._aggregators[job]

    def aggregator(self, job: jobs.Job, archive: Path) -> Aggregator:
        """What works on a loaded job; its merges' material is kept in `archive`."""
        return Aggregator(job, self._party.store, self._parts.guard, archive, self._shelf)

    def _judge(self, job: JobId, params: JobParams, seen: AggregatorJob, wanted: Sequence[tuple[int, int]]) -> None:
        """Fetch payloads and write down what they are."""
        if not wanted:
            return
        aggregator = self._aggregator(job, params)
        with self._parts.database.reading() as session:
            claims = {
                (view.number, claim.slot): claim
                for view in seen.views
                for claim in reading.revealed(session, reading.hex32(job), view.number, view.stored.attempt)
            }
        found = []
        for place in wanted:
            claim = claims[place]
            report, reason = aggregator.judge(reading.payload_of(claim))
            found.append(PayloadRow(claim=claim.id, report=report.value, reason=reason))
            log.info("payload judged", claim=claim.id, report=report.value, why=reason)
        with self._parts.database.session() as session:
            for row in found:
                session.merge(row)

    # -- act

    def _act(self, job: JobId, seen: AggregatorJob, actions: Iterable[Action], world: Decider) -> bool:
        """Send what was decided, all of it before waiting for any; whether anything took effect."""
        sent = []
        for action in actions:
            try:
                key, call = self._call(job, seen, action, world)
                self._submit(call, key)
                sent.append(key)
            except LockstepError as error:
                # Mostly that anybody may call these, and somebody was first; what stays due is tried again.
                log.info("not done", action=type(action).__name__, why=error.message, hint=error.hint)
        return sum(self._mined(key) for key in sent) > 0

    def _call(self, job: JobId, seen: AggregatorJob, action: Action, world: Decider) -> tuple[str, Call]:
        """(key, transaction) of an action; runs the merge Program for a merge."""
        market, vault, token = self._contracts.market, self._contracts.vault, self._contracts.token
        name = f"{type(action).__name__.lower()}/{job.hex()}/{seen.job.attempt}"
        match action:
            case Deposit(amount):
                deadline = Seconds(world.now + PERMIT_SECONDS)
                permit = token.sign_permit(self._party.account, vault.address, amount, deadline)
                return f"{name}/{world.block}", vault.deposit_with_permit(amount, permit)
            case StartRound(r):
                return f"{name}/{r}", market.start_round(job, r)
            case Seal(r):
                view = seen.round(r)
                drawing = view is not None and view.stored.seed_block > 0
                return f"{name}/{r}/{'draw' if drawing else 'close'}", market.seal(job, r)
            case Attest(r):
                view = seen.round(r)
                assert view is not None, "receipts are decided on a round in view"
                return f"{name}/{r}", self._attest(job, view, receipts_due(view, seen.params, world.now))
            case Freeze(r):
                view = seen.round(r)
                assert view is not None, "a freeze is decided on a round in view"
                with self._parts.database.reading() as session:
                    bodies = reading.bodies(session, reading.hex32(job), r, view.stored.attempt)
                return f"{name}/{r}", market.freeze(job, r, bodies)
            case Merge(r, rounds):
                return self._merge(job, seen, r, rounds)
            case Back(r, rounds, backed):
                return f"{name}/{r}/{backed}", market.back(job, r, rounds)
            case Finalize(r):
                return f"{name}/{r}", market.finalize(job, r)
            case Release(r):
                return f"{name}/{r}", market.release(job, r)
            case Finish():
                return name, market.finish(job)
            case Withdraw():
                return f"{name}/{world.block}", vault.withdraw()

    def _attest(self, job: JobId, view: AggregatorRound, slots: Collection[int]) -> Call:
        """All these slots' receipts in one transaction; one that the contract refuses by now keeps no other."""
        with self._parts.database.reading() as session:
            given = receipts.held(session, reading.hex32(job), view.number, view.stored.attempt, slots)
        whole = self._contracts.market.attest(job, view.number, given)
        if self._allowed(whole):
            return whole
        alone = [r for r in given if self._allowed(self._contracts.market.attest(job, view.number, [r]))]
        if not alone:
            raise TryLater("the chain takes none of these receipts now", hint="others may have sent them already")
        return self._contracts.market.attest(job, view.number, alone)

    def _merge(self, job: JobId, seen: AggregatorJob, r: int, rounds: int) -> tuple[str, Call]:
        view = seen.round(r)
        assert view is not None, "a merge is decided on a round in view"
        claim = claim_id(job, r, seen.job.attempt, MERGE_SLOT)
        with self._parts.database.reading() as session:
            before, accepted = reading.merge_inputs(session, reading.hex32(job), r, view.stored, seen.params)
        aggregator = self._aggregator(job, seen.params)
        out, out2, cid = aggregator.merge(claim, r, view.stored, before, accepted)
        return f"merge/{claim.hex()}", self._contracts.market.merge(job, r, out, out2, cid, rounds)

    def _answer_rows(self, job: JobId, params: JobParams, world: Decider) -> bool:
        """Post the rows that somebody demands: the data are here, and an answer earns 60 % of the asker's bond."""
        with self._parts.database.reading() as session:
            asked = reading.row_demands(session, reading.hex32(job), world.now)
        posted = 0
        for demand in asked:
            due = self._answers.row(demand, self._aggregator(job, params).job)
            if due is None or self._outbox.receipt(due[0]) is not None:
                continue
            key, call = due
            try:
                self._send(call, key)
            except (ChainError, FundsError, TryLater) as error:
                # Another holder may have posted it in the same block.
                log.info("not done", key=key, why=error.message)
                continue
            posted += 1
            event("precommitted" if key.startswith("commit") else "answered", time=world.now, demand=demand.id.hex())
        return posted > 0

    def _defend(self, job: JobId, params: JobParams, world: Decider) -> bool:
        """Make the moves that are due in games about merges of ours, what is in memory first, then the earliest
        deadline; all are sent before any is waited for. Tells if any was made."""
        with self._parts.database.reading() as session:
            games = reading.my_open_games(session, reading.hex32(job), self._parts.me)
        if not games:
            return False
        aggregator = self._aggregator(job, params)
        aggregator.need([ClaimId(reading.unhex(claim.id)) for _, claim in games])
        standing: list[tuple[StoredGame, GameId, ClaimRow]] = []
        for game, claim in games:
            self._alone(game.id, partial(self._stand, standing, GameId(reading.unhex(game.id)), claim))
        sent: dict[GameId, Due] = {}
        hard = []
        for stored, own, claim in sorted(standing, key=lambda s: s[0].deadline):
            known = AtHand(aggregator.at_hand(ClaimId(reading.unhex(claim.id))))
            seat = Seat(own, Side.DEFENDER, known, self._table, self._submit)
            try:
                self._alone(own.hex(), partial(self._move, seat, stored, world, sent))
            except NotAtHand:
                hard.append((stored, own, claim))
        for stored, own, claim in hard:
            self._alone(own.hex(), partial(self._hard_move, job, params, own, claim, stored, world, sent))
        moved = False
        for own, due in sent.items():
            if self._mined(due.key):
                moved = True
                event("defending", time=world.now, game=reading.hex32(own), move=type(due.move).__name__)
        return moved

    def _stand(self, standing: list[tuple[StoredGame, GameId, ClaimRow]], game: GameId, claim: ClaimRow) -> None:
        standing.append((self._table.game(game), game, claim))

    def _hard_move(
        self, job: JobId, params: JobParams, game: GameId, claim: ClaimRow, stored: StoredGame, world: Decider,
        sent: dict[GameId, Due],
    ) -> None:  # fmt: skip
        self._move(self._seat(job, params, game, claim), stored, world, sent)

    def _move(self, seat: Seat, stored: StoredGame, world: Decider, sent: dict[GameId, Due]) -> None:
        due = seat.due(world.now, stored)
        if due is not None:
            self._submit(due.call, due.key)
            sent[seat.game] = due

    def _seat(self, job: JobId, params: JobParams, game: GameId, claim: ClaimRow) -> Seat:
        """The seat at a game about a merge that has to be computed again."""
        stored = self._contracts.market.round(job, claim.round)
        with self._parts.database.reading() as session:
            before, accepted = reading.merge_inputs(session, claim.job, claim.round, stored, params)
        own = ClaimId(reading.unhex(claim.id))
        held = self._aggregator(job, params).held(own, claim.round, stored, before, accepted)
        return Seat(game, Side.DEFENDER, held, self._table, self._submit)

    def _alone(self, game: str, work: Callable[[], None]) -> None:
        """Do something about one game; what goes wrong there keeps no other game's move, and is logged once."""
        try:
            work()
        except (Unreachable, NotAtHand):
            raise
        except LockstepError as error:
            if (game, error.code) not in self._logged:
                self._logged.add((game, error.code))
                log.warning("a move waits", game=game, code=error.code, why=error.message)
        except Exception as error:
            if (game, type(error).__name__) not in self._logged:
                self._logged.add((game, type(error).__name__))
                log.exception("a game's move failed", game=game)

    def _held(self, job: str) -> int:
        with self._parts.database.reading() as session:
            return receipts.count(session, job)

    # -- send

    def _allowed(self, call: Call) -> bool:
        """Whether the chain would do it now."""
        try:
            self._outbox.simulate(call)
        except (ChainError, FundsError):
            return False
        return True

    def _submit(self, call: Call, key: str) -> None:
        # Mined, and yet due again: it reverted, or its block is gone.
        if self._outbox.receipt(key) is not None:
            self._outbox.forget(key)
        self._outbox.submit(call, key)

    def _mined(self, key: str) -> bool:
        try:
            self._outbox.wait(key, MINED_SECONDS)
        except (ChainError, FundsError, TryLater) as error:
            log.info("not done", key=key, why=error.message)
            return False
        return True

    def _send(self, call: Call, key: str) -> None:
        self._submit(call, key)
        self._outbox.wait(key, MINED_SECONDS)

    # -- tell

    def _tell(self, told: EventRow) -> None:
        fields = {k: v for k, v in told.args.items() if k != "job"}
        event(TOLD[told.name], time=told.time, job=told.job, **fields)

    def _forget(self, claim: ClaimRow) -> None:
        aggregator = self._aggregators.get(JobId(reading.unhex(claim.job)))
        if aggregator is not None:
            aggregator.forget(ClaimId(reading.unhex(claim.id)))
