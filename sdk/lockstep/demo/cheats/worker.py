"""A worker that lies about one claim: the first whose run the lie changes. It is honest about all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from lockstep.cli.output import event
from lockstep.demo.cheats.lies import Cheat, LyingRun, cheat_of, require_devnet
from lockstep.execution.jobs import ClaimRun
from lockstep.node.ledger import Ledger
from lockstep.node.sender import Sender
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import ClaimId, GameId, JobId, Seconds, StateRoot, Wei
from worker.claimant import Claimant
from worker.claiming import Place, Trained
from worker.decide import Act, RoundView
from worker.defending import Defence
from worker.parts import Parts, Taken
from worker.progress import Material
from worker.service import Worker

NAME = "lie"
"""Of the file in the worker's home that says which claim the lie is about."""


class Told:
    """Which claim was lied about; remembered, so that a liar that was killed goes on with the same lie."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME
        self.claim = ClaimId(bytes.fromhex(self._path.read_text())) if self._path.exists() else None

    def about(self, claim: ClaimId) -> None:
        """Remember the claim."""
        self.claim = claim
        self._path.write_text(claim.hex())


class LyingClaimant(Claimant):
    """Computes one claim from a lying run."""

    def __init__(
        self, parts: Parts, sender: Sender[Act], defence: Defence, wake: Callable[[], None], told: Told, name: str,
        seed: int,
    ) -> None:  # fmt: skip
        super().__init__(parts, sender, defence, wake)
        self._told = told
        self._name = name
        self._seed = seed
        self._cheats: dict[JobId, Cheat] = {}

    def train(self, taken: Taken, r: RoundView, slot: int, now: Seconds) -> None:
        """Say which lie the job is told before its first claim is computed."""
        if taken.ledger.id not in self._cheats:
            cheat = self._cheat(taken)
            event("lie", time=now, cheat=cheat.name, expectation=cheat.expectation.to_dict())
        super().train(taken, r, slot, now)

    def run_of(self, material: Material, taken: Taken) -> ClaimRun | None:
        """A claim's run as it was claimed."""
        honest = super().run_of(material, taken)
        lies = honest is not None and material.claim == self._told.claim
        return self._cheat(taken).run(honest) if honest is not None and lies else honest

    def _compute(self, taken: Taken, run: ClaimRun, place: Place, check: Random | None) -> Trained:
        if self._told.claim not in (None, place.claim):
            return super()._compute(taken, run, place, check)
        lying = self._cheat(taken).run(run)
        # Its words are not those of the reference arithmetic; it knows.
        trained = super()._compute(taken, lying, place, None)
        assert isinstance(lying, LyingRun)
        if lying.lied:
            self._told.about(place.claim)
        return trained

    def _announce(self, taken: Taken, r: RoundView, material: Material, now: Seconds) -> None:
        super()._announce(taken, r, material, now)
        if self._cheat(taken).signs_twice and self._told.claim in (None, material.claim):
            self._told.about(material.claim)
            first, *others = material.roots
            super()._announce(taken, r, replace(material, roots=(StateRoot(first[::-1]), *others)), now)

    def _cheat(self, taken: Taken) -> Cheat:
        """The lie about a job; raises UsageError off devnets."""
        job = taken.ledger.id
        if job not in self._cheats:
            chain_id = self._parts.party.addresses.chain_id
            self._cheats[job] = cheat_of(self._name, taken.job.programs, taken.params, self._seed, chain_id)
        return self._cheats[job]


class SilentDefence(Defence):
    """Answers no challenge of the claim that was lied about."""

    def __init__(self, parts: Parts, wake: Callable[[], None], told: Told) -> None:
        super().__init__(parts, wake)
        self._told = told

    def answered(self, ledger: Ledger) -> dict[GameId, ClaimId]:
        """The games about the other claims."""
        return {game: claim for game, claim in super().answered(ledger).items() if claim != self._told.claim}


def worker_of(name: str, seed: int) -> type[Worker]:
    """The worker that tells the lie `name`, its place drawn from `seed`."""

    class LyingWorker(Worker):
        """Expects to lose a claim's stake, and goes on."""

        def claimant(self, sender: Sender[Act], wake: Callable[[], None]) -> Claimant:
            require_devnet(self.parts.party.addresses.chain_id)
            told = Told(self.parts.home)
            silent = name == "silent"
            defence = SilentDefence(self.parts, wake, told) if silent else Defence(self.parts, wake)
            return LyingClaimant(self.parts, sender, defence, wake, told, name, seed)

        def _stake_wanted(self, params: JobParams) -> Wei:
            return Wei(super()._stake_wanted(params) + params.role.slot_stake)

    return LyingWorker
