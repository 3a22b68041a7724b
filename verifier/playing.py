"""Plays own games: makes their moves through the game queue, and prints how they end."""

from __future__ import annotations

from lockstep.chain.game_table import GameTable
from lockstep.disputes.game_queue import GameQueue
from lockstep.disputes.player import PlannedMove, Side
from lockstep.execution.states import States
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import GameRecord
from lockstep.protocol.errors import NotFoundError
from lockstep.protocol.types import ClaimId, GameId, Seconds
from lockstep.runtime.party import Party
from verifier import decide
from verifier.reading import MarketView
from verifier.telling import EventPrinter


class GamePlayers:
    """Plays the challenger's side of own running games."""

    def __init__(self, party: Party, table: GameTable, states: States, printer: EventPrinter) -> None:
        """`states` holds, on disk, states of the claims that the games are about."""
        self._me = party.address
        self._table = table
        self._states = states
        self._printer = printer
        self._held: dict[ClaimId, HeldClaim] = {}
        self._queue = GameQueue(table, party.outbox, Side.CHALLENGER, self._held.get, self._moved, states=states)
        self._claims: dict[GameId, ClaimId] = {}
        """The claim of each game that this process plays."""
        self._told: set[GameId] = set()

    def __len__(self) -> int:
        """Returns the number of games that this process plays."""
        return len(self._claims)

    def join(self, game: GameId, claim: ClaimId, held: HeldClaim) -> None:
        """Starts to play a game, with its claim as it was replayed."""
        self._claims[game], self._held[claim] = claim, held

    def unplayed(self, view: MarketView) -> list[GameRecord]:
        """Returns own running games that are not played yet, the earliest deadline first: after a restart, all of
        them."""
        return sorted(decide.seats(self._me, view.games, self._claims), key=self._deadline)

    def tell_ends(self, view: MarketView) -> None:
        """Drops games that are over, and prints how they ended."""
        for game in decide.ended(self._me, view.games, self._told):
            self._told.add(game.id)
            seat = self._claims.pop(game.id, None)
            self._held.pop(game.claim, None)
            self._states.forget(game.claim)
            # What ended before this process began was told by an earlier one.
            if seat is not None:
                name = decide.name_of_end(game.verdict)
                self._printer.print_event(
                    name, claim=game.claim.hex(), game=game.id.hex(), verdict=game.verdict.name.lower()
                )

    def leave_undone(self, view: MarketView) -> list[ClaimId]:
        """Drops games whose opening a reorganisation has reverted; returns their claims."""
        undone = [g for g in self._claims if g not in view.ledger.games and g not in view.ledger.ended]
        claims = [self._claims.pop(game) for game in undone]
        for claim in claims:
            self._held.pop(claim, None)
        return claims

    def play(self, view: MarketView) -> None:
        """Make every move that is due, the earliest deadline first; returns at once."""
        self._queue.play(dict(self._claims), view.head, self._held.get)

    def at_rest(self, view: MarketView) -> bool:
        """Tells if no own game runs."""
        return not self._claims and not decide.seats(self._me, view.games, ())

    def close(self) -> None:
        """Finishes the slice in progress; sent transactions stay sent."""
        self._queue.close()

    def _moved(self, _: Seconds, game: GameId, due: PlannedMove, seconds: float) -> None:
        self._printer.print_event(
            "moved", game=game.hex(), claim=due.state.claim.hex(), move=due.move.call, phase=due.state.phase.name,
            seconds=round(seconds, 3),
        )  # fmt: skip

    def _deadline(self, game: GameRecord) -> int:
        try:
            return self._table.game(game.id).deadline
        except NotFoundError:
            return 0
