"""The worker's loop: read chain and storage, decide (pure), act; training and defending run beside it.

One thread talks to the chain, one computes claims, two play games, one announces. Everything that must survive a kill
is on disk before the transaction that relies on it: guard row, material, outbox. The process outlives its jobs: it
stays until no game about its claims is open and none of its stakes is locked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from lockstep.base.machine import room_on_disk
from lockstep.cli.output import event
from lockstep.execution import capacity, footprint, invalidity
from lockstep.execution.capacity import ChainPace, LiveClaim, Pace
from lockstep.execution.invalidity import Undefendable
from lockstep.execution.jobs import ClaimRun, Job
from lockstep.node.demands import Answers, Asks
from lockstep.node.ledger import JobLedger, Ledger
from lockstep.node.party import Head
from lockstep.node.sender import Sender
from lockstep.protocol.errors import (
    BlobMissing,
    DoctorError,
    FundsError,
    GuardRefused,
    LockstepError,
    RowMissing,
    TryLater,
    Unfit,
    Unreachable,
)
from lockstep.protocol.jobs import ZERO_ADDRESS, JobParams, Phase
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from worker import decide
from worker.claimant import Claimant
from worker.decide import Act, Do, JobView, Self
from worker.defending import Defence
from worker.parts import Parts, Taken
from worker.progress import Material
from worker.reading import look
from worker.telling import tell

if TYPE_CHECKING:
    from lockstep.chain.events import Event

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.25
PERMIT_SECONDS = 3600
RETRY_SECONDS = 2
FATAL = (DoctorError, GuardRefused, FundsError)
"""What is wrong with this machine, its home or its account, and not with a job."""
PATIENCE_SECONDS = 60.0
"""How long (of this machine's time) an endpoint may be silent before the worker gives up."""

_R = TypeVar("_R")


class Worker:
    """One worker process."""

    def __init__(self, parts: Parts, *, once: bool = False, only: JobId | None = None) -> None:
        """`once`: leave when a job is done and nothing of this key is at stake any more. `only`: join no other job."""
        self.parts = parts
        self._once = once
        self._only = only
        self._me = parts.address
        self._market = parts.contracts.market
        self._vault = parts.contracts.vault
        self._began = 0
        self._head = Head(-1, Seconds(0))
        self._free = Wei(0)
        self._wake = threading.Event()
        self._draining = threading.Event()
        self._leaving = threading.Event()
        self._sender: Sender[Act] = Sender(parts.outbox)
        self._asks = Asks(parts.contracts, self._me)
        self._answers = Answers(parts.contracts, parts.store, self._me)
        self._claimant = self.claimant(self._sender, self._wake.set)
        self._loader = ThreadPoolExecutor(1, "load")
        self._urgent = ThreadPoolExecutor(1, "load-own")
        self._taken: dict[JobId, Taken] = {}
        self._loading: dict[JobId, Future[tuple[JobParams, Job]]] = {}
        self._retry_at: dict[JobId, Seconds] = {}
        self._refused: set[JobId] = set()
        self._paced: set[JobId] = set()
        """Jobs whose pace was told."""
        self._too_large: set[JobId] = set()
        """Jobs whose memory was told: they are looked at again, in case it comes free."""
        self._undefendable: dict[JobId, Undefendable] = {}
        """Jobs that break a rule, until that is proven."""
        self._done: set[JobId] = set()
        self._games: set[bytes] = set()
        self._told_why = False
        self._logged: set[object] = set()
        self._chain = ChainPace()
        self._chain_at = Seconds(0)
        self._kept: set[JobId] = set()
        """Jobs of which something lies in this home."""

    def claimant(self, sender: Sender[Act], wake: Callable[[], None]) -> Claimant:
        """What computes this worker's claims and defends them."""
        return Claimant(self.parts, sender, Defence(self.parts, wake), wake)

    # -- from outside

    def drain(self) -> None:
        """Join nothing more, finish and defend what was joined, then leave; a second call leaves at once."""
        if self._draining.is_set():
            self._leaving.set()
        self._draining.set()
        self._wake.set()

    def run(self) -> None:
        """Until drained, or with `once` until a job is done, and nothing is at stake. Raises what a worker cannot go on
        with."""
        heard = time.monotonic()
        try:
            self._start()
            while not self._finished():
                try:
                    with room_on_disk():
                        self._tick()
                    heard = time.monotonic()
                except (Unreachable, TryLater) as error:
                    log.warning("waiting", code=error.code, message=error.message)
                    # Who could lose a stake by silence waits for as long as it takes.
                    if time.monotonic() - heard > PATIENCE_SECONDS and not self._ledger.at_stake(self._me):
                        raise
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()
        finally:
            for pool in (self._loader, self._urgent):
                pool.shutdown(wait=False, cancel_futures=True)
            self._claimant.close()
            self.parts.announcer.close()

    # -- the loop

    def _start(self) -> None:
        self.parts.watcher.poll()
        head = self.parts.party.head()
        self._began = head.number
        event("ready", address=self._me, node_key=self.parts.node.public.hex(), home=str(self.parts.home))
        self._kept = {m.job for m in self._claimant.defence.materials()}
        reasons = self.parts.watch.begin(self._ledger, head.time)
        if self.parts.watch.until is not None:
            event("listening", time=head.time, until=self.parts.watch.until, reasons=reasons)
        elif reasons:
            log.warning("not listening for this key's work elsewhere", reasons=reasons)

    def _register(self) -> None:
        """Put this home's node key on chain: the fence between two homes of one account."""
        if self._ledger.nodes.get(self._me) != self.parts.node.public:
            key = f"node/{self.parts.node.public.hex()}/{self._ledger.registrations.get(self._me, 0)}"
            self._sender.submit(key, self._vault.register_node(self.parts.node.public))

    @property
    def _ledger(self) -> Ledger:
        return self.parts.watcher.ledger

    @property
    def _now(self) -> Seconds:
        return self._head.time

    def _tick(self) -> None:
        head = self.parts.party.head()
        if head.number != self._head.number:
            self._head = head
            events = [e for e in self.parts.watcher.poll() if e.block > self._began]
            self.parts.watch.hear(events)
            self._tell(events)
            self._sender.settle()
            if self.parts.watch.heard(self._ledger, self._now):
                self._register()
            self._free = self._vault.free(self._me)
            self._take_jobs()
            for taken in self._taken.values():
                taken.ledger = self._ledger.jobs[taken.ledger.id]
                self._guarded(taken, partial(self._look, taken))
            self._answer()
        # INVARIANT: nothing is signed before the home knows that nobody else signs for its key.
        if self.parts.watch.may_sign(self._ledger, self._now, self._head.number):
            for taken in list(self._taken.values()):
                if taken.view is not None:
                    self._guarded(taken, partial(self._act, taken, taken.view))
        self._claimant.defence.play(self._ledger, self._head, self._run_of)

    def _look(self, taken: Taken) -> None:
        number = self._head.number
        taken.view = look(self._market, self._ledger, taken.ledger, taken.params, self._me, self._now, number)

    def _answer(self) -> None:
        """Act on what anybody may show: data that are demanded, jobs that break a rule."""
        try:
            for job, proof in list(self._undefendable.items()):
                self._void(job, proof)
            for key, call in self._answers.due(self._ledger, self._job_of, self._now):
                self._sender.submit(key, call)
        except (Unreachable, TryLater):
            raise
        except LockstepError as error:
            self._log_once(("answers", error.code), error)

    def _guarded(self, taken: Taken, work: Callable[[], None]) -> None:
        """Do something about one job. What goes wrong there ends the joining of this job, and the process only if the
        machine or the account is at fault, and nothing that must be defended would go with it."""
        try:
            with room_on_disk():
                work()
        except Unreachable:
            raise
        except TryLater as error:
            self._log_once((taken.ledger.id, error.code), error)
        except Exception as error:
            # INVARIANT: no job ends what defends the claims of others.
            if isinstance(error, FATAL) and not self._ledger.at_stake(self._me):
                raise
            taken.joins = False
            self._log_once((taken.ledger.id, type(error).__name__), error)

    def _log_once(self, what: object, error: Exception) -> None:
        if what in self._logged:
            return
        self._logged.add(what)
        if isinstance(error, LockstepError):
            log.error("this goes on without it", code=error.code, message=error.message, hint=error.hint)
        else:
            log.error("a defect: this goes on without it", what=str(what), exc_info=error)

    def _job_of(self, job: JobId) -> Job | None:
        taken = self._taken.get(job)
        return None if taken is None else taken.job

    def _run_of(self, material: Material) -> ClaimRun | None:
        taken = self._taken.get(material.job)
        return None if taken is None else self._claimant.run_of(material, taken)

    def _finished(self) -> bool:
        if self._leaving.is_set():
            return True
        if self._once and self._done:
            self._draining.set()
        if not self._draining.is_set() or not self._sender.idle:
            return False
        if any(decide.owes(t.view, self._me) for t in self._taken.values() if t.view is not None):
            return False
        # INVARIANT: who could still lose a stake by silence stays.
        staked, games = self._ledger.staked(self._me), self._ledger.games_against(self._me)
        if (staked or games) and not self._told_why:
            self._told_why = True
            event("staying", time=self._now, stakes=len(staked), games=len(games))
        return not staked and not games and not self._claimant.defence.busy(self._ledger)

    def _tell(self, events: list[Event]) -> None:
        for e in events:
            tell(e, self._me, self._holder(e), e.args.get("game") in self._games)
            if e.name == "Opened" and e.args["defender"] == self._me:
                self._games.add(e.args["game"])

    def _holder(self, e: Event) -> Address | None:
        """Who holds the slot that an event names."""
        job = self._ledger.jobs.get(e.args.get("job", b""))
        r = job.rounds.get(e.args["round"]) if job and "slot" in e.args else None
        return r.holders[e.slot][0] if r and e.slot in r.holders else None

    # -- jobs

    def _take_jobs(self) -> None:
        at_stake = self._ledger.at_stake(self._me)
        for job_id, ledger in self._ledger.jobs.items():
            if job_id in self._taken or job_id in self._refused:
                continue
            # INVARIANT: whatever its state, a job is loaded in which a stake of ours can still be lost.
            if job_id not in at_stake and (ledger.done or not self._joins(job_id)):
                if ledger.done and job_id in self._kept:
                    self._kept.discard(job_id)
                    self._claimant.forget(job_id)
                continue
            if job_id not in self._loading:
                if self._retry_at.get(job_id, 0) <= self._now:
                    # What a stranger's job takes to load holds up no claim of ours.
                    pool = self._urgent if job_id in at_stake else self._loader
                    self._loading[job_id] = self._beside(partial(self._load, job_id, job_id in at_stake), pool)
            elif self._loading[job_id].done():
                self._take(ledger, self._loading.pop(job_id))

    def _joins(self, job: JobId) -> bool:
        return not self._draining.is_set() and self._only in (None, job)

    def _beside(self, work: Callable[[], _R], pool: ThreadPoolExecutor | None = None) -> Future[_R]:
        """Do what a stranger's job asks for where it holds up no claim."""
        future = (pool or self._loader).submit(work)
        future.add_done_callback(lambda _: self._wake.set())
        return future

    def _load(self, job_id: JobId, at_stake: bool) -> tuple[JobParams, Job]:
        params = self._market.params(job_id)
        settings = self.parts.party.settings
        # INVARIANT: whatever it needs, a job is loaded in which a stake of ours can still be lost.
        fits = None if at_stake else footprint.fitting(footprint.worker)
        job = invalidity.load(job_id, params, self.parts.store, settings.threads, settings.path, fits=fits)
        for program in (job.programs.step, job.programs.encode):
            job.executable(program)
        return params, job

    def _take(self, ledger: JobLedger, loaded: Future[tuple[JobParams, Job]]) -> None:
        try:
            with room_on_disk():
                params, job = loaded.result()
        except (BlobMissing, Unreachable) as error:
            log.info("job not loaded yet", job=ledger.id.hex(), message=error.message)
            if isinstance(error, RowMissing):
                self._ask_row(ledger.id, error)
            self._retry_at[ledger.id] = Seconds(self._now + RETRY_SECONDS)
            return
        except Unfit as error:
            if ledger.id not in self._too_large:
                self._too_large.add(ledger.id)
                event("refused", time=self._now, job=ledger.id.hex(), code=error.code, message=error.message)
            self._retry_at[ledger.id] = Seconds(self._now + capacity.AGAIN_SECONDS)
            return
        except Exception as error:
            # INVARIANT: a worker joins only jobs whose every part it has checked.
            if isinstance(error, DoctorError) and not self._ledger.at_stake(self._me):
                raise
            self._refused.add(ledger.id)
            if isinstance(error, LockstepError):
                code, message = error.code, error.message
            else:
                code, message = "defect", f"{type(error).__name__} while it was loaded"
                self._log_once((ledger.id, "load"), error)
            event("refused", time=self._now, job=ledger.id.hex(), code=code, message=message)
            if isinstance(error, Undefendable):
                self._undefendable[ledger.id] = error
            return
        joins = self._only in (None, ledger.id) and not ledger.done
        taken = Taken(ledger, params, job, self._try(job) if joins else _untried(), joins=joins)
        self._taken[ledger.id] = taken
        self._kept.add(ledger.id)

    def _void(self, job: JobId, error: Undefendable) -> None:
        """Commit to what proves that a job breaks a rule and, once that is mined, prove it."""
        key, call = invalidity.proof(self.parts.contracts.validator, self._me, job, error.evidence)
        sent = self._sender.submit(key, call)
        if key.startswith("commit"):
            return
        del self._undefendable[job]
        if sent:
            event("voided", time=self._now, job=job.hex(), rule=error.rule.name.lower())

    def _try(self, job: Job) -> Future[Pace]:
        def tried() -> Pace:
            return capacity.keep_up(job, capacity.require_claimant, self.parts.party.chain_pace())

        return self._beside(tried)

    def _fits(self, taken: Taken) -> bool:
        """Tells if this machine keeps up with a job; it is tried again a while after it did not."""
        if not taken.trial.done():
            return False
        error = taken.trial.exception()
        if error is None:
            self._tell_pace(taken)
            return self._has_room(taken)
        if not isinstance(error, Unfit):
            raise error
        if taken.again_at is None:
            taken.again_at = Seconds(self._now + capacity.AGAIN_SECONDS)
            event("refused", time=self._now, job=taken.ledger.id.hex(), code=error.code, message=error.message)
        elif taken.again_at <= self._now:
            taken.again_at, taken.trial = None, self._try(taken.job)
        return False

    def _tell_pace(self, taken: Taken) -> None:
        if taken.ledger.id not in self._paced:
            self._paced.add(taken.ledger.id)
            found = taken.trial.result()
            event(
                "paced", time=self._now, job=taken.ledger.id.hex(), trains=found.trains, defends=found.defends,
                step_seconds=round(found.step, 6), shown_seconds=round(found.shown, 6),
            )  # fmt: skip

    def _has_room(self, taken: Taken) -> bool:
        """Tells if one more claim of a job could be defended beside every live claim of every job, all at once."""
        if self._chain_at <= self._now:
            self._chain, self._chain_at = self.parts.party.chain_pace(), Seconds(self._now + capacity.AGAIN_SECONDS)
        jobs = [self._ledger.places[claim][0] for claim in self._ledger.staked(self._me)]
        live = [self._planned(self._taken[job]) for job in jobs if job in self._taken]
        try:
            capacity.require_all([*live, self._planned(taken)], self._chain)
        except Unfit as error:
            self._log_once((taken.ledger.id, "room", len(live)), error)
            return False
        return True

    @staticmethod
    def _planned(taken: Taken) -> LiveClaim:
        measured = taken.trial.done() and taken.trial.exception() is None
        return capacity.live_claim(taken.params, taken.trial.result() if measured else None)

    def _ask_row(self, job: JobId, missing: RowMissing) -> None:
        """Demand a row that cannot be had, with stake that is free: claims that this home made may hang on it."""
        found = self._asks.row(job, self._market.params(job), missing, self._now)
        bond = self.parts.contracts.demands.row_bond_of(job, missing.row)
        if found is not None and self._free >= bond and self._sender.submit(*found):
            event("demanded", time=self._now, job=job.hex(), row=missing.row)

    def _stake(self, taken: Taken) -> None:
        """Deposit once a job what its rounds in flight can lock. A job whose claim and merge the account cannot cover
        is refused, and tried again later; FundsError if there is nothing at all."""
        key = f"stake/{taken.ledger.id.hex()}"
        if self._sender.known(key):
            taken.staked = True
            return
        if taken.funds_at is not None and self._now < taken.funds_at:
            return
        short = max(0, self._stake_wanted(taken.params) - self._free)
        token = self.parts.contracts.token
        amount = Wei(min(short, token.balance_of(self._me)))
        covered, least = self._free + amount, taken.params.role.slot_stake + taken.params.merge.stake
        # INVARIANT: a worker joins only jobs whose merge it could stake: else a round that it trained in may fail.
        if covered < least:
            told, taken.funds_at = taken.funds_at is not None, Seconds(self._now + capacity.AGAIN_SECONDS)
            message = f"a claim of this job and a merge lock {least}; {self._me} has {covered}"
            if not covered and not self._ledger.at_stake(self._me):
                raise FundsError(message, hint="send the account more of the job's token")
            if not told:
                event("refused", time=self._now, job=taken.ledger.id.hex(), code="funds", message=message)
            return
        if amount:
            until = Seconds(self._now + PERMIT_SECONDS)
            permit = token.sign_permit(self.parts.party.account, self._vault.address, amount, until)
            self._sender.submit(key, self._vault.deposit_with_permit(amount, permit))
        taken.staked = True

    def _stake_wanted(self, params: JobParams) -> Wei:
        return decide.stake_wanted(params)

    # -- acts

    def _act(self, taken: Taken, view: JobView) -> None:
        if taken.ledger.done:
            self._leave(taken)
            if taken.ledger.id not in self._taken:
                return
        # INVARIANT: a worker stakes on and joins only jobs whose windows its machine can keep.
        fit = taken.joins and self._fits(taken)
        if fit and not taken.staked and not self._draining.is_set():
            self._stake(taken)
        fit = fit and taken.staked
        place = self._ledger.place(self._me, frozenset({taken.params.merge.aggregator}))
        me = Self(
            self._me, self._free, place, self._draining.is_set() or not taken.joins, self._claimant.ready(taken), fit,
            self._claimant.base_held(taken),
        )  # fmt: skip
        possible = decide.acts(view, me)
        taken.since = decide.remember(possible, taken.since, self._now)
        aggregated = view.params.merge.aggregator != ZERO_ADDRESS
        for act in decide.due(possible, taken.since, self._now, decide.rank(view, me), aggregated):
            self._do(taken, view, act)
        for act in decide.ahead(view, me, self._sender.acts()):
            self._do(taken, view, act)

    def _do(self, taken: Taken, view: JobView, act: Act) -> None:
        job, market, submit = view.id, self._market, self._sender.submit
        r = view.round(act.round)
        # A round that is not started yet, or is void and starts again, will be of the job's attempt.
        attempt = view.job.attempt if r is None or r.phase == Phase.VOID else r.state.attempt
        key = f"{job.hex()[:16]}/{act.round}/{attempt}/{act.do}"
        if act.do == Do.FETCH:
            self._claimant.fetch(taken, act.round, decide.base_of(view, act.round), self._now)
        elif act.do == Do.START:
            submit(f"{key}/{view.job.attempt}", market.start_round(job, act.round), act)
        elif act.do == Do.JOIN:
            submit(f"{key}/{act.slot}", market.join(job, act.round, act.slot), act)
        elif act.do == Do.FINISH:
            submit(key, market.finish(job), act)
        elif r is None:
            return
        elif act.do == Do.LEAVE:
            submit(f"{key}/{act.slot}", market.leave(job, act.round, act.slot), act)
        elif act.do == Do.SEAL:
            submit(f"{key}/{r.state.seed_block}", market.seal(job, act.round), act)
        elif act.do == Do.FREEZE:
            submit(key, market.freeze(job, act.round, taken.ledger.rounds[act.round].bodies), act)
        elif act.do == Do.FINALIZE:
            submit(key, market.finalize(job, act.round), act)
        elif act.do == Do.RELEASE:
            # Once for each stake: what a game holds back is released when it is over.
            locks = ",".join(str(s) for v in view.rounds for s in sorted(v.idle_locks))
            submit(f"{key}/{r.state.attempt}/{view.job.settled}/{locks}", market.release(job, act.round), act)
        elif act.do == Do.TRAIN:
            self._claimant.train(taken, r, act.slot, self._now)
        elif act.do == Do.COMMIT:
            self._claimant.commit(taken, r, act, f"{key}/{act.slot}", self._now)
        elif act.do == Do.REVEAL:
            self._claimant.reveal(taken, r, act, f"{key}/{act.slot}", self._now)
        elif act.do == Do.DRAW:
            stage = view.block if r.audit is not None else "open"
            submit(f"{key}/{stage}", self.parts.contracts.witnesses.draw(job, act.round), act)
        elif act.do == Do.PUBLISH:
            self._claimant.publish(taken, r, act, f"{key}/{act.slot}", self._now)
        elif act.do == Do.ATTEST:
            self._claimant.attest(taken, r, act, f"{key}/{act.slot}", self._now)
        elif act.do == Do.MERGE:
            self._claimant.merge(taken, r, act, key, self._now)
        elif act.do == Do.BACK:
            submit(f"{key}/{view.job.attempt}/{r.state.backed}", market.back(job, act.round, act.rounds), act)

    def _leave(self, taken: Taken) -> None:
        """The job is done: take the pay; once nothing of ours is at stake in it, forget it."""
        job_id = taken.ledger.id
        at_stake = job_id in self._ledger.at_stake(self._me)
        if job_id in self._done and (at_stake or job_id not in self._kept):
            return
        # What games leave behind is earned after the job's end.
        key = f"withdraw/{job_id.hex()}" + ("/rest" if job_id in self._done else "")
        if not self._sender.known(key) and self._vault.credits(self._me):
            self._sender.submit(key, self._vault.withdraw())
            return
        if not self._sender.idle:
            return
        if job_id not in self._done:
            earned = sum(p.amount for p in self._ledger.pays if p.account == self._me and p.job == job_id)
            event("done", time=self._now, job=job_id.hex(), earned=str(earned))
            self._done.add(job_id)
        if not at_stake:
            self._kept.discard(job_id)
            self._claimant.forget(job_id)
            del self._taken[job_id]


def _untried() -> Future[Pace]:
    """In the place of a trial where nothing is joined."""
    trial: Future[Pace] = Future()
    trial.set_exception(Unfit("the pace of this job was not measured", hint="nothing of it is joined"))
    return trial
