"""Defending claims: a seat at every open game about them, played beside training, the earliest deadline first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from lockstep.base.cache import MemoryCache, bytes_of
from lockstep.base.lines import event
from lockstep.execution.jobs import ClaimRun
from lockstep.execution.states import ClaimStates, States
from lockstep.node.game_queue import GameQueue
from lockstep.node.guard.memory import Place
from lockstep.node.ledger import ClaimRecord, GameRecord, JobLedger, Ledger, RoundLedger
from lockstep.node.player import Due, GameTable, HeldClaim, Side
from lockstep.protocol.types import ClaimId, GameId, JobId, Seconds
from worker.parts import merge_name
from worker.progress import Material, WorkFolder, materials

if TYPE_CHECKING:
    from lockstep.node.party import Head
    from worker.parts import WorkerParts

log = structlog.get_logger(__name__)

RunOf = Callable[[Material], ClaimRun | None]
"""The computation behind a claim of an earlier process, made anew; None if it cannot be."""

STATES = "states"


class Defence:
    """The games in which this worker is the defender."""

    def __init__(self, parts: WorkerParts, wake: Callable[[], None]) -> None:
        """`wake` is called whenever a move was prepared."""
        self._parts = parts
        self._cache = MemoryCache(parts.memory_bytes)
        self.states = States(parts.home / STATES, parts.disk_bytes)
        self._games: dict[GameId, ClaimId] = {}
        self._adopted: dict[JobId, set[ClaimId]] = {}
        """Own merges that were looked for in this home, of the jobs that are not left."""
        self._now = Seconds(0)
        table = GameTable(parts.contracts.game, parts.contracts.addresses.block)
        self._queue = GameQueue(table, parts.outbox, Side.DEFENDER, self._made, wake)

    def hold(self, material: Material, run: ClaimRun) -> HeldClaim:
        """Keep a claim's computation at hand. Called from the training thread, too."""
        claim = material.claim
        held = HeldClaim(run, material.roots, self._cache, ClaimStates(self.states, claim))
        # INVARIANT: a claim with an open game is the last to leave the memory.
        self._cache.put((claim, "claim"), held, bytes_of(run.start), lambda: claim in set(self._games.values()))
        return held

    def adopt(self, job: JobLedger) -> None:
        """Have what this home knows of each merge of ours lie under the id that the chain gave the claim."""
        adopted = self._adopted.get(job.id, set())
        for r in job.all_rounds():
            for merge in r.merges:
                if merge.worker == self._parts.address and merge.id not in adopted:
                    self._adopt(r, merge)
                    self._adopted.setdefault(job.id, adopted).add(merge.id)

    def leave(self, job: JobId) -> None:
        """Let go of what is known of a job's claims: nothing of ours is open in it."""
        self._adopted.pop(job, None)

    def materials(self) -> list[Material]:
        """Every claim that this home could defend."""
        return materials(self._parts.home)

    def mine(self, ledger: Ledger) -> list[GameRecord]:
        """Open games against this worker's claims."""
        return [g for g in ledger.games.values() if g.defender == self._parts.address]

    def busy(self, ledger: Ledger) -> bool:
        """Tells if a game still needs this worker."""
        return bool(self.mine(ledger)) or not self._queue.idle

    def answered(self, ledger: Ledger) -> dict[GameId, ClaimId]:
        """The games in which this worker moves: all of its own."""
        return {g.id: g.claim for g in self.mine(ledger)}

    def play(self, ledger: Ledger, head: Head, run_of: RunOf) -> None:
        """Make every move that is due, as soon as it can be made; returns at once."""
        self._games = self.answered(ledger)
        self._now = head.time
        needs = self._queue.needs()
        self.states.need({claim: {t - 1 for t in ts} for claim, ts in needs.items()})
        self._queue.play(self._games, head.number, head.time, self._at_hand, lambda claim: self._held_of(claim, run_of))

    def forget(self, claim: ClaimId) -> None:
        """Remove what defends a claim: nobody can challenge it any more."""
        self._cache.drop((claim, "claim"))
        self.states.forget(claim)
        WorkFolder(self._parts.home, claim).remove()

    def close(self) -> None:
        """Finish the move in work."""
        self._queue.close()

    def _at_hand(self, claim: ClaimId) -> HeldClaim | None:
        held: HeldClaim | None = self._cache.get((claim, "claim"))
        return held

    def _adopt(self, r: RoundLedger, merge: ClaimRecord) -> None:
        name = merge_name(merge.job, r.number, r.attempt)
        made = WorkFolder(self._parts.home, name).material()
        assert r.merge_in is not None, "what is merged is frozen"
        # INVARIANT: a claim is defended by what it claims, and by nothing else.
        if made is None or made.seed != r.seed or (made.out, made.out2) != (merge.out, merge.out2):
            return
        own, folder = replace(made, claim=merge.id, attempt=merge.attempt), WorkFolder(self._parts.home, merge.id)
        if folder.material() != own:
            folder.save_material(own)
        held = self._at_hand(name)
        if held is not None and merge.id != name:
            self.hold(own, held.run)
        # INVARIANT: this home has promised every claim of its key that it can defend.
        self._parts.guard.bind(Place(merge.id, r.seed, r.merge_in), own.promise(bytes(32)))

    def _held_of(self, claim: ClaimId, run_of: RunOf) -> HeldClaim | None:
        """The claim, from memory, from its S_0 on disk, or from public data; its S_0 is on disk from then on."""
        held = self._at_hand(claim)
        if held is None:
            material = WorkFolder(self._parts.home, claim).material()
            run = None if material is None else run_of(material)
            if material is None or run is None:
                return None
            held = self.hold(material, run)
        self.states.save(claim, held.run, 0, held.run.start)
        return held

    def _made(self, game: GameId, due: Due, seconds: float) -> None:
        claim = due.state.claim
        event("defending", time=self._now, game=game.hex(), claim=claim.hex(), move=due.move.call,
              seconds=round(seconds, 3))  # fmt: skip
