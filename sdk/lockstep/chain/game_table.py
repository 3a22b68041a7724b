"""Games as the chain shows them: read once while they stand as they stood, or with their logs."""

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
"""Games that a table remembers as they stood."""


@dataclass(frozen=True)
class GameTable:
    """The games as the chain shows them."""

    contract: GameContract
    first_block: int
    """The block of the deployment: no log is older."""
    market: Market | None = None
    """Given, a challenger also ends games whose claim another game has decided: its bond comes back at once."""
    _read: dict[GameId, Game] = field(default_factory=dict, compare=False, repr=False)
    """Open games as they stood when they were read last: one request tells that they still stand so."""

    def game(self, game: GameId) -> Game:
        """A game as it stands; raises NotFoundError if there is none, TryLater if the node's log lags behind."""
        found = games.read(self.contract, game, self.first_block, self._read.pop(game, None))
        if found.phase != GamePhase.CLOSED:
            self._read[game] = found
        for longest_unread in list(self._read)[:-KEPT]:
            self._read.pop(longest_unread, None)
        return found

    def log(self, game: GameId) -> list[GameEvent]:
        """Its events, in order."""
        return games.log(self.contract, game, self.first_block)

    def decided_elsewhere(self, game: Game) -> bool:
        """Returns True if a verdict on the game's claim counts no more."""
        return self.market is not None and not self.market.live(game.claim)
