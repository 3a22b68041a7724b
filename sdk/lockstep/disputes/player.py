"""Plays one side of a game on chain.

read the game and its log -> decide (`protocol.dispute.honest`) -> send one move. A player has no state beyond the
chain's, so a restarted process continues where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from lockstep.chain import games
from lockstep.chain.game_table import GameTable
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import DEFENDERS, GamePhase, Move, Verdict
from lockstep.protocol.errors import ChainError
from lockstep.protocol.types import GameId, Seconds

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call

Send = Callable[["Call", str], object]
"""Sends a transaction once per key. `Outbox.send` waits until it is mined and raises ChainError if it reverts;
`Outbox.submit` does not wait."""


class Side(Enum):
    """The two sides of a game."""

    DEFENDER = "defender"
    CHALLENGER = "challenger"


@dataclass(frozen=True)
class PlannedMove:
    """A move that a side owes now."""

    move: Move
    call: Call
    key: str
    """The move's outbox key: sending it again under this key gives a single transaction."""
    state: Game
    """The state of the game that the move answers."""


def key_of(game: GameId, state: Game, move: Move) -> str:
    """Returns the outbox key of a move in this state of a game: sending it again under this key gives a single
    transaction.
    """
    return f"game/{game.hex()}/{state.phase.name}/{state.standing.digest.hex()}/{move.call}"


@dataclass
class GamePlayer:
    """Plays one party's side of one game."""

    game: GameId
    side: Side
    held: honest.MaterialisedClaim
    table: GameTable
    send: Send

    def due(self, now: Seconds, state: Game | None = None) -> PlannedMove | None:
        """Returns the move to make at `now`: this side's own, or `resolve` once the other side's clock has run out.

        Returns None if no move is due, if there is nothing to prove, or if this side's clock has run out, in which case
        the game is lost. `state` is the game's state, if already known.
        """
        state = self.table.game(self.game) if state is None else state
        move = self._move(state, now)
        if move is None:
            return None
        key = key_of(self.game, state, move)
        return PlannedMove(move, games.call(self.table.contract, move, self.game), key, state)

    def turn(self, now: Seconds) -> Move | None:
        """Makes and returns the due move, if any.

        A move that reverts because the game has moved on is not an error; any other revert is raised.
        """
        due = self.due(now)
        if due is None:
            return None
        try:
            self.send(due.call, due.key)
        except ChainError:
            if self.moved_on(due):
                return None
            raise
        return due.move

    def moved_on(self, due: PlannedMove) -> bool:
        """Returns True if the game's state has changed since the move was decided."""
        # INVARIANT: a move answers the game as it stands; if it stands elsewhere, somebody has moved.
        return self.table.game(self.game).standing != due.state.standing

    @property
    def verdict(self) -> Verdict:
        """The game's verdict; NONE while it runs."""
        return self.table.game(self.game).verdict

    def _move(self, state: Game, now: Seconds) -> Move | None:
        if state.phase == GamePhase.CLOSED:
            return None
        if self.side is Side.CHALLENGER and self.table.decided_elsewhere(state):
            return moves.Resolve(state.standing)
        if (state.phase in DEFENDERS) != (self.side is Side.DEFENDER):
            return moves.Resolve(state.standing) if now > state.deadline else None
        if now > state.deadline:
            return None
        choose = honest.answer if self.side is Side.DEFENDER else honest.point
        return choose(state, self.table.log(self.game), self.held)
