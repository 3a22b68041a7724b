"""An aggregator that computes wrong merges, and defends them down to the leaf."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.aggregator import Aggregator
from coordinator.merging import Aggregators
from coordinator.parts import CoordinatorParts
from coordinator.service import Coordinator
from lockstep.base.lines import event
from lockstep.demo.cheats.lies import Cheat, cheat_of, require_devnet
from lockstep.execution.jobs import ClaimRun, Job, Tensors
from lockstep.execution.rounds import RoundRecord
from lockstep.storage.payload import Checkpoint


class LyingAggregator(Aggregator):
    """An aggregator that merges by a forged Program."""

    cheat: Cheat

    def merge_run(self, base: Checkpoint, payloads: Sequence[Tensors | None], r: RoundRecord) -> ClaimRun:
        """Returns the lying computation of a round's merge."""
        return self.cheat.run(super().merge_run(base, payloads, r))


class LyingAggregators(Aggregators):
    """Creates a lying aggregator for each job."""

    def __init__(self, parts: CoordinatorParts, name: str, seed: int) -> None:
        super().__init__(parts)
        self._name = name
        self._seed = seed

    def make(self, job: Job) -> Aggregator:
        """Creates an aggregator, and prints the lie that it will tell."""
        party = self._parts.party
        cheat = cheat_of(self._name, job.programs, job.params, self._seed, party.addresses.chain_id)
        event("lie", time=party.head().time, cheat=cheat.name, expectation=cheat.expectation.to_dict())
        lying = LyingAggregator(job, self._parts, self._cache)
        lying.cheat = cheat
        return lying


def coordinator_of(name: str, seed: int) -> type[Coordinator]:
    """Returns a coordinator class that tells the lie `name`, at a place drawn from `seed`."""

    class LyingCoordinator(Coordinator):
        def aggregators(self, parts: CoordinatorParts) -> Aggregators:
            require_devnet(parts.party.addresses.chain_id)
            return LyingAggregators(parts, name, seed)

    return LyingCoordinator
