"""Queue of the games on one claim, in order of opening; it determines who shares the prize of a conviction.

Twin of the lists in contracts/DisputeGame.sol: the same names, the same bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import GamePhase
from lockstep.protocol.types import Address, GameId

SCAN = 8
"""Most games that one verdict examines, from the earliest that may be live."""
WINNERS = 3
"""Most challengers that share a prize."""


@dataclass(frozen=True)
class Award:
    """The payments of a conviction."""

    winners: tuple[Address, ...]
    """The accounts that share the prize by 2 : 1 : 1, the convicting challenger first."""
    gas: tuple[tuple[Address, int], ...]
    """Gas to refund to challengers whose games are still open, in this order."""


@dataclass
class Docket:
    """The games on one claim in order of opening, with the index of the first that may still be open."""

    listed: list[GameId] = field(default_factory=list)
    first_live: int = 0
    """Games before this one are closed."""

    def award(self, games: Mapping[GameId, Game], first: Address, spent: int) -> Award:
        """Computes the prizes of a conviction.

        `first` caused it, by a game that is now closed or by an equivocation without a game; the two earliest other
        live games share the prize. Games more than SCAN after the earliest live one get nothing, which bounds the cost
        of a verdict.
        """
        within = [games[id_] for id_ in self.listed[self.first_live : self.first_live + SCAN]]
        live = [game for game in within if game.phase != GamePhase.CLOSED]
        winners = (first, *(game.challenger for game in live[: WINNERS - 1]))
        return Award(winners, ((first, spent), *((game.challenger, game.spent) for game in live)))

    def skip_closed(self, games: Mapping[GameId, Game]) -> None:
        """Advances `first_live` past closed games, at most SCAN at a time."""
        end = min(len(self.listed), self.first_live + SCAN)
        while self.first_live < end and games[self.listed[self.first_live]].phase == GamePhase.CLOSED:
            self.first_live += 1
