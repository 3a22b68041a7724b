"""Defending our merges: every move that is due in the games about them, what is in memory first.

A task looks at one job while it holds that job's lease, and ends: it plays the games itself, in order.
`node.game_queue`, which plays beside the loops of worker and verifier, would send after the lease is given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from coordinator import reading
from coordinator.aggregator import Aggregator
from coordinator.loading import Aggregators
from lockstep.base.lines import event
from lockstep.node.isolation import Isolation
from lockstep.node.player import AtHand, Due, GameTable, HeldClaim, NotAtHand, Seat, Side
from lockstep.node.sender import Sender
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import ClaimId, GameId, JobId, Seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.models import ClaimRow, GameRow
    from coordinator.parts import CoordinatorParts
    from lockstep.chain.contracts import Call


@dataclass(frozen=True)
class DefendedGame:
    """An open game about a merge of ours."""

    id: GameId
    stored: Game
    """As the chain has it."""
    claim: ClaimRow
    """The merge."""

    @property
    def merge(self) -> ClaimId:
        """The merge's id."""
        return ClaimId(reading.unhex(self.claim.id))


class MergeDefence:
    """The games about merges of this coordinator."""

    def __init__(self, parts: CoordinatorParts, sender: Sender[None], aggregators: Aggregators) -> None:
        self._parts = parts
        self._sender = sender
        self._aggregators = aggregators
        self._table = GameTable(parts.party.contracts.game, parts.party.addresses.block)
        self._isolation = Isolation()

    def defend(self, job: JobId, params: JobParams, now: Seconds) -> bool:
        """Make the moves that are due, what is in memory first, then the earliest deadline; all are sent before any is
        waited for. Tells if any was made."""
        with self._parts.database.reading() as session:
            rows = reading.my_open_games(session, reading.hex32(job), self._parts.me)
        if not rows:
            return False
        aggregator = self._aggregators.of(job, params)
        aggregator.need([ClaimId(reading.unhex(claim.id)) for _, claim in rows])
        sent: dict[GameId, Due] = {}
        hard: list[DefendedGame] = []
        for game in self._by_deadline(rows):
            self._alone(game.id, partial(self._at_hand, aggregator, game, now, sent, hard))
        for game in hard:
            self._alone(game.id, partial(self._computed, aggregator, params, game, now, sent))
        moved = False
        for own, due in sent.items():
            if self._sender.mined(due.key):
                moved = True
                event("defending", time=now, game=reading.hex32(own), move=type(due.move).__name__)
        return moved

    def _by_deadline(self, rows: Iterable[tuple[GameRow, ClaimRow]]) -> list[DefendedGame]:
        found: list[DefendedGame] = []

        def look(game: GameId, claim: ClaimRow) -> None:
            found.append(DefendedGame(game, self._table.game(game), claim))

        for row, claim in rows:
            game = GameId(reading.unhex(row.id))
            self._alone(game, partial(look, game, claim))
        return sorted(found, key=lambda g: g.stored.deadline)

    def _at_hand(
        self, aggregator: Aggregator, game: DefendedGame, now: Seconds, sent: dict[GameId, Due],
        hard: list[DefendedGame],
    ) -> None:  # fmt: skip
        """A move from what is in memory; what is not there comes after all of these."""
        try:
            self._move(game, AtHand(aggregator.at_hand(game.merge)), now, sent)
        except NotAtHand:
            hard.append(game)

    def _computed(
        self, aggregator: Aggregator, params: JobParams, game: DefendedGame, now: Seconds, sent: dict[GameId, Due]
    ) -> None:
        """A move about a merge that has to be computed again."""
        claim = game.claim
        stored = self._parts.party.contracts.market.round(JobId(reading.unhex(claim.job)), claim.round)
        with self._parts.database.reading() as session:
            before, accepted = reading.merge_inputs(session, claim.job, claim.round, stored, params)
        self._move(game, aggregator.held(game.merge, claim.round, stored, before, accepted), now, sent)

    def _move(self, game: DefendedGame, held: HeldClaim | AtHand, now: Seconds, sent: dict[GameId, Due]) -> None:
        due = Seat(game.id, Side.DEFENDER, held, self._table, self._submit).due(now, game.stored)
        if due is not None:
            self._submit(due.call, due.key)
            sent[game.id] = due

    def _submit(self, call: Call, key: str) -> None:
        self._sender.again(key, call)

    def _alone(self, game: GameId, work: Callable[[], None]) -> None:
        """Do something about one game; what goes wrong there keeps no other game's move."""
        self._isolation.run(work, game, game=reading.hex32(game))
