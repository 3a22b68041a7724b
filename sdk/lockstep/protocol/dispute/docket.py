"""The games on one claim in the order of their opening: who shares the prize when it is convicted.

Twin of the lists in contracts/DisputeGame.sol: the same names, the same bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import GamePhase
from lockstep.protocol.types import Address, GameId

SCAN = 8
"""Games that one verdict looks at, from the earliest that may be live."""
WINNERS = 3
"""Challengers who share a prize."""


@dataclass(frozen=True)
class Award:
    """The payments of a conviction."""

    winners: tuple[Address, ...]
    """The accounts that share the prize by 2 : 1 : 1, the convicting challenger first."""
    gas: tuple[tuple[Address, int], ...]
    """Gas that challengers spent on games still open, to be given back in this order."""


@dataclass
class Docket:
    """The games on one claim in the order of their opening, and the index of the first that may still be open."""

    listed: list[GameId] = field(default_factory=list)
    first_live: int = 0
    """Games before this one are closed."""

    def award(self, games: Mapping[GameId, Game], first: Address, spent: int) -> Award:
        """Computes the prizes of a conviction: `first` convicted, by a game that is closed now or by an equivocation
        without one; the two earliest other live games share. Games more than SCAN after the earliest live one get
        nothing, which bounds the cost of a verdict."""
        within = [games[id_] for id_ in self.listed[self.first_live : self.first_live + SCAN]]
        live = [game for game in within if game.phase != GamePhase.CLOSED]
        winners = (first, *(game.challenger for game in live[: WINNERS - 1]))
        return Award(winners, ((first, spent), *((game.challenger, game.spent) for game in live)))

    def skip_closed(self, games: Mapping[GameId, Game]) -> None:
        """Advances `first_live` past closed games, at most SCAN at a time."""
        end = min(len(self.listed), self.first_live + SCAN)
        while self.first_live < end and games[self.listed[self.first_live]].phase == GamePhase.CLOSED:
            self.first_live += 1
