"""A party's seat at a game on chain.

read the game and its log -> decide (`protocol.dispute.honest`) -> send one move. A seat keeps nothing that the chain
does not say again, so a process that was killed sits down where it stood.
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
    """The two parties to a game."""

    DEFENDER = "defender"
    CHALLENGER = "challenger"


@dataclass(frozen=True)
class Due:
    """A move that a seat is to make now."""

    move: Move
    call: Call
    key: str
    """One per move: sent twice, it is one transaction."""
    state: Game
    """The game that it answers."""


def key_of(game: GameId, state: Game, move: Move) -> str:
    """The key of a move in a game that stands so: sent twice, it is one transaction."""
    return f"game/{game.hex()}/{state.phase.name}/{state.standing.digest.hex()}/{move.call}"


@dataclass
class Seat:
    """One party's seat at one game."""

    game: GameId
    side: Side
    held: honest.MaterialisedClaim
    table: GameTable
    send: Send

    def due(self, now: Seconds, state: Game | None = None) -> Due | None:
        """The move to make at `now`, if there is one: ours, or `resolve` once the other side's clock has run out.

        None also where there is nothing to prove, or our own clock has run out: the game is lost then. `state` is the
        game as it stands, where it is known already.
        """
        state = self.table.game(self.game) if state is None else state
        move = self._move(state, now)
        if move is None:
            return None
        key = key_of(self.game, state, move)
        return Due(move, games.call(self.table.contract, move, self.game), key, state)

    def turn(self, now: Seconds) -> Move | None:
        """Make the move that is due, if one is, and return it.

        A move that reverts because the game has moved on is no error; any other is raised.
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

    def moved_on(self, due: Due) -> bool:
        """Returns True if the game stands elsewhere than when the move was decided."""
        # INVARIANT: a move answers the game as it stands; if it stands elsewhere, somebody has moved.
        return self.table.game(self.game).standing != due.state.standing

    @property
    def verdict(self) -> Verdict:
        """NONE while the game runs."""
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
