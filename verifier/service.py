"""The verifier at work: read events -> decide (pure) -> replay on the bench, play games, tell what was done.

The loop decides; beside it one thread replays, two play games. Everything that is decided from is on the chain, so this
may be killed at any line: the next process sits down again at its games and goes on with the windows still open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event as Flag
from typing import Any

import structlog

from lockstep.base.machine import room_on_disk
from lockstep.base.shelf import Shelf
from lockstep.chain import games
from lockstep.chain.contracts import Call
from lockstep.chain.events import EventReader
from lockstep.cli.output import event
from lockstep.execution import footprint
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.execution.invalidity import Undefendable, load, proof
from lockstep.execution.jobs import ClaimRun, Job
from lockstep.execution.states import ClaimStates, States
from lockstep.node.demands import Answers, Asks
from lockstep.node.docket import Docket
from lockstep.node.ledger import ClaimRecord, GameRecord, Watcher
from lockstep.node.party import Head, Party
from lockstep.node.player import Due, HeldClaim, Side, Table
from lockstep.node.replay import UNAVAILABLE, PublicData, Replay, audit, first_difference, published_trace
from lockstep.protocol.dispute import honest
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.errors import (
    ChainError,
    FundsError,
    LockstepError,
    Mismatch,
    NotFoundError,
    RowMissing,
    TryLater,
    Unfit,
    Unreachable,
)
from lockstep.protocol.jobs import JobParams, Phase
from lockstep.protocol.market.ids import audit_id
from lockstep.protocol.types import ClaimId, GameId, JobId, Seconds, StateRoot, Wei
from verifier import decide
from verifier.bench import Bench, Cancelled, Work
from verifier.decide import Outcome
from verifier.equivocation import Equivocations, key_of, urls_of
from verifier.memory import Memory
from verifier.witnessing import Witnessing

POLL_SECONDS = 0.2
"""Of this machine's time: how often the chain is asked whether it has a new block."""

PATIENCE_SECONDS = 1.0
"""After an endpoint did not answer."""

PERMIT_SECONDS = 3600
STATES = "states"

NOT_THERE = ("blob_missing", "blob_corrupt", "payload_invalid", "mismatch")
"""Faults of a stored payload that its worker can mend by posting it; nobody answering is none."""

