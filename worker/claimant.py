"""Making claims: computed on the bench, bound in the guard, committed, revealed; merges likewise, where it is our turn.

The bench is one thread beside the loop. What it raises for good (a machine that computes other bits, a guard that
refuses) ends the worker; what may pass (a blob that is not there yet) is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from random import Random, SystemRandom
from typing import TypeVar

import structlog

from lockstep.base.machine import is_full
from lockstep.cli.output import event
from lockstep.execution import jobs, merging
from lockstep.execution.jobs import ClaimRun
from lockstep.execution.merging import RoundRecord
from lockstep.node.demands import Asks, to_demand
from lockstep.node.guard.memory import Place as Signed
from lockstep.node.guard.memory import Promise
from lockstep.node.replay import PublicData
from lockstep.node.sender import Sender
from lockstep.protocol.errors import DoctorError, GuardRefused, LockstepError
from lockstep.protocol.jobs import NO_SEED, Body, Receipt, Reveal
from lockstep.protocol.market import ids
from lockstep.protocol.market.receipts import FINAL_REPORTS, Report, last_chance, mask_of
from lockstep.protocol.types import MERGE_SLOT, Cid, ClaimId, Digest, JobId, Seconds, Seed, StateRoot
from lockstep.storage.payload import Checkpoint, store_checkpoint
from worker.claiming import Place, Stopped, Trained, compute, rebuild
from worker.decide import Act, Roots, RoundView
from worker.defending import Defence
from worker.handing import Handover
from worker.parts import Parts, Taken
from worker.progress import Material, WorkFolder

log = structlog.get_logger(__name__)

RETRY_SECONDS = 2
_R = TypeVar("_R")


@dataclass(frozen=True)
class Base:
    """A checkpoint that hashes to what the chain names."""

    roots: Roots
    checkpoint: Checkpoint


class Claimant:
    """The claims of one worker."""

    def __init__(self, parts: Parts, sender: Sender[Act], defence: Defence, wake: Callable[[], None]) -> None:
        """`wake` is called from the bench whenever something is done there."""
        self._parts = parts
        self._sender = sender
        self._wake = wake
        self._market = parts.contracts.market
        self._bench = ThreadPoolExecutor(1, "train")
        self._stop = threading.Event()
        self._work: dict[ClaimId, Future[Trained]] = {}
        self._bases: dict[JobId, Base] = {}
        """What the next round of a job starts from, or the last one did."""
        self._fetching: dict[JobId, Future[Base]] = {}
        self._public: dict[JobId, PublicData] = {}
        """The bench's: nothing else reads it."""
        self._retry_at: dict[ClaimId | JobId, Seconds] = {}
        self._judging: dict[ClaimId, Future[dict[int, Report]]] = {}
        self._reports: dict[ClaimId, dict[int, Report]] = {}
        """By our own claim: what the payloads of its round are."""
        self._receipts: dict[ClaimId, Receipt] = {}
        """By our own claim: what we say, which does not change once it is signed."""
        self._handover = Handover(parts.announcer)
        self._reported: set[ClaimId] = set()
        self._asks = Asks(parts.contracts, parts.address)
        self.defence = defence

    def on_bench(self, work: Callable[[], _R]) -> Future[_R]:
        """Do something beside the loop, after what is being done."""
        future = self._bench.submit(work)
        future.add_done_callback(lambda _: self._wake())
        return future

    def close(self) -> None:
        """Stop after the step in work; what was computed is on disk."""
        self._stop.set()
        self._bench.shutdown(wait=True, cancel_futures=True)
        self.defence.close()

    # -- what a round starts from

    def base_held(self, taken: Taken) -> Roots | None:
        """The checkpoint that is here."""
        held = self._bases.get(taken.ledger.id)
        return None if held is None else held.roots

    def fetch(self, taken: Taken, number: int, roots: Roots, now: Seconds) -> None:
        """Have what a round starts from fetched, or computed again from payloads, unless that is under way."""
        job = taken.ledger.id
        work = self._fetching.get(job)
        if work is not None:
            if not work.done():
                return
            del self._fetching[job]
            error = work.exception()
            if error is not None:
                self._retry_at[job] = Seconds(now + RETRY_SECONDS)
                if not isinstance(error, LockstepError):
                    raise error
                log.warning("a base is not there", round=number, code=error.code, message=error.message)
                return
        genesis = roots == (taken.params.genesis.shared, taken.params.genesis.outer)
        # The view may be a block ahead of the events.
        known = genesis or taken.ledger.merge_of(*roots, number) is not None
        if known and self._retry_at.get(job, Seconds(0)) <= now:
            records = taken.ledger.records_to(*roots, number, taken.params.role.slots)
            self._fetching[job] = self.on_bench(partial(self._base, taken, records, roots))

    def _base(self, taken: Taken, records: Sequence[RoundRecord], roots: Roots) -> Base:
        """What is held, or what these records lead to. On the bench."""
        held = self._bases.get(taken.ledger.id)
        if held is None or held.roots != roots:
            found = merging.base_checkpoint(taken.job, self._parts.store, records)
            held = Base(roots, jobs.check_checkpoint(taken.job, found, *roots))
            self._bases[taken.ledger.id] = held
        return held

    # -- a slot's claim

    def ready(self, taken: Taken) -> frozenset[tuple[int, int]]:
        """(round, slot) of the claims that are computed."""
        rounds = taken.view.rounds if taken.view else ()
        own = ((r, slot) for r in rounds for slot in r.slots_of(self._parts.address))
        return frozenset((r.number, slot) for r, slot in own if self._trained(claim_of(taken, r, slot)) is not None)

    def train(self, taken: Taken, r: RoundView, slot: int, now: Seconds) -> None:
        """Have a slot's claim computed, unless that is under way."""
        claim = claim_of(taken, r, slot)
        if self._busy(claim, now):
            return
        seed, roots = Seed(r.state.seed), (r.state.base, r.state.outer)
        # INVARIANT: nobody trains before the seed is drawn.
        if seed == NO_SEED:
            return
        number = r.number
        ledger, round_ = taken.ledger, taken.ledger.rounds[number]
        records = ledger.records_behind(round_, taken.params.role.slots)
        place = Place(claim, r.state.attempt, _base_cid(taken, records))

        def work() -> Trained:
            base = self._base(taken, records, roots).checkpoint
            carried = self._public_of(taken).carried(ledger, round_, slot)
            run = jobs.slot_run(taken.job, base, seed, number, slot, carried)
            return self._compute(taken, run, place, SystemRandom())

        self._work[claim] = self.on_bench(work)

    def _compute(self, taken: Taken, run: ClaimRun, place: Place, check: Random | None) -> Trained:
        """Compute a slot's claim of a job, checked at random places against the reference arithmetic, and keep what
        defends it. On the bench."""
        folder = WorkFolder(self._parts.home, place.claim)
        trained = compute(run, place, folder, self._parts.store, self._stop, check)
        self.defence.hold(trained.material, run)
        return trained

    def commit(self, taken: Taken, r: RoundView, act: Act, key: str, now: Seconds) -> None:
        """Bind a computed claim in the guard, then commit it."""
        claim = claim_of(taken, r, act.slot)
        trained = self._trained(claim)
        if trained is None or self._sender.known(key):
            return
        material = trained.material
        # INVARIANT: the guard's row is on disk before the transaction that it guards.
        bound = self._parts.guard.bind(_signed(claim, r), _promise(material, SystemRandom().randbytes(32)))
        if claim not in self._reported:
            self._reported.add(claim)
            event(
                "trained", time=now, round=r.number, slot=act.slot, seconds=round(trained.seconds, 3),
                resumed_from=trained.resumed_from,
            )  # fmt: skip
        commitment = ids.commitment(claim, self._parts.address, _reveal(material, bound))
        self._sender.submit(key, self._market.commit(taken.ledger.id, r.number, act.slot, commitment), act)

    def reveal(self, taken: Taken, r: RoundView, act: Act, key: str, now: Seconds) -> None:
        """Open the commitment, and tell the coordinator."""
        claim = claim_of(taken, r, act.slot)
        material, bound = WorkFolder(self._parts.home, claim).material(), self._parts.guard.promised(_signed(claim, r))
        if material is None or bound is None:
            log.error("a committed claim has no material here", claim=claim.hex())
            return
        # What is revealed is signed for the coordinator too: the guard is asked again.
        bound = self._parts.guard.bind(_signed(claim, r), _promise(material, bound.nonce))
        opened = _reveal(material, bound)
        if taken.params.role.witnesses:
            # Who could read the roots now could say that it had looked.
            opened = replace(opened, trace_cid="")
        sent = self._sender.submit(key, self._market.reveal(taken.ledger.id, r.number, act.slot, opened), act)
        if sent and not taken.params.role.witnesses:
            self._announce(taken, r, material, now)

    def publish(self, taken: Taken, r: RoundView, act: Act, key: str, now: Seconds) -> None:
        """Name the list of the claim's state roots, now that the witnesses have committed."""
        material = WorkFolder(self._parts.home, claim_of(taken, r, act.slot)).material()
        if material is None:
            log.error("a revealed claim has no material here", round=r.number, slot=act.slot)
            return
        call = self._parts.contracts.witnesses.publish(taken.ledger.id, r.number, act.slot, material.trace_cid)
        if self._sender.submit(key, call, act):
            self._announce(taken, r, material, now)

    def _announce(self, taken: Taken, r: RoundView, material: Material, now: Seconds) -> None:
        """Tell the coordinator what is claimed, signed."""
        self._parts.announcer.announce(material, r.state.base, taken.params.role.transitions, now)

    # -- what the others' payloads are

    def attest(self, taken: Taken, r: RoundView, act: Act, key: str, now: Seconds) -> None:
        """Fetch and decode what was revealed, then say which slots' payloads are there: through the coordinator if it
        sends that in time."""
        assert taken.view is not None, "acts follow from a view"
        claim = claim_of(taken, r, act.slot)
        receipt = self._receipts.get(claim) or self._receipt(taken, r, act.slot, claim, now)
        if receipt is None or self._handover.rests(taken.view, r, receipt):
            return
        self._sender.submit(key, self._market.attest(taken.ledger.id, r.number, [receipt]), act)

    def _receipt(self, taken: Taken, r: RoundView, slot: int, claim: ClaimId, now: Seconds) -> Receipt | None:
        """What a slot's owner says of the round, signed; None while it is not known.

        What is missing may yet come: it is looked for again until a quarter of the window is left.
        """
        work = self._judging.get(claim)
        if work is None:
            payloads = taken.ledger.rounds[r.number].payloads
            known = self._reports.get(claim, {})
            self._judging[claim] = self.on_bench(partial(self._judge, taken, payloads, known))
            return None
        if not work.done() or self._retry_at.get(claim, Seconds(0)) > now:
            return None
        del self._judging[claim]
        reports = self._reports[claim] = work.result()
        last = last_chance(r.state.attest_ends, taken.params.role.attest_seconds, now)
        if not last and (len(reports) < r.state.revealed or any(x not in FINAL_REPORTS for x in reports.values())):
            self._retry_at[claim] = Seconds(now + 1)
            return None
        if self._demanded(taken, r, reports, now):
            # Receipts may end the phase: ours follows the demand, in this account's own order.
            self._handover.keep(claim)
        (self._receipts[claim],) = self._parts.contracts.sign_receipts(
            self._parts.party.account, taken.ledger.id, r.number, r.state.attempt, mask_of(reports), [slot]
        )
        return self._receipts[claim]

    def _demanded(self, taken: Taken, r: RoundView, reports: Mapping[int, Report], now: Seconds) -> bool:
        """Whether we demand a payload, which is one that the others would merge and we cannot have."""
        others = {s: report for s, report in reports.items() if s not in r.slots_of(self._parts.address)}
        slot, vault = to_demand(others, r.state), self._parts.contracts.vault
        if slot is None or vault.free(self._parts.address) < self._market.bond_of(taken.ledger.id):
            return False
        claim = claim_of(taken, r, slot)
        key, demand = self._asks.payload(taken.ledger.id, r.number, slot, claim)
        known = self._sender.known(key)
        if not known and self._sender.submit(key, demand):
            event("demanded", time=now, claim=claim.hex(), round=r.number, slot=slot)
        return known or self._sender.known(key)

    def _judge(
        self, taken: Taken, payloads: Mapping[int, merging.Payload], known: Mapping[int, Report]
    ) -> dict[int, Report]:
        found = dict(known)
        for slot, report, why in merging.judge_payloads(taken.job, self._parts.store, payloads, known):
            found[slot] = report
            log.info("payload judged", slot=slot, report=report.value, why=why)
        return found

    # -- a merge, in succession

    def merge(self, taken: Taken, r: RoundView, act: Act, key: str, now: Seconds) -> None:
        """Have the round's merge computed, then claim it."""
        assert taken.view is not None, "acts follow from a view"
        attempt = taken.view.job.attempt
        claim = ids.claim_id(taken.ledger.id, r.number, attempt, MERGE_SLOT)
        if not self._busy(claim, now):
            self._work[claim] = self.on_bench(self._merging(taken, r, claim, attempt))
        trained = self._trained(claim)
        if trained is None:
            return
        material = trained.material
        place = Signed(claim, Seed(r.state.seed), StateRoot(r.state.merge_in))
        self._parts.guard.bind(place, _promise(material, bytes(32)))
        out, out2 = StateRoot(material.out), StateRoot(material.out2)
        call = self._market.merge(taken.ledger.id, r.number, out, out2, material.payload_cid, act.rounds)
        self._sender.submit(f"{key}/{attempt}", call, act)

    def _merging(self, taken: Taken, r: RoundView, claim: ClaimId, attempt: int) -> Callable[[], Trained]:
        records = taken.ledger.records_behind(taken.ledger.rounds[r.number], taken.params.role.slots)
        record = taken.ledger.rounds[r.number].record(taken.params.role.slots)
        base_cid = _base_cid(taken, records)

        def work() -> Trained:
            base = self._base(taken, records, (r.state.base, r.state.outer)).checkpoint
            payloads = merging.fetch_payloads(taken.job, self._parts.store, record.payloads)
            merged = merging.merge_round(taken.job, base, payloads, record.seed, r.number)
            # INVARIANT: what is merged is what the contract froze.
            if merged.run.root(0, merged.run.start) != r.state.merge_in:
                raise DoctorError("the merge's input is not the contract's", hint="do not merge with this build")
            material = Material(
                claim, taken.ledger.id, r.number, attempt, MERGE_SLOT, record.seed, base_cid, record.payloads,
                (merged.root,), merged.out, merged.out2, Cid(""),
                store_checkpoint(self._parts.store, merged.checkpoint),
            )  # fmt: skip
            WorkFolder(self._parts.home, claim).save_material(material)
            self.defence.hold(material, merged.run)
            return Trained(material, 0.0, 0)

        return work

    # -- claims of earlier processes

    def run_of(self, material: Material, taken: Taken) -> ClaimRun | None:
        """The computation behind a claim of this home, from its S_0 on disk or made anew; None if the chain knows no
        such round."""
        kept = self.defence.states.start(material.claim, taken.job)
        if kept is not None:
            return kept
        rounds = [r for r in taken.ledger.all_rounds() if r.number == material.round]
        # A merge's attempt is the job's at that time, its round's an earlier one: the latest such round is meant.
        behind = max((r for r in rounds if r.attempt <= material.attempt), key=lambda r: r.attempt, default=None)
        if behind is None:
            return None
        records = taken.ledger.records_behind(behind, taken.params.role.slots)
        carried = None
        if not material.is_merge:
            carried = PublicData(taken.job, self._parts.store).carried(taken.ledger, behind, material.slot)
        return rebuild(taken.job, records, self._parts.store, material, carried)

    def forget(self, job: JobId) -> None:
        """Remove the material of a job about whose claims no game is open, and none can be opened any more."""
        self._bases.pop(job, None)
        self._public.pop(job, None)
        for material in self.defence.materials():
            if material.job == job:
                self.defence.forget(material.claim)

    # -- inside

    def _trained(self, claim: ClaimId) -> Trained | None:
        """The claim as computed; None while it is not, or if it could not be."""
        future = self._work.get(claim)
        return future.result() if future is not None and future.done() and not future.exception() else None

    def _public_of(self, taken: Taken) -> PublicData:
        return self._public.setdefault(taken.ledger.id, PublicData(taken.job, self._parts.store))

    def _busy(self, claim: ClaimId, now: Seconds) -> bool:
        """Whether a claim is being computed, or was, or waits to be tried again; raises what ends the worker."""
        future = self._work.get(claim)
        if future is None:
            return self._retry_at.get(claim, Seconds(0)) > now
        error = future.exception() if future.done() else None
        if error is None:
            return True
        del self._work[claim]
        self._retry_at[claim] = Seconds(now + RETRY_SECONDS)
        if isinstance(error, Stopped):
            return True
        if is_full(error):
            log.warning("claim not computed: the disk is full", claim=claim.hex())
            return True
        if not isinstance(error, LockstepError) or isinstance(error, DoctorError | GuardRefused):
            raise error
        log.warning("claim not computed", claim=claim.hex(), code=error.code, message=error.message)
        return True


def claim_of(taken: Taken, r: RoundView, slot: int) -> ClaimId:
    """The id of a slot's claim in the round's attempt."""
    return ids.claim_id(taken.ledger.id, r.number, r.state.attempt, slot)


def _base_cid(taken: Taken, records: Sequence[RoundRecord]) -> Cid:
    return next((c.checkpoint for c in reversed(records) if c.checkpoint), taken.job.spec.genesis)


def _signed(claim: ClaimId, r: RoundView) -> Signed:
    return Signed(claim, Seed(r.state.seed), StateRoot(r.state.base))


def _promise(material: Material, nonce: bytes) -> Promise:
    return Promise(material.trace_root, material.out, material.out2, nonce, material.trace_cid, material.payload_cid)


def _reveal(material: Material, bound: Promise) -> Reveal:
    body = Body(bound.trace_root, StateRoot(bound.out), StateRoot(bound.out2))
    return Reveal(body, Digest(bound.nonce), material.proof_t, bound.trace_cid, bound.payload_cid)
