"""Defending our merges: every move that is due in the games about them, what is in memory first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from coordinator import reading
from coordinator.loading import Aggregators
from lockstep.cli.output import event
from lockstep.node.isolation import Isolation
from lockstep.node.player import AtHand, Due, GameTable, NotAtHand, Seat, Side
from lockstep.node.sender import Sender
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import ClaimId, GameId, JobId, Seconds

if TYPE_CHECKING:
    from coordinator.models import ClaimRow
    from coordinator.parts import CoordinatorParts
    from lockstep.chain.contracts import Call

Stand = tuple[Game, GameId, "ClaimRow"]
"""A game as the chain has it, and the merge that it is about."""


class MergeDefence:
    """The games about merges of this coordinator.

    A task looks at one job and ends: it plays the games itself, in order, where worker and verifier have a docket
    beside their loops.
    """

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
            games = reading.my_open_games(session, reading.hex32(job), self._parts.me)
        if not games:
            return False
        self._aggregators.of(job, params).need([ClaimId(reading.unhex(claim.id)) for _, claim in games])
        found: list[Stand] = []
        for game, claim in games:
            self._isolation.run(partial(self._stand, found, GameId(reading.unhex(game.id)), claim), game.id)
        sent: dict[GameId, Due] = {}
        hard: list[Stand] = []
        for stands in sorted(found, key=lambda s: s[0].deadline):
            self._isolation.run(partial(self._at_hand, job, params, stands, now, sent, hard), stands[1].hex())
        for stands in hard:
            self._isolation.run(partial(self._computed, job, params, stands, now, sent), stands[1].hex())
        moved = False
        for own, due in sent.items():
            if self._sender.mined(due.key):
                moved = True
                event("defending", time=now, game=reading.hex32(own), move=type(due.move).__name__)
        return moved

    def _stand(self, found: list[Stand], game: GameId, claim: ClaimRow) -> None:
        found.append((self._table.game(game), game, claim))

    def _at_hand(
        self, job: JobId, params: JobParams, stands: Stand, now: Seconds, sent: dict[GameId, Due],
        hard: list[Stand],
    ) -> None:  # fmt: skip
        stored, own, claim = stands
        known = AtHand(self._aggregators.of(job, params).at_hand(ClaimId(reading.unhex(claim.id))))
        try:
            self._move(Seat(own, Side.DEFENDER, known, self._table, self._submit), stored, now, sent)
        except NotAtHand:
            hard.append(stands)

    def _computed(self, job: JobId, params: JobParams, stands: Stand, now: Seconds, sent: dict[GameId, Due]) -> None:
        """A move about a merge that has to be computed again."""
        game, own, claim = stands
        stored = self._parts.party.contracts.market.round(job, claim.round)
        with self._parts.database.reading() as session:
            before, accepted = reading.merge_inputs(session, claim.job, claim.round, stored, params)
        merge = ClaimId(reading.unhex(claim.id))
        held = self._aggregators.of(job, params).held(merge, claim.round, stored, before, accepted)
        self._move(Seat(own, Side.DEFENDER, held, self._table, self._submit), game, now, sent)

    def _move(self, seat: Seat, stored: Game, now: Seconds, sent: dict[GameId, Due]) -> None:
        due = seat.due(now, stored)
        if due is not None:
            self._submit(due.call, due.key)
            sent[seat.game] = due

    def _submit(self, call: Call, key: str) -> None:
        self._sender.again(key, call)