ANSWERED = {"commit": "precommitted", "answer": "answered", "settle": "settled"}
"""What is told of an act about a demand, by its key."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Subject:
    """What the bench works on: a claim to audit, or one to hold again because a game about it runs."""

    claim: ClaimRecord
    game: GameRecord | None = None


@dataclass(frozen=True)
class Replayed:
    """What the bench found."""

    audit: Replay
    payload: str | None
    """What is wrong with the stored payload, if anything: reported, and no ground for a game."""
    lacking: tuple[tuple[int, int], ...] = ()
    """Leaves of it that are not what was replayed."""


class Service:
    """One verifier."""

    def __init__(self, party: Party, memory: Memory, *, witness: bool = False, volunteer: bool = True) -> None:
        """`witness`: look where it is drawn, for the fee. `volunteer`: look at every claim."""
        self._party = party
        self._memory = memory
        self._witnessing = (
            Witnessing(party, memory, self._suspect, self._stake, self._ask_row, self._tell) if witness else None
        )
        self._volunteers = volunteer
        self._suspects: set[ClaimId] = set()
        """Claims that a duty led to; who is a witness alone replays no others to their end."""
        self._watcher = Watcher(EventReader(party.w3, party.addresses))
        self._table = Table(party.contracts.game, party.addresses.block, party.contracts.market)
        self._bench: Bench[Subject, Replayed] = Bench()
        self._params: dict[JobId, JobParams] = {}
        self._public: dict[JobId, PublicData] = {}
        self._settled: set[ClaimId] = set()
        """Claims that need no (more) replaying."""
        self._rest: dict[ClaimId, Seconds] = {}
        self._too_large: dict[JobId, Seconds] = {}
        """Jobs that this machine cannot hold: when they are looked at again."""
        self._unavailable: set[ClaimId] = set()
        self._wrong: dict[ClaimId, HeldAudit] = {}
        """Claims found wrong, their game not opened yet."""
        self._held: dict[ClaimId, HeldClaim] = {}
        self._seats: dict[GameId, ClaimId] = {}
        """Own games that run, and whose claim is held."""
        self._shelf = Shelf(party.settings.memory_bytes)
        self._states = States(party.settings.home_dir / STATES, party.settings.disk_bytes)
        self._docket = Docket(self._table, party.outbox, Side.CHALLENGER, self._moved, lambda: None)
        self._resting: set[str] = set()
        self._told: set[GameId] = set()
        self._voided: set[JobId] = set()
        self._asks = Asks(party.contracts, party.address)
        self._answers = Answers(party.contracts, party.store, party.address)
        self._equivocations = Equivocations(urls_of(party.settings.coordinator), party.contracts, memory)
        self._now = Seconds(0)

    def run(self, stop: Flag) -> None:
        """Until `stop` is set and every own game is over."""
        for key in self._party.settle():
            log.info("an earlier transaction did nothing", key=key)
        seen = -1
        try:
            while True:
                draining = stop.is_set()
                try:
                    with room_on_disk():
                        head = self._party.head()
                        # While it ends, every look counts: the last one pays the credits out.
                        if head.number != seen or draining:
                            self.step(head, draining)
                            seen = head.number
                        self._collect(head, draining)
                        self._play(head)
                    if draining and self._at_rest():
                        return
                except Unreachable as error:
                    log.warning(error.message, hint=error.hint)
                    if draining and not self._seats:
                        return
                    time.sleep(PATIENCE_SECONDS)
                time.sleep(POLL_SECONDS)
        finally:
            self._docket.close()
            self._bench.close()
            self._equivocations.close()
            if self._witnessing is not None:
                self._witnessing.close()

    def step(self, head: Head, draining: bool) -> None:
        """One look at the chain at a new block."""
        self._now = head.time
        self._watcher.poll()
        self._know_jobs()
        self._tell_ends()
        self._stand_up()
        self._play(head)
        # INVARIANT: nothing that a stranger published keeps a running game's move.
        for part in (
            lambda: self._open(head.time),
            lambda: self._show_pairs(head.time),
            lambda: self._answer(head.time),
            lambda: self._witness(head, draining),
            lambda: self._look(head, draining),
            lambda: self._withdraw(head, draining),
        ):
            self._guarded(part)

    def _witness(self, head: Head, draining: bool) -> None:
        if self._witnessing is not None:
            self._witnessing.step(head, self._watcher.ledger, self._params, draining)

    def _look(self, head: Head, draining: bool) -> None:
        if draining and self._bench.subject is not None and self._bench.subject.game is None:
            self._bench.cancel()
        self._replay(head.time, draining)

    def _guarded(self, part: Callable[[], None]) -> None:
        """Do one part of a look; what goes wrong there is logged once, and tried again at the next block."""
        try:
            with room_on_disk():
                part()
        except Unreachable:
            raise
        except LockstepError as error:
            if error.code not in self._resting:
                self._resting.add(error.code)
                log.error("a part of a look failed", code=error.code, why=error.message, hint=error.hint)
        except Exception as error:
            if type(error).__name__ not in self._resting:
                self._resting.add(type(error).__name__)
                log.exception("a part of a look failed")

    # -- look

    def _know_jobs(self) -> None:
        for job in self._watcher.ledger.jobs:
            if job not in self._params:
                self._params[job] = self._party.contracts.market.params(job)

    def _candidates(self) -> list[decide.Candidate]:
        windows = {job: params.windows.challenge_seconds for job, params in self._params.items()}
        found = decide.candidates(self._watcher.ledger, windows)
        return [c for c in found if self._volunteers or c.record.id in self._suspects]

    def _games(self) -> list[GameRecord]:
        return self._watcher.ledger.all_games()

    def _at_rest(self) -> bool:
        ledger, witness = self._watcher.ledger, self._witnessing
        if witness is not None and (not witness.at_rest(ledger) or witness.staked(ledger)):
            return False
        return not self._seats and not decide.seats(self._party.address, self._games(), ()) and not self._wrong

    # -- replay

    def _replay(self, now: Seconds, draining: bool) -> None:
        """Give the bench its next work, if it is free."""
        found = self._candidates()
        for passed in decide.missed(found, self._settled, now):
            self._settle(passed.record, Outcome.MATCH if self._is_known(passed.record) else Outcome.CLOSED)
        if self._bench.subject is not None:
            return
        # INVARIANT: a game that runs is answered before anything new is looked at.
        for game in sorted(decide.seats(self._party.address, self._games(), self._seats), key=self._deadline):
            known = self._watcher.ledger.find(game.claim)
            if known is not None and self._rest.get(game.claim, now) <= now:
                self._settled.add(game.claim)
                self._begin(Subject(known[2], game))
                return
        held = [c for c in found if self._too_large.get(c.record.job, now) <= now]
        while (not draining or (self._suspects and not self._volunteers)) and (
            chosen := decide.next_claim(held, self._settled, self._rest, now)
        ) is not None:
            if not self._is_known(chosen.record):
                self._begin(Subject(chosen.record))
                return
            self._settle(chosen.record, Outcome.MATCH)

    def _is_known(self, record: ClaimRecord) -> bool:
        # A witness that must agree without a list needs the roots of its own replay.
        return self._witnessing is None and self._memory.matched(record.id, record.trace_root)

    def _suspect(self, record: ClaimRecord) -> None:
        """Replay a claim to its end, and challenge it if it is wrong."""
        self._suspects.add(record.id)

    def _begin(self, subject: Subject) -> None:
        known = self._watcher.ledger.find(subject.claim.id)
        assert known is not None, "a subject comes from the ledger"
        ledger, round_, record = known

        def hold(run: ClaimRun, trace: Sequence[StateRoot]) -> HeldClaim:
            return HeldClaim(run, trace, self._shelf, ClaimStates(self._states, record.id))

        def compute(go_on: Callable[[], None]) -> Replayed:
            # INVARIANT: whatever it needs, a job is loaded in which a game of ours runs.
            public = self._public_of(record.job, None if subject.game else footprint.fitting(footprint.verifier))
            run = public.run_of(ledger, round_, record)
            go_on()
            done = audit(run, record, self._party.store, lambda t, root: go_on(), hold)
            if not done.matches or done.final is None:
                return Replayed(done, None)
            public.keep(record, done.final)
            fault = None if record.is_merge else public.fault_of_payload(record)
            return Replayed(done, fault, public.wrong_leaves(record) if fault else ())

        self._bench.begin(subject, compute)

    def _public_of(self, job: JobId, fits: footprint.Fits | None) -> PublicData:
        if job not in self._public:
            store, settings = self._party.store, self._party.settings
            loaded = load(job, self._params[job], store, settings.threads, settings.path, fits=fits)
            self._public[job] = PublicData(loaded, store, self._shelf)
        return self._public[job]

    def _collect(self, head: Head, draining: bool) -> None:
        """Take the bench's result, if there is one, and give it its next work at once."""
        work = self._bench.take()
        if work is not None:
            self._take(work, head)
            self._replay(head.time, draining)

    def _take(self, work: Work[Subject, Replayed], head: Head) -> None:
        record, game = work.subject.claim, work.subject.game
        try:
            found = work.future.result()
        except Cancelled:
            return
        except LockstepError as error:
            if isinstance(error, Undefendable):
                self._prove(record.job, error)
            if isinstance(error, Unfit):
                self._leave(record.job, error, head.time)
                return
            self._could_not(record, error, head.time)
            return
        except Exception as error:  # whatever a claimant published must not end the games that run
            log.exception("a replay failed", claim=record.id.hex())
            self._could_not(record, LockstepError(f"{type(error).__name__}: {error}"), head.time)
            return
        if game is not None:
            self._sit(game.id, record.id, found.audit.held)
            return
        if found.payload in NOT_THERE:
            self._demand(record, found.lacking)
        if self._witnessing is not None:
            self._witnessing.audited(record, found.audit)
        if found.audit.matches:
            self._memory.remember(record.id, record.trace_root)
            self._settle(record, Outcome.MATCH, seconds=round(work.seconds, 3), payload=found.payload)
        else:
            self._wrong[record.id] = HeldAudit(record, found.audit)
            self._settle(record, Outcome.MISMATCH, t=found.audit.t, seconds=round(work.seconds, 3))
            self._open(head.time)

    def _could_not(self, record: ClaimRecord, error: LockstepError, now: Seconds) -> None:
        """A claim that could not be replayed: again a little later, as long as its window is open."""
        if isinstance(error, RowMissing):
            self._ask_row(record.job, error)
        level = log.info if isinstance(error, UNAVAILABLE) else log.error
        level("a claim cannot be replayed yet", claim=record.id.hex(), why=error.message, hint=error.hint)
        self._rest[record.id] = Seconds(now + decide.RETRY_SECONDS)
        if record.id not in self._unavailable:
            self._unavailable.add(record.id)
            self._tell_audited(record, Outcome.UNAVAILABLE, reason=error.code)

    def _leave(self, job: JobId, error: Unfit, now: Seconds) -> None:
        """Let a job be that this machine cannot hold, and look again later, in case memory comes free; said once."""
        if job not in self._too_large:
            self._tell("refused", job=job.hex(), code=error.code, message=error.message)
        self._too_large[job] = Seconds(now + AGAIN_SECONDS)

    def _settle(self, record: ClaimRecord, outcome: Outcome, **more: Any) -> None:
        self._settled.add(record.id)
        self._tell_audited(record, outcome, **more)

    # -- what nobody could defend, what nobody can have

    def _prove(self, job: JobId, error: Undefendable) -> None:
        """Void a job that breaks a rule, once."""
        if job in self._voided:
            return
        due = partial(proof, self._party.contracts.validator, self._party.address, job, error.evidence)
        key, call = due()
        if key.startswith("commit"):
            self._attempt(key, call, "precommitted", job=job.hex())
            key, call = due()
        if not key.startswith("commit"):
            self._voided.add(job)
            self._attempt(key, call, "voided", job=job.hex(), rule=error.rule.name.lower())

    def _demand(self, record: ClaimRecord, lacking: Sequence[tuple[int, int]]) -> None:
        """Demand a payload that is not where its worker said, while that can still keep it out of the merge."""
        market = self._party.contracts.market
        if record.is_merge or market.phase(record.job, record.round) != Phase.ATTESTING:
            return
        found = self._asks.payload(record.job, record.round, record.slot, record.id, lacking)
        told = {"claim": record.id.hex(), "round": record.round, "slot": record.slot}
        self._ask(market.bond_of(record.job), found, told)

    def _ask_row(self, job: JobId, missing: RowMissing) -> None:
        """Demand a row of the dataset that cannot be had, when that pays: nobody can judge the job without it."""
        found = self._asks.row(job, self._params[job], missing, self._now)
        bond = self._party.contracts.demands.row_bond_of(job, missing.row)
        self._ask(bond, found, {"job": job.hex(), "row": missing.row})

    def _ask(self, bond: Wei, found: tuple[str, Call] | None, told: dict[str, Any]) -> None:
        if found is None or self._party.outbox.receipt(found[0]) is not None:
            return
        key, demand = found
        try:
            self._stake(bond, key)
        except (ChainError, FundsError, TryLater) as error:
            log.warning("data are not demanded", key=key, why=error.message)
            return
        self._attempt(key, demand, "demanded", **told)

    def _answer(self, now: Seconds) -> None:
        """Post rows that somebody demands, and end own demands that nobody answered."""
        for key, call in self._answers.due(self._watcher.ledger, self._job_of, now):
            act, demand, *_ = key.split("/")
            self._attempt(key, call, ANSWERED[act], demand=demand)

    def _job_of(self, job: JobId) -> Job | None:
        public = self._public.get(job)
        return None if public is None else public.job

    def _attempt(self, key: str, call: Call, name: str, **fields: Any) -> None:
        """Send what others may do as well: whoever is first has done it."""
        try:
            self._party.outbox.send(call, key)
        except (ChainError, FundsError, TryLater) as error:
            log.info("not done", key=key, why=error.message)
            return
        self._tell(name, **fields)

    # -- challenge

    def _open(self, now: Seconds) -> None:
        for wrong in list(self._wrong.values()):
            record = wrong.record
            if self._rest.get(record.id, now) > now:
                continue
            nonce = decide.nonce_of(record.id, self._party.address, self._games())
            try:
                if nonce is not None:
                    wrong = self._with_list(wrong, now)
                    self._challenge(wrong, nonce)
            except (FundsError, TryLater) as error:
                log.warning("a wrong claim cannot be challenged yet", claim=record.id.hex(), why=str(error))
                self._rest[record.id] = Seconds(now + decide.RETRY_SECONDS)
                continue
            except (ChainError, Mismatch) as error:
                # Closed in the meantime, or convicted by somebody else.
                log.warning("a wrong claim is not challenged", claim=record.id.hex(), why=str(error))
            del self._wrong[record.id]

    def _with_list(self, wrong: HeldAudit, now: Seconds) -> HeldAudit:
        """With the claim's list of roots, if its job draws witnesses and it was published since.

        Raises TryLater while its owner may still publish it: a game that knows t is four moves shorter.
        """
        params = self._params[wrong.record.job]
        found = self._watcher.ledger.find(wrong.record.id)
        if wrong.audit.published is not None or wrong.record.is_merge or not params.role.witnesses or found is None:
            return wrong
        record = found[2]
        published = published_trace(self._party.store, record, params.role.transitions) if record.trace_cid else None
        audit = self._watcher.ledger.audits.get(audit_id(record.job, record.round, record.attempt))
        if published is None and now < decide.list_due(record, params, None if audit is None else audit.state):
            raise TryLater("the claim's list of roots may still be published", hint="it is looked for again")
        t = first_difference(published, wrong.audit.held.trace)
        return HeldAudit(record, replace(wrong.audit, published=published, t=t))

    def _challenge(self, wrong: HeldAudit, nonce: int) -> None:
        party, record, found = self._party, wrong.record, wrong.audit
        claim = games.claim(party.contracts.market, record.id, record.body, found.held.carried)
        # INVARIANT: both sides argue from the S_0 that the contract computes.
        if claim.live and claim.state_zero != found.held.state_zero:
            raise Mismatch("our S_0 is not the contract's", hint="this is a bug or a reorganisation: look at the claim")
        move = honest.opening(claim, found.held, found.published, nonce)
        if move is None:
            return
        self._stake(Wei(claim.bond), f"{record.id.hex()}/{nonce}")
        game = game_id(record.id, party.address, nonce)
        key = f"open/{record.id.hex()}/{nonce}"
        party.outbox.send(games.call(party.contracts.game, move, game), key)
        try:
            self._table.game(game)
        except NotFoundError as error:
            # What an earlier process had mined, a reorganisation has undone since.
            party.outbox.forget(key)
            raise TryLater("the game is not on the chain", hint="it is opened again") from error
        self._tell("challenged", claim=record.id.hex(), game=game.hex(), t=move.t, round=record.round, slot=record.slot)
        self._sit(game, record.id, found.held)

    def _stake(self, bond: Wei, key: str) -> None:
        """Deposit what is missing of one bond; the key makes it one deposit per game, whatever crashes."""
        party = self._party
        missing = decide.deposit_due(party.contracts.vault.free(party.address), bond)
        if not missing:
            return
        permit = party.contracts.token.sign_permit(
            party.account, party.addresses.vault, missing, Seconds(party.head().time + PERMIT_SECONDS)
        )
        party.outbox.send(party.contracts.vault.deposit_with_permit(missing, permit), f"deposit/{key}")

    def _show_pairs(self, now: Seconds) -> None:
        """Convict who signed two claims for one slot: no game, no bond."""
        ledger = self._watcher.ledger
        self._equivocations.step(ledger)
        for record, call in self._equivocations.due(ledger):
            if self._rest.get(record.id, now) <= now:
                self._rest[record.id] = Seconds(now + decide.RETRY_SECONDS)
                self._attempt(
                    key_of(record.id), call, "equivocated", claim=record.id.hex(), round=record.round, slot=record.slot,
                    worker=record.worker,
                )  # fmt: skip

    # -- play

    def _sit(self, game: GameId, claim: ClaimId, held: HeldClaim) -> None:
        self._seats[game], self._held[claim] = claim, held

    def _stand_up(self) -> None:
        """Leave games whose opening a reorganisation has undone: their claims are looked at anew."""
        known = self._watcher.ledger
        for game in [g for g in self._seats if g not in known.games and g not in known.ended]:
            claim = self._seats.pop(game)
            self._held.pop(claim, None)
            self._settled.discard(claim)

    def _play(self, head: Head) -> None:
        """Make every move that is due, the earliest deadline first."""
        needs = self._docket.needs()
        self._states.need({claim: {t - 1 for t in ts} for claim, ts in needs.items()})
        self._docket.play(dict(self._seats), head.number, head.time, self._held.get, self._held.get)

    def _moved(self, game: GameId, due: Due, seconds: float) -> None:
        self._tell(
            "moved", game=game.hex(), claim=due.state.claim.hex(), move=due.move.call, phase=due.state.phase.name,
            seconds=round(seconds, 3),
        )  # fmt: skip

    def _deadline(self, game: GameRecord) -> int:
        try:
            return self._table.game(game.id).deadline
        except NotFoundError:
            return 0

    def _tell_ends(self) -> None:
        for game in decide.ended(self._party.address, self._games(), self._told):
            self._told.add(game.id)
            seat = self._seats.pop(game.id, None)
            self._held.pop(game.claim, None)
            self._states.forget(game.claim)
            # What ended before this process began was told by an earlier one.
            if seat is not None:
                name = decide.name_of_end(game.verdict)
                self._tell(name, claim=game.claim.hex(), game=game.id.hex(), verdict=game.verdict.name.lower())

    # -- money

    def _withdraw(self, head: Head, draining: bool) -> None:
        running = len(self._seats) + len(self._wrong)
        if not decide.may_withdraw(running, self._watcher.ledger.jobs.values(), draining):
            return
        vault = self._party.contracts.vault
        amount = vault.credits(self._party.address)
        if amount:
            try:
                self._party.outbox.send(vault.withdraw(), f"withdraw/{head.number}")
            except (ChainError, FundsError, TryLater) as error:
                log.warning("the credits stay in the vault", why=error.message)
                return
            self._tell("withdrawn", amount=str(amount))

    # -- tell

    def _tell_audited(self, record: ClaimRecord, outcome: Outcome, **more: Any) -> None:
        told = {k: v for k, v in more.items() if v is not None}
        self._tell(
            "audited", claim=record.id.hex(), job=record.job.hex(), round=record.round, slot=record.slot,
            verdict=outcome.value, **told,
        )  # fmt: skip

    def _tell(self, name: str, **fields: Any) -> None:
        event(name, time=self._now, **fields)


@dataclass(frozen=True)
class HeldAudit:
    """A claim that was found wrong."""

    record: ClaimRecord
    audit: Replay
