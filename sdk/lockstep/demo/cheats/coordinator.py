"""An aggregator whose merges are off, and that defends them down to the leaf."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coordinator.aggregator import Aggregator
from coordinator.parts import CoordinatorParts
from coordinator.service import Coordinator
from lockstep.cli.output import event
from lockstep.demo.cheats.lies import Cheat, cheat_of, require_devnet
from lockstep.execution.jobs import ClaimRun, Job, Tensors
from lockstep.protocol.types import Seed
from lockstep.storage.payload import Checkpoint


class LyingAggregator(Aggregator):
    """Merges by a forged Program."""

    cheat: Cheat

    def merge_run(self, base: Checkpoint, payloads: Sequence[Tensors | None], seed: Seed, number: int) -> ClaimRun:
        """The lying run of a round's merge."""
        return self.cheat.run(super().merge_run(base, payloads, seed, number))


def coordinator_of(name: str, seed: int) -> type[Coordinator]:
    """The coordinator that tells the lie `name`, its place drawn from `seed`."""

    class LyingService(Coordinator):
        """Opens every job with a lying aggregator."""

        def __init__(self, parts: CoordinatorParts) -> None:
            require_devnet(parts.party.addresses.chain_id)
            super().__init__(parts)

        def aggregator(self, job: Job, archive: Path) -> Aggregator:
            cheat = cheat_of(name, job.programs, job.params, seed, self._party.addresses.chain_id)
            event("lie", time=self._party.head().time, cheat=cheat.name, expectation=cheat.expectation.to_dict())
            lying = LyingAggregator(job, self._party.store, self._parts.guard, archive, self._shelf)
            lying.cheat = cheat
            return lying

    return LyingService
