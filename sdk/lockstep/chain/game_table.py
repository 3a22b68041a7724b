"""Reads games from the chain, and caches each while its state is unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.chain import games
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import GameEvent, GamePhase
from lockstep.protocol.types import GameId

if TYPE_CHECKING:
    from lockstep.chain.contracts import GameContract, Market

KEPT = 1_024
"""Number of games whose state a table caches."""


@dataclass(frozen=True)
class GameTable:
    """Reads games from the chain."""

    contract: GameContract
    first_block: int
    """The block of the deployment, before which there are no logs."""
    market: Market | None = None
    """If given, a challenger also ends games whose claim was decided in another game, and gets its bond back at
    once.
    """
    _read: dict[GameId, Game] = field(default_factory=dict, compare=False, repr=False)
    """Open games as last read; one request shows whether a game's state is unchanged."""

    def game(self, game: GameId) -> Game:
        """Returns a game's current state; raises NotFoundError if there is no such game, TryLater if the node's log
        lags behind."""
        found = games.read(self.contract, game, self.first_block, self._read.pop(game, None))
        if found.phase != GamePhase.CLOSED:
            self._read[game] = found
        for longest_unread in list(self._read)[:-KEPT]:
            self._read.pop(longest_unread, None)
        return found

    def log(self, game: GameId) -> list[GameEvent]:
        """Returns the game's events, in order."""
        return games.log(self.contract, game, self.first_block)

    def decided_elsewhere(self, game: Game) -> bool:
        """Returns True if a verdict on the game's claim has no effect any more."""
        return self.market is not None and not self.market.live(game.claim)
