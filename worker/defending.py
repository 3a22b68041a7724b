"""Defends claims: plays every open game about them in parallel with training, earliest deadline first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.base.cache import MemoryCache
from lockstep.base.lines import event
from lockstep.chain.game_table import GameTable
from lockstep.disputes.game_queue import DefenceQueue, tell_move
from lockstep.execution.jobs import ClaimRun
from lockstep.execution.states import States
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import ClaimRecord, JobLedger, Ledger, RoundLedger
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, ClaimId, GameId, JobId, StateRoot
from lockstep.runtime.guard.memory import RecordKey
from lockstep.runtime.merges import bind_merge
from worker.progress import Material, WorkFolder

if TYPE_CHECKING:
    from lockstep.runtime.party import Head
    from worker.parts import WorkerParts

RunOf = Callable[[Material], ClaimRun | None]
"""Rebuilds the computation behind a claim of an earlier process; None if that is impossible."""


class Defence(DefenceQueue):
    """Plays the games in which this worker is the defender."""

    def __init__(self, parts: WorkerParts, on_done: Callable[[], None]) -> None:
        """`on_done` is called whenever a move was prepared."""
        self._parts = parts
        self.states = States(parts.home / "states", parts.disk_bytes)
        table = GameTable(parts.contracts.game, parts.contracts.addresses.block)
        super().__init__(
            table, parts.outbox, MemoryCache(parts.memory_bytes), tell_move(event), states=self.states, on_done=on_done
        )  # fmt: skip
        self._adopted: dict[JobId, set[ClaimId]] = {}
        """Own merges that were looked for in this home, of the jobs that are not left."""

    def adopt(self, job: JobLedger) -> None:
        """Links the material of each of this worker's merges to the id that the chain gave the claim."""
        adopted = self._adopted.get(job.id, set())
        for r, merge in job.public():
            if merge.is_merge and merge.worker == self._parts.address and merge.id not in adopted:
                self._adopt(r, merge)
                self._adopted.setdefault(job.id, adopted).add(merge.id)

    def leave(self, job: JobId) -> None:
        """Drops the bookkeeping of a job in which no claim of this worker is open."""
        self._adopted.pop(job, None)

    def answered(self, ledger: Ledger) -> dict[GameId, ClaimId]:
        """Returns the games in which this worker moves: those about its own claims."""
        return {g.id: g.claim for g in ledger.games_against(self._parts.address)}

    def defend(self, ledger: Ledger, head: Head, run_of: RunOf) -> None:
        """Plays every game about this worker's claims, with the computation that made the claim."""
        self.play(self.answered(ledger), head, lambda claim: self._held_of(claim, run_of))

    def forget(self, claim: ClaimId) -> None:
        """Removes the files that defend a claim, once nobody can challenge it any more."""
        self.drop(claim)
        self.states.forget(claim)
        WorkFolder(self._parts.home, claim).remove()

    def _adopt(self, r: RoundLedger, merge: ClaimRecord) -> None:
        name = claim_id(merge.job, r.number, r.attempt, MERGE_SLOT)
        made = WorkFolder(self._parts.home, name).material()
        assert r.merge_in is not None, "what is merged is frozen"
        # INVARIANT: a claim is defended by what it claims, and by nothing else.
        if made is None or made.seed != r.seed or (made.out, made.out2) != (merge.out, merge.out2):
            return
        own, folder = replace(made, claim=merge.id, attempt=merge.attempt), WorkFolder(self._parts.home, merge.id)
        if folder.material() != own:
            folder.save_material(own)
        held = self.cached(name)
        if held is not None and merge.id != name:
            self.hold(merge.id, held.run, own.roots)
        # INVARIANT: this home has promised every claim of its key that it can defend.
        bind_merge(
            self._parts.guard, RecordKey(merge.id, r.seed, r.merge_in), StateRoot(merge.out), StateRoot(merge.out2)
        )

    def _held_of(self, claim: ClaimId, run_of: RunOf) -> HeldClaim | None:
        """Returns the claim, computed from its S_0 on disk or from public data; afterwards its S_0 is on disk."""
        material = WorkFolder(self._parts.home, claim).material()
        run = None if material is None else run_of(material)
        if material is None or run is None:
            return None
        self.states.save(claim, run, 0, run.start)
        return self.hold(claim, run, material.roots)
