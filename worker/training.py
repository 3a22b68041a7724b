"""Computes claims, one at a time on the worker thread: a slot's, and a merge's when it is this worker's turn.

A permanent error (a machine that computes other bits, a guard that refuses) ends the worker; a temporary one (a blob
that is not available yet) is retried.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from lockstep.base.log import Logger
from lockstep.base.machine import is_full
from lockstep.execution import jobs
from lockstep.execution.jobs import ClaimRun
from lockstep.execution.merging import fetch_payloads
from lockstep.market.replay import PublicData
from lockstep.protocol.errors import Crashed, DoctorError, GuardRefused, LockstepError, WrongBits
from lockstep.protocol.jobs import NO_SEED
from lockstep.protocol.types import MERGE_SLOT, Cid, ClaimId, JobId, Seconds, Seed
from lockstep.runtime import merges
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.guard.memory import RecordKey
from lockstep.runtime.keyed_executor import Stopped
from worker.bases import Bases
from worker.computing import Trained, check_of, compute
from worker.decide import RoundView
from worker.parts import ComputeExecutor, TrackedJob, claim_of
from worker.progress import Material, WorkFolder, materials

if TYPE_CHECKING:
    from worker.defending import Defence
    from worker.parts import WorkerParts

RETRY_SECONDS = 2
LASTING = (DoctorError, GuardRefused)
"""Errors that no retry resolves."""

log = Logger(__name__)


class Training:
    """Schedules and holds the claims that this process computes."""

    def __init__(self, parts: WorkerParts, executor: ComputeExecutor, bases: Bases, defence: Defence) -> None:
        self._parts = parts
        self._executor = executor
        self._bases = bases
        self._defence = defence
        self._trained: dict[ClaimId, Trained] = {}
        self._failed: dict[ClaimId, Exception] = {}
        self._ended: set[ClaimId] = set()
        """Merges that killed the process running them, were late, or may not be claimed."""
        self._backoff: Backoff[ClaimId] = Backoff(RETRY_SECONDS)
        self._public: dict[JobId, PublicData] = {}
        """Read and written only by the worker thread."""

    def ready(self, taken: TrackedJob) -> frozenset[tuple[int, int]]:
        """Returns (round, slot) of the claims that are computed."""
        rounds = taken.view.rounds if taken.view else ()
        own = ((r, slot) for r in rounds for slot in r.slots_of(self._parts.address))
        return frozenset((r.number, slot) for r, slot in own if self.trained(claim_of(taken, r, slot)) is not None)

    def train(self, taken: TrackedJob, r: RoundView, slot: int, now: Seconds) -> None:
        """Starts to compute a slot's claim, unless that is under way."""
        claim = claim_of(taken, r, slot)
        if self.busy(claim, now):
            return
        seed, roots = Seed(r.state.seed), (r.state.base, r.state.outer)
        # INVARIANT: nobody trains before the seed is drawn.
        if seed == NO_SEED:
            return
        number, ledger, round_ = r.number, taken.ledger, taken.ledger.rounds[r.number]
        records = ledger.records_behind(round_, taken.params.role.slots)

        def work() -> Trained:
            base = self._bases.load(taken, records, roots).checkpoint
            public = self._public.setdefault(ledger.id, PublicData(taken.job, self._parts.store))
            run = jobs.slot_run(taken.job, base, seed, number, slot, public.carried(ledger, round_, slot))
            return self.compute(taken, run, claim, r.state.attempt, check_of(claim, seed))

        self.begin(claim, work)

    def merge(self, taken: TrackedJob, r: RoundView, place: RecordKey, now: Seconds) -> None:
        """Starts to compute a round's merge and to bind it in the guard, unless that is under way."""
        # INVARIANT: what is computed is kept by what it follows from; its claim's id is known once it is mined.
        name = claim_of(taken, r, MERGE_SLOT)
        if self.busy(name, now) or name in self._ended:
            return
        round_, slots = taken.ledger.rounds[r.number], taken.params.role.slots
        records, refs = taken.ledger.records_behind(round_, slots), round_.accepted(slots)
        other = DoctorError(
            "the merge's input hashes differently here than on chain",
            hint="run `lockstep doctor`: a claim of this build would lose its stake",
        )

        def work() -> Trained:
            base = self._bases.load(taken, records, (r.state.base, r.state.outer)).checkpoint
            payloads = fetch_payloads(taken.job, self._parts.store, refs)
            run = jobs.merge_run(taken.job, base, payloads, place.seed, r.number)
            guard, store = self._parts.guard, self._parts.store
            try:
                done, cid = merges.compute(
                    run, place, guard, store, lambda m: self._defence.hold(name, run, [m.root]), other
                )
            except (Crashed, GuardRefused):
                # INVARIANT: a merge that ends what runs it is not begun again: what it holds up costs stakes.
                self._ended.add(name)
                raise
            material = Material(
                name, taken.ledger.id, r.number, r.state.attempt, MERGE_SLOT, place.seed, (done.root,), done.out,
                done.out2, Cid(""), cid,
            )  # fmt: skip
            WorkFolder(self._parts.home, name).save_material(material)
            return Trained(material, 0.0, 0)

        self.begin(name, work)

    def compute(self, taken: TrackedJob, run: ClaimRun, claim: ClaimId, attempt: int, check: Random | None) -> Trained:
        """Computes a slot's claim, checks random words of it against the reference arithmetic, and saves what defends
        it. Runs on the worker thread."""
        folder = WorkFolder(self._parts.home, claim)
        try:
            trained = compute(run, attempt, folder, self._parts.store, self._executor.go_on, check)
        except WrongBits as error:
            # INVARIANT: a failed self-check is on disk before anything else is done about its claim.
            self._parts.refusals.record(taken.ledger.id, _at(error, run), claim)
            raise
        except Crashed as error:
            self._parts.refusals.record(taken.ledger.id, error)
            raise
        self._defence.hold(claim, run, trained.material.roots)
        return trained

    def busy(self, claim: ClaimId, now: Seconds) -> bool:
        """Returns True if a claim is computed, being computed or waiting for a retry; raises the errors that end the
        worker."""
        if self.trained(claim) is not None or ("claim", claim) in self._executor:
            return True
        error = self._failed.pop(claim, None)
        if error is None:
            return self._backoff.in_backoff(claim, now)
        self._backoff.failed(claim, now)
        if isinstance(error, WrongBits):
            # The job is refused by now: nothing more of it is tried, and other jobs go on.
            log.error("a claim's self-check failed", claim=claim.hex(), message=error.message)
        elif isinstance(error, Crashed):
            log.error("the process that runs a job's Programs ended", claim=claim.hex(), message=error.message)
        elif is_full(error):
            log.warning("training a slot failed, the disk is full: trying again", claim=claim.hex())
        elif isinstance(error, LockstepError) and not isinstance(error, LASTING):
            log.warning(
                "training a slot failed: trying again", claim=claim.hex(), code=error.code, message=error.message
            )
        elif not isinstance(error, Stopped):
            raise error
        return True

    def begin(self, claim: ClaimId, work: Callable[[], Trained]) -> None:
        """Starts `work`, which computes a claim, on the worker thread."""
        self._executor.begin(("claim", claim), work)

    def trained(self, claim: ClaimId) -> Trained | None:
        """Returns the computed claim; None while it is not ready, or if computing it failed."""
        try:
            done = self._executor.take(("claim", claim))
        except Exception as error:
            # What is to be done about it is decided where it would be begun again.
            self._failed[claim] = error
            return None
        if done is not None:
            self._trained[claim] = done
        return self._trained.get(claim)

    def run_of(self, material: Material, taken: TrackedJob) -> ClaimRun | None:
        """Returns the computation behind a claim of this home, from its S_0 on disk or built anew; None if the chain
        does not know the claim."""
        kept = self._defence.states.start(material.claim, taken.job)
        if kept is not None:
            return kept
        public = PublicData(taken.job, self._parts.store)
        found = (place for place in taken.ledger.public() if place[1].id == material.claim)
        return next((public.run_of(taken.ledger, *place) for place in found), None)

    def forget(self, job: JobId) -> None:
        """Removes the material of a job in which no game about this worker's claims is open or can be opened."""
        self._bases.forget(job)
        self._public.pop(job, None)
        self._parts.refusals.forget(job)
        self._defence.leave(job)
        for material in materials(self._parts.home):
            if material.job == job:
                self._defence.forget(material.claim)


def _at(error: WrongBits, run: ClaimRun) -> WrongBits:
    """Returns the error with the round and slot of the claim in its message."""
    return WrongBits(f"{error.message}, in round {run.round}, slot {run.slot}", error.hint)
