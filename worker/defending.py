"""Defending claims: a seat at every open game about them, played in a thread of its own while training goes on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import structlog

from lockstep.cli.output import event
from lockstep.disputes import HeldClaim, Seat, Side, Table
from lockstep.jobs import ClaimRun
from lockstep.ledger import GameRecord, Ledger
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.types import ClaimId, GameId, Seconds
from worker.progress import Material, WorkFolder, materials

if TYPE_CHECKING:
    from worker.parts import Parts

log = structlog.get_logger(__name__)

RunOf = Callable[[Material], ClaimRun | None]

KEPT_CLAIMS = 4
"""Claims whose tensors stay in memory; others are computed again from their material when a game asks."""


class Defence:
    """The games in which this worker is the defender."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._table = Table(parts.contracts.game, parts.contracts.addresses.block)
        self._held: OrderedDict[ClaimId, HeldClaim] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "defend")
        self._turn: Future[None] | None = None

    def hold(self, material: Material, run: ClaimRun) -> None:
        """Keep a claim's computation at hand. Called from the training thread."""
        self._held[material.claim] = HeldClaim(run, material.roots)
        while len(self._held) > KEPT_CLAIMS:
            self._held.popitem(last=False)

    def materials(self) -> list[Material]:
        """Every claim that this home could defend."""
        return materials(self._parts.home)

    def mine(self, ledger: Ledger) -> list[GameRecord]:
        """Open games against this worker's claims."""
        return [g for g in ledger.games.values() if g.defender == self._parts.address]

    def busy(self, ledger: Ledger) -> bool:
        """Whether a game still needs this worker."""
        return bool(self.mine(ledger))

    def play(self, ledger: Ledger, now: Seconds, run_of: RunOf, ignores: Callable[[ClaimId], bool]) -> None:
        """One turn at every open game, unless the last turns are still under way; returns at once.

        `run_of` makes the computation behind a claim of an earlier process anew; `ignores` says about which claims no
        challenge is answered (a silent liar's).
        """
        if self._turn is not None:
            if not self._turn.done():
                return
            turn, self._turn = self._turn, None
            turn.result()
        games = [g for g in self.mine(ledger) if not ignores(g.claim)]
        if games:
            self._turn = self._thread.submit(self._play_all, games, now, run_of)

    def close(self) -> None:
        """Finish the move in work."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _play_all(self, games: list[GameRecord], now: Seconds, run_of: RunOf) -> None:
        for game in games:
            try:
                self._play(game, now, run_of)
            except LockstepError as error:
                # The clock runs on, so does the loop: the next turn tries again.
                log.warning("move failed", game=game.id.hex(), code=error.code, message=error.message)

    def _play(self, game: GameRecord, now: Seconds, run_of: RunOf) -> None:
        held = self._held_claim(game.claim, run_of)
        if held is None:
            log.error("no material for a challenged claim", claim=game.claim.hex())
            return
        seat = Seat(GameId(game.id), Side.DEFENDER, held, self._table, self._parts.outbox.send)
        move = seat.turn(now)
        if move is not None:
            event("defending", time=now, game=game.id.hex(), claim=game.claim.hex(), move=move.call)

    def _held_claim(self, claim: ClaimId, run_of: RunOf) -> HeldClaim | None:
        held = self._held.get(claim)
        if held is not None:
            return held
        material = WorkFolder(self._parts.home, claim).material()
        run = None if material is None else run_of(material)
        if material is None or run is None:
            return None
        self.hold(material, run)
        return self._held[claim]
