"""A worker that lies about one claim: the first whose run the lie changes. It is honest about all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from lockstep.base.lines import event
from lockstep.demo.cheats.lies import Cheat, LyingRun, cheat_of, require_devnet
from lockstep.execution.jobs import ClaimRun
from lockstep.market.acts import Action
from lockstep.market.ledger import Ledger
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import ClaimId, GameId, JobId, Seconds, StateRoot, Wei
from lockstep.runtime.sender import Sender
from worker.acting import ActionHandlers
from worker.admission import Admission
from worker.attesting import Attesting
from worker.bases import Bases
from worker.commitments import Commitments
from worker.computing import Trained
from worker.decide import RoundView, stake_wanted
from worker.defending import Defence
from worker.parts import ComputeExecutor, TrackedJob, WorkerParts
from worker.progress import Material
from worker.service import Worker
from worker.training import Training

NAME = "lie"
"""The file in the worker's home that says which claim the lie is about."""
DRAWS = 16
"""Places that are tried in one claim; where every one is rounded away, the claim is honest and the next is lied about.
"""


class LieFile:
    """The claim with the lie, stored on disk, so that a restarted liar continues with the same lie."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME
        self.claim = ClaimId(bytes.fromhex(self._path.read_text())) if self._path.exists() else None

    def about(self, claim: ClaimId) -> None:
        """Stores the claim."""
        self.claim = claim
        self._path.write_text(claim.hex())


class Lies:
    """The lie about each job, created on first use; about a claim, at the first drawn place that shows in its
    result."""

    def __init__(self, parts: WorkerParts, lie: LieFile, name: str, seed: int) -> None:
        self.lie = lie
        self._party = parts.party
        self._name = name
        self._seed = seed
        self._cheats: dict[JobId, Cheat] = {}
        """The last declaration, by job."""
        self._of: dict[ClaimId, Cheat] = {}

    def __contains__(self, job: JobId) -> bool:
        return job in self._cheats

    def about(self, taken: TrackedJob) -> Cheat:
        """Returns the lie about a job; raises UsageError off devnets."""
        job = taken.ledger.id
        if job not in self._cheats:
            self._cheats[job] = self._drawn(taken, 0)
        return self._cheats[job]

    def run(self, taken: TrackedJob, honest: ClaimRun, claim: ClaimId) -> LyingRun:
        """Returns the lying run of a claim, the same at every call; prints its place if it differs from the last
        printed one."""
        if claim not in self._of:
            places = (self._drawn(taken, draw) for draw in range(DRAWS))
            self._of[claim] = next((cheat for cheat in places if cheat.run(honest).shows), self.about(taken))
        cheat = self._of[claim]
        if cheat.expectation != self.about(taken).expectation:
            self._cheats[taken.ledger.id] = cheat
            event("lie", time=self._party.head().time, cheat=cheat.name, expectation=cheat.expectation.to_dict())
        return cheat.run(honest)

    def _drawn(self, taken: TrackedJob, draw: int) -> Cheat:
        """The lie at a place of that number."""
        chain_id = self._party.addresses.chain_id
        return cheat_of(self._name, taken.job.programs, taken.params, self._seed, chain_id, draw)


class LyingTraining(Training):
    """Computes one claim from a lying run."""

    def __init__(
        self, parts: WorkerParts, executor: ComputeExecutor, bases: Bases, defence: Defence, lies: Lies
    ) -> None:
        super().__init__(parts, executor, bases, defence)
        self._lies = lies

    def train(self, taken: TrackedJob, r: RoundView, slot: int, now: Seconds) -> None:
        """Prints the lie about a job before its first claim is computed."""
        if taken.ledger.id not in self._lies:
            cheat = self._lies.about(taken)
            event("lie", time=now, cheat=cheat.name, expectation=cheat.expectation.to_dict())
        super().train(taken, r, slot, now)

    def run_of(self, material: Material, taken: TrackedJob) -> ClaimRun | None:
        """Returns a claim's run as it was claimed: with the lie, if it is the lying claim."""
        honest = super().run_of(material, taken)
        lies = honest is not None and material.claim == self._lies.lie.claim
        return self._lies.run(taken, honest, material.claim) if honest is not None and lies else honest

    def compute(self, taken: TrackedJob, run: ClaimRun, claim: ClaimId, attempt: int, check: Random | None) -> Trained:
        """One claim from a lying run: the first that the lie changes."""
        if self._lies.lie.claim not in (None, claim):
            return super().compute(taken, run, claim, attempt, check)
        lying = self._lies.run(taken, run, claim)
        # Its words are not those of the reference arithmetic; it knows.
        trained = super().compute(taken, lying, claim, attempt, None)
        if lying.lied:
            self._lies.lie.about(claim)
        return trained


class LyingCommitments(Commitments):
    """Commitments that sign two claims for one slot, if the lie is to do so."""

    def __init__(self, parts: WorkerParts, sender: Sender[Action], training: Training, lies: Lies) -> None:
        super().__init__(parts, sender, training)
        self._lies = lies

    def announce(self, taken: TrackedJob, r: RoundView, material: Material, now: Seconds) -> None:
        """Announces the claim to the coordinator, and then a different one for the same slot."""
        super().announce(taken, r, material, now)
        if self._lies.about(taken).signs_twice and self._lies.lie.claim in (None, material.claim):
            self._lies.lie.about(material.claim)
            first, *others = material.roots
            super().announce(taken, r, replace(material, roots=(StateRoot(first[::-1]), *others)), now)


class SilentDefence(Defence):
    """Answers no challenge of the lying claim."""

    def __init__(self, parts: WorkerParts, on_done: Callable[[], None], lie: LieFile) -> None:
        super().__init__(parts, on_done)
        self._lie = lie

    def answered(self, ledger: Ledger) -> dict[GameId, ClaimId]:
        """Returns the games about all other claims."""
        return {game: claim for game, claim in super().answered(ledger).items() if claim != self._lie.claim}


def worker_of(name: str, seed: int) -> type[Worker]:
    """Returns a worker class that tells the lie `name`, at a place drawn from `seed`."""

    class LyingWorker(Worker):
        """A worker that keeps running although it expects to lose a claim's stake."""

        def handlers(self, sender: Sender[Action], on_done: Callable[[], None]) -> ActionHandlers:
            parts = self.parts
            require_devnet(parts.party.addresses.chain_id)
            lie = LieFile(parts.home)
            lies, executor = Lies(parts, lie, name, seed), ComputeExecutor("train", on_done)
            defence = SilentDefence(parts, on_done, lie) if name == "silent" else Defence(parts, on_done)
            bases = Bases(parts.store, executor)
            training = LyingTraining(parts, executor, bases, defence, lies)
            return ActionHandlers(
                executor, Admission(parts, sender, _wanted), bases, training,
                LyingCommitments(parts, sender, training, lies), Attesting(parts, sender, executor), defence,
            )  # fmt: skip

    return LyingWorker


def _wanted(params: JobParams) -> Wei:
    return Wei(stake_wanted(params) + params.role.slot_stake)
