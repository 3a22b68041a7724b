"""The worker's loop: read chain and storage, decide (pure), act; training and defending run beside it.

One thread talks to the chain, one computes claims, one plays games, one announces. Everything that must survive a kill
is on disk before the transaction that relies on it: guard row, material, outbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import structlog

from lockstep import jobs, merging
from lockstep.cli.output import event
from lockstep.jobs import ClaimRun, Job
from lockstep.ledger import JobLedger, Ledger, Watcher
from lockstep.protocol import claims
from lockstep.protocol.errors import (
    BlobMissing,
    ChainError,
    DoctorError,
    FundsError,
    GuardRefused,
    LockstepError,
    TryLater,
    Unreachable,
)
from lockstep.protocol.jobs import ZERO_ADDRESS, JobParams, Reveal
from lockstep.protocol.types import MERGE_SLOT, Address, Cid, ClaimId, Digest, JobId, Seconds, Seed, StateRoot, Wei
from worker import decide
from worker.announcing import Announcer
from worker.cheats import Cheat
from worker.claiming import Place, Stopped, Trained, compute, rebuild
from worker.decide import Act, Do, JobView, RoundView, Self
from worker.defending import Defence
from worker.guard import Bound, Guard
from worker.lying import Liar
from worker.progress import Material, WorkFolder
from worker.reading import look
from worker.telling import tell

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call, Contracts
    from lockstep.chain.events import Event
    from lockstep.chain.outbox import Outbox
    from lockstep.identity import NodeKey
    from lockstep.party import Party
    from lockstep.storage import ContentStore

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.25
PERMIT_SECONDS = 3600
PATIENCE_SECONDS = 60.0
"""How long (of this machine's time) an endpoint may be silent before the worker gives up."""


@dataclass(frozen=True)
class Parts:
    """What a worker is made of."""

    party: Party
    node: NodeKey
    guard: Guard
    watcher: Watcher
    announcer: Announcer

    @property
    def home(self) -> Path:
        """The worker's directory."""
        return self.party.settings.home_dir

    @property
    def contracts(self) -> Contracts:
        """The deployment."""
        return self.party.contracts

    @property
    def outbox(self) -> Outbox:
        """What it sends."""
        return self.party.outbox

    @property
    def store(self) -> ContentStore:
        """Where content is."""
        return self.party.store

    @property
    def address(self) -> Address:
        """The staking account."""
        return self.party.address


@dataclass
class Taken:
    """A job that this worker takes part in."""

    ledger: JobLedger
    params: JobParams
    job: Job
    cheat: Cheat | None = None
    since: dict[Act, Seconds] = field(default_factory=dict)
    """When each act was first seen to be possible."""
    view: JobView | None = None


CheatFor = Callable[[Job], Cheat]


class Worker:
    """One worker process."""

    def __init__(
        self, parts: Parts, *, once: bool = False, only: JobId | None = None, cheat_for: CheatFor | None = None
    ) -> None:
        """`once`: leave when a job is done. `only`: take no other job. `cheat_for`: the lie to tell about a job."""
        self.parts = parts
        self._once = once
        self._only = only
        self._cheat_for = cheat_for
        self._me = parts.address
        self._market = parts.contracts.market
        self._vault = parts.contracts.vault
        self._block = -1
        self._now = Seconds(0)
        self._free = Wei(0)
        self._taken: dict[JobId, Taken] = {}
        self._loading: dict[JobId, Future[tuple[JobParams, Job]]] = {}
        self._refused: set[JobId] = set()
        self._work: dict[ClaimId, Future[Trained]] = {}
        self._retry_at: dict[object, Seconds] = {}
        self._sent: dict[str, Act | None] = {}
        self._wake = threading.Event()
        self._draining = threading.Event()
        self._stop = threading.Event()
        self._bench = ThreadPoolExecutor(1, "train")
        self._defence = Defence(parts, self.run_of)
        self._liar = Liar(parts.home)
        self._done: set[JobId] = set()
        self._reported: set[ClaimId] = set()
        self._games: set[bytes] = set()
        self._began = 0

    # -- from outside

    def drain(self) -> None:
        """Join nothing more, reveal what was joined, then leave; a second call leaves after the step in work."""
        if self._draining.is_set():
            self._stop.set()
        self._draining.set()
        self._wake.set()

    def run(self) -> None:
        """Until drained, or with `once` until a job is done. Raises what a worker cannot go on with."""
        silent = 0.0
        try:
            self._start()
            while not self._finished():
                try:
                    self._tick()
                    silent = 0.0
                except (Unreachable, TryLater) as error:
                    silent += POLL_SECONDS
                    log.warning("waiting", code=error.code, message=error.message)
                    if silent > PATIENCE_SECONDS:
                        raise
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()
        finally:
            self._stop.set()
            self._bench.shutdown(wait=True, cancel_futures=True)
            self._defence.close()
            self.parts.announcer.close()

    # -- the loop

    def _start(self) -> None:
        self.parts.watcher.poll()
        self._began = self.parts.party.head().number
        event("ready", address=self._me, node_key=self.parts.node.public.hex(), home=str(self.parts.home))
        if self._ledger.nodes.get(self._me) != self.parts.node.public:
            self._submit(f"node/{self.parts.node.public.hex()}", self._vault.register_node(self.parts.node.public))

    @property
    def _ledger(self) -> Ledger:
        return self.parts.watcher.ledger

    def _tick(self) -> None:
        head = self.parts.party.head()
        if head.number != self._block:
            self._block, self._now = head.number, head.time
            self._tell(self.parts.watcher.poll())
            self._settle()
            self._free = self._vault.free(self._me)
            self._take_jobs()
            for taken in self._taken.values():
                taken.ledger = self._ledger.jobs[taken.ledger.id]
                taken.view = look(self._market, taken.ledger, taken.params, self._now, self._block)
        for taken in self._taken.values():
            if taken.view is not None:
                self._act(taken, taken.view)
        self._defence.play(self._ledger, self._now, self._liar.silent_about)

    def _tell(self, events: list[Event]) -> None:
        for e in events:
            if e.block <= self._began:
                continue
            tell(e, self._me, self._holder(e), e.args.get("game") in self._games)
            if e.name == "Opened" and e.args["defender"] == self._me:
                self._games.add(e.args["game"])

    def _holder(self, e: Event) -> Address | None:
        """Who holds the slot that an event names."""
        job = self._ledger.jobs.get(e.args.get("job", b""))
        r = job.rounds.get(e.args["round"]) if job and "slot" in e.args else None
        return r.holders[e.slot][0] if r and e.slot in r.holders else None

    def _settle(self) -> None:
        """Look what became of transactions; a reverted one may be sent again."""
        for key in list(self._sent):
            receipt = self.parts.outbox.receipt(key)
            if receipt is None:
                continue
            del self._sent[key]
            if not receipt.succeeded:
                log.info("reverted", key=key, block=receipt.block)
                self.parts.outbox.forget(key)

    def _finished(self) -> bool:
        if self._stop.is_set():
            return True
        if self._once and self._done and not self._sent:
            return True
        if not self._draining.is_set() or self._sent:
            return False
        open_ = any(a.do in (Do.TRAIN, Do.COMMIT, Do.REVEAL) for t in self._taken.values() for a in self._possible(t))
        return not open_ and not self._defence.busy(self._ledger)

    # -- jobs

    def _take_jobs(self) -> None:
        for job_id, ledger in self._ledger.jobs.items():
            if job_id in self._taken or job_id in self._refused or ledger.done or self._draining.is_set():
                continue
            if self._only is not None and job_id != self._only:
                continue
            if job_id not in self._loading:
                if self._retry_at.get(job_id, 0) <= self._now:
                    self._loading[job_id] = self._bench.submit(self._load, job_id)
                    self._loading[job_id].add_done_callback(self._woken)
            elif self._loading[job_id].done():
                self._take(ledger, self._loading.pop(job_id))

    def _load(self, job_id: JobId) -> tuple[JobParams, Job]:
        params = self._market.params(job_id)
        job = jobs.load(job_id, params, self.parts.store, self.parts.party.settings.threads)
        for program in (job.programs.step, job.programs.encode):
            job.executable(program)
        return params, job

    def _take(self, ledger: JobLedger, loaded: Future[tuple[JobParams, Job]]) -> None:
        try:
            params, job = loaded.result()
        except (BlobMissing, Unreachable) as error:
            log.info("job not loaded yet", job=ledger.id.hex(), message=error.message)
            self._retry_at[ledger.id] = Seconds(self._now + 2)
            return
        except (DoctorError, FundsError):
            raise
        except LockstepError as error:
            self._refused.add(ledger.id)
            event("refused", time=self._now, job=ledger.id.hex(), code=error.code, message=error.message)
            return
        taken = Taken(ledger, params, job)
        if self._cheat_for is not None:
            taken.cheat = self._cheat_for(job)
            event("lie", time=self._now, cheat=taken.cheat.name, expectation=taken.cheat.expectation.to_dict())
        self._stake(taken)
        self._taken[ledger.id] = taken

    def _stake(self, taken: Taken) -> None:
        """Deposit once a job what its rounds in flight can lock; FundsError if not even one claim is covered."""
        # A liar expects to lose a claim's stake, and goes on.
        spare = taken.params.slot_stake if taken.cheat else 0
        short = max(0, decide.stake_wanted(taken.params) + spare - self._free)
        token = self.parts.contracts.token
        amount = Wei(min(short, token.balance_of(self._me)))
        if self._free + amount < taken.params.slot_stake:
            raise FundsError(
                f"a claim of this job locks {taken.params.slot_stake}; {self._me} has {self._free + amount}",
                hint="send the account more of the job's token",
            )
        if amount:
            permit = token.sign_permit(
                self.parts.party.account, self._vault.address, amount, Seconds(self._now + PERMIT_SECONDS)
            )
            self._submit(f"stake/{taken.ledger.id.hex()}", self._vault.deposit_with_permit(amount, permit))

    # -- acts

    def _self(self, taken: Taken) -> Self:
        others = frozenset({taken.params.aggregator})
        rounds = taken.view.rounds if taken.view else ()
        ready = {
            (r.number, slot)
            for r in rounds
            for slot in r.slots_of(self._me)
            if self._trained(self._claim_id(r, taken, slot)) is not None
        }
        place = self._ledger.place(self._me, others)
        return Self(self._me, self._free, place, self._draining.is_set(), frozenset(ready))

    def _possible(self, taken: Taken) -> list[Act]:
        return [] if taken.view is None else decide.acts(taken.view, self._self(taken))

    def _act(self, taken: Taken, view: JobView) -> None:
        if taken.ledger.done:
            self._leave(taken)
        me = self._self(taken)
        possible = decide.acts(view, me)
        taken.since = decide.remember(possible, taken.since, self._now)
        aggregated = view.params.aggregator != ZERO_ADDRESS
        for act in decide.due(possible, taken.since, self._now, decide.rank(view, me), aggregated):
            self._do(taken, view, act)
        for act in decide.ahead(view, me, frozenset(self._pending_acts())):
            self._do(taken, view, act)

    def _pending_acts(self) -> list[Act]:
        return [a for a in self._sent.values() if a is not None]

    def _do(self, taken: Taken, view: JobView, act: Act) -> None:
        job = view.id
        r = view.round(act.round)
        attempt = view.job.attempt if r is None else r.state.attempt
        key = f"{job.hex()[:16]}/{act.round}/{attempt}/{act.do}"
        if act.do == Do.START:
            self._submit(key, self._market.start_round(job, act.round), act)
        elif act.do == Do.JOIN:
            self._submit(f"{key}/{act.slot}", self._market.join(job, act.round, act.slot), act)
        elif act.do == Do.FINISH:
            self._submit(key, self._market.finish(job), act)
        elif r is None:
            return
        elif act.do == Do.SEAL:
            self._submit(f"{key}/{r.state.seed_block}", self._market.seal(job, act.round), act)
        elif act.do == Do.FREEZE:
            self._submit(key, self._market.freeze(job, act.round), act)
        elif act.do == Do.FINALIZE:
            self._submit(key, self._market.finalize(job, act.round), act)
        elif act.do == Do.RELEASE:
            self._submit(key, self._market.release(job, act.round), act)
        elif act.do == Do.TRAIN:
            self._train(taken, r, act.slot)
        elif act.do == Do.COMMIT:
            self._commit(taken, r, act, key)
        elif act.do == Do.REVEAL:
            self._reveal(taken, r, act, key)
        elif act.do == Do.MERGE:
            self._merge(taken, r, act, f"{key}/{view.job.attempt}", view.job.attempt)

    def _submit(self, key: str, call: Call, act: Act | None = None) -> None:
        """Send once; what the chain's pending state refuses is not sent, and tried again at the next look."""
        outbox = self.parts.outbox
        if key in self._sent:
            return
        receipt = outbox.receipt(key)
        if receipt is not None and receipt.succeeded:
            return
        if receipt is not None:
            outbox.forget(key)
        try:
            outbox.submit(call, key)
        except (ChainError, FundsError) as error:
            # Others act too: what is not possible any more is no failure. Gas that cannot be paid is.
            if isinstance(error, FundsError) and not error.code.startswith("chain."):
                raise
            log.debug("not now", key=key, rule=error.code)
            return
        self._sent[key] = act

    # -- a slot's claim

    def _claim_id(self, r: RoundView, taken: Taken, slot: int) -> ClaimId:
        return claims.claim_id(taken.ledger.id, r.number, r.state.attempt, slot)

    def _trained(self, claim: ClaimId) -> Trained | None:
        """The claim as computed; None while it is not, or if it could not be."""
        future = self._work.get(claim)
        return future.result() if future is not None and future.done() and not future.exception() else None

    def _train(self, taken: Taken, r: RoundView, slot: int) -> None:
        claim = self._claim_id(r, taken, slot)
        if self._working(claim):
            return
        seed, roots = r.state.seed, (r.state.base, r.state.outer)
        number, attempt = r.number, r.state.attempt
        records = taken.ledger.records_behind(taken.ledger.rounds[number], taken.params.slots)
        base_cid = next((c.checkpoint for c in reversed(records) if c.checkpoint), taken.job.spec.genesis)
        cheat = self._liar.cheat_of(claim, taken.cheat)

        def work() -> Trained:
            base = jobs.check_checkpoint(
                taken.job, merging.base_checkpoint(taken.job, self.parts.store, records), *roots
            )
            honest = jobs.slot_run(taken.job, base, Seed(seed), number, slot)
            run = cheat.run(honest) if cheat else honest
            check = None if cheat else SystemRandom()
            place = Place(claim, attempt, base_cid)
            folder = WorkFolder(self.parts.home, claim)
            trained = compute(run, place, folder, self.parts.store, self._stop, check)
            self._liar.told(claim, run)
            self._defence.hold(trained.material, run)
            return trained

        self._put_to_work(claim, work)

    def _working(self, claim: ClaimId) -> bool:
        """Whether a claim is being computed, or was; raises what computing it raised, if that is for good."""
        future = self._work.get(claim)
        if future is None:
            return self._retry_at.get(claim, 0) > self._now
        if not future.done():
            return True
        error = future.exception()
        if error is None:
            return True
        del self._work[claim]
        self._retry_at[claim] = Seconds(self._now + 2)
        if isinstance(error, Stopped):
            return True
        if not isinstance(error, LockstepError) or isinstance(error, DoctorError | GuardRefused):
            raise error
        log.warning("claim not computed", claim=claim.hex(), code=error.code, message=error.message)
        return True

    def _put_to_work(self, claim: ClaimId, work: Callable[[], Trained]) -> None:
        self._work[claim] = self._bench.submit(work)
        self._work[claim].add_done_callback(self._woken)

    def _woken(self, _: Future[Any]) -> None:
        self._wake.set()

    def _commit(self, taken: Taken, r: RoundView, act: Act, key: str) -> None:
        claim = self._claim_id(r, taken, act.slot)
        trained = self._trained(claim)
        key = f"{key}/{act.slot}"
        if trained is None or key in self._sent or self.parts.outbox.receipt(key) is not None:
            return
        material = trained.material
        bound = self.parts.guard.bind(claim, _bound(material, SystemRandom().randbytes(32)))
        if claim not in self._reported:
            self._reported.add(claim)
            event(
                "trained", time=self._now, round=r.number, slot=act.slot, seconds=round(trained.seconds, 3),
                resumed_from=trained.resumed_from,
            )  # fmt: skip
        commitment = claims.commitment(claim, self._me, _reveal(material, bound))
        self._submit(key, self._market.commit(taken.ledger.id, r.number, act.slot, commitment), act)

    def _reveal(self, taken: Taken, r: RoundView, act: Act, key: str) -> None:
        claim = self._claim_id(r, taken, act.slot)
        material, bound = WorkFolder(self.parts.home, claim).material(), self.parts.guard.bound(claim)
        if material is None or bound is None:
            log.error("a committed claim has no material here", claim=claim.hex())
            return
        key = f"{key}/{act.slot}"
        call = self._market.reveal(taken.ledger.id, r.number, act.slot, _reveal(material, bound))
        self._submit(key, call, act)
        if key in self._sent:
            self.parts.announcer.announce(material, r.state.base, taken.params.transitions, self._now)

    # -- a merge, in succession

    def _merge(self, taken: Taken, r: RoundView, act: Act, key: str, attempt: int) -> None:
        claim = claims.claim_id(taken.ledger.id, r.number, attempt, MERGE_SLOT)
        if not self._working(claim):
            merging_round = taken.ledger.rounds[r.number]
            records = taken.ledger.records_behind(merging_round, taken.params.slots)
            record = merging_round.record(taken.params.slots)
            merge_in, base_roots = r.state.merge_in, (r.state.base, r.state.outer)
            base_cid = next((c.checkpoint for c in reversed(records) if c.checkpoint), taken.job.spec.genesis)

            def work() -> Trained:
                base = merging.base_checkpoint(taken.job, self.parts.store, records)
                jobs.check_checkpoint(taken.job, base, *base_roots)
                payloads = merging.fetch_payloads(taken.job, self.parts.store, record.payloads)
                merged = merging.merge_round(taken.job, base, payloads, Seed(record.seed), r.number)
                # INVARIANT: what is merged is what the contract froze.
                if merged.run.root(0, merged.run.start) != merge_in:
                    raise DoctorError("the merge's input is not the contract's", hint="do not merge with this build")
                material = Material(
                    claim, taken.ledger.id, r.number, attempt, MERGE_SLOT, Seed(record.seed), base_cid, record.payloads,
                    (merged.root,), merged.out, merged.out2, Cid(""),
                    merging.store_checkpoint(self.parts.store, merged.checkpoint),
                )  # fmt: skip
                WorkFolder(self.parts.home, claim).save_material(material)
                self._defence.hold(material, merged.run)
                return Trained(material, 0.0, 0)

            self._put_to_work(claim, work)
        future = self._work.get(claim)
        if future is None or not future.done() or future.exception() is not None:
            return
        material = future.result().material
        self.parts.guard.bind(claim, _bound(material, bytes(32)))
        out, out2 = StateRoot(material.out), StateRoot(material.out2)
        call = self._market.merge(taken.ledger.id, r.number, out, out2, material.payload_cid)
        self._submit(key, call, act)

    # -- claims of earlier processes; the end

    def run_of(self, material: Material) -> ClaimRun | None:
        """The computation behind a claim of this home, made anew; None while its job or its inputs are not at hand."""
        taken = self._taken.get(material.job)
        if taken is None:
            return None
        rounds = [r for r in taken.ledger.all_rounds() if r.number == material.round]
        # A merge's attempt is the job's at that time, its round's an earlier one: the latest such round is meant.
        behind = max((r for r in rounds if r.attempt <= material.attempt), key=lambda r: r.attempt, default=None)
        if behind is None:
            return None
        records = taken.ledger.records_behind(behind, taken.params.slots)
        honest = rebuild(taken.job, records, self.parts.store, material)
        return self._liar.retell(material.claim, taken.cheat, honest)

    def _leave(self, taken: Taken) -> None:
        """The job is done: take the pay."""
        job_id = taken.ledger.id
        if job_id in self._done:
            return
        key = f"withdraw/{job_id.hex()}"
        if self.parts.outbox.receipt(key) is None and self._vault.credits(self._me):
            self._submit(key, self._vault.withdraw())
            return
        earned = sum(p.amount for p in self._ledger.pays if p.account == self._me and p.job == job_id)
        event("done", time=self._now, job=job_id.hex(), earned=str(earned))
        for material in [m for m in self._defence.materials() if m.job == job_id]:
            WorkFolder(self.parts.home, material.claim).remove()
        self._done.add(job_id)


def _bound(material: Material, nonce: bytes) -> Bound:
    return Bound(material.trace_root, material.out, material.out2, nonce, material.trace_cid, material.payload_cid)


def _reveal(material: Material, bound: Bound) -> Reveal:
    return Reveal(
        bound.trace_root, StateRoot(bound.out), StateRoot(bound.out2), Digest(bound.nonce), material.proof_t,
        bound.trace_cid, bound.payload_cid,
    )  # fmt: skip
