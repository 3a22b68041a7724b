"""Ends games that both of their sides have abandoned, once the mover's clock has run out.

A round is not final while a game about one of its claims is open. If an owner and a challenger colluded, neither would
end their game, and all stakes in the round would stay locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.chain import games
from lockstep.chain.game_table import GameTable
from lockstep.disputes.player import key_of
from lockstep.market.turns import COURTESY_SECONDS, Turns
from lockstep.protocol.dispute import moves
from lockstep.protocol.errors import TryLater
from lockstep.protocol.types import Address, GameId, Seconds

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call
    from lockstep.market.ledger import GameRecord, Ledger


class Abandoned:
    """Finds, for one account, abandoned games of other accounts."""

    def __init__(self, table: GameTable, me: Address) -> None:
        self._table = table
        self._me = me
        self._turns = Turns(me)
        self._until: dict[GameId, Seconds] = {}
        """For each open game, the chain time until which its own sides may end it, as last read."""

    def due(self, ledger: Ledger, now: Seconds) -> Iterator[tuple[str, Call]]:
        """Yields (key, transaction) of every abandoned game that holds up a round and that it is this account's turn to
        end.

        Each game is read when first seen, and again when its clock should have run out.
        """
        self._until = {game: until for game, until in self._until.items() if game in ledger.games}
        for record in list(ledger.games.values()):
            if now <= self._until.get(record.id, 0) or not self._holds_up(ledger, record):
                continue
            try:
                state = self._table.game(record.id)
            except TryLater:
                continue
            self._until[record.id] = until = Seconds(state.deadline + COURTESY_SECONDS)
            owners = ledger.owners_beside(record.claim) - {record.challenger, record.defender}
            # INVARIANT: what anybody may do for nothing is done by one: the others wait for their turns.
            if state.verdict == moves.Verdict.NONE and now > until and self._turns.mine(record.id, until, now, owners):
                move = moves.Resolve(state.standing)
                yield key_of(record.id, state, move), games.call(self._table.contract, move, record.id)

    def _holds_up(self, ledger: Ledger, record: GameRecord) -> bool:
        """Returns True if a game of two other accounts keeps a round open."""
        # INVARIANT: no round waits for a game that neither of its sides ends.
        return self._me not in (record.challenger, record.defender) and ledger.awaited(record.claim) is not None
