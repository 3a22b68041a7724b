"""Seats: own games are sat at, left when they end or are undone, and each end is told once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.execution.states import States
from lockstep.market.ledger import GameRecord, Ledger
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import NotFoundError
from lockstep.protocol.types import Address, ClaimId, GameId, Seconds
from lockstep.runtime.party import Head
from verifier.playing import GamePlayers
from verifier.reading import MarketView

ME, OTHER = (Address("0x" + c * 40) for c in "ab")
HELD: Any = object()


def game(number: int, challenger: Address = ME) -> GameRecord:
    return GameRecord(GameId(bytes([number]) * 32), ClaimId(bytes([number, 0]) * 16), challenger, OTHER, 0, 1)


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def print_event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))


class Games:
    """What the chain says of games: their deadlines, by the game's first byte."""

    def __init__(self, deadlines: dict[int, int]) -> None:
        self.deadlines = deadlines

    def game(self, id_: GameId) -> Any:
        if id_[0] not in self.deadlines:
            raise NotFoundError("no such game")
        return SimpleNamespace(deadline=self.deadlines[id_[0]])


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def seats(tmp_path: Path, told: Told) -> Any:
    party: Any = SimpleNamespace(address=ME, outbox=None)
    made = GamePlayers(party, Games({1: 300, 2: 100}), States(tmp_path, 1 << 20), told)  # type: ignore[arg-type]
    yield made
    made.close()


def view(*games: GameRecord) -> MarketView:
    ledger = Ledger()
    for g in games:
        (ledger.games if g.verdict is Verdict.NONE else ledger.ended)[g.id] = g
    return MarketView(ledger, {}, Head(1, Seconds(1)), False, 1)


def test_empty_seats_are_own_running_games_the_earliest_deadline_first(seats: GamePlayers) -> None:
    running = (game(1), game(2), game(3), game(4, OTHER), replace(game(5), verdict=Verdict.FRAUD))
    assert [g.id[0] for g in seats.unplayed(view(*running))] == [3, 2, 1], "one that cannot be read may be the first"
    seats.join(running[1].id, running[1].claim, HELD)
    assert [g.id[0] for g in seats.unplayed(view(*running))] == [3, 1]


def test_an_end_is_told_once_and_frees_the_seat(seats: GamePlayers, told: Told) -> None:
    sat, before = game(1), replace(game(2), verdict=Verdict.FRAUD)
    seats.join(sat.id, sat.claim, HELD)
    assert not seats.at_rest(view(sat, before))
    over = view(replace(sat, verdict=Verdict.REJECTED), before)
    for _ in range(2):
        seats.tell_ends(over)
    fields = {"claim": sat.claim.hex(), "game": sat.id.hex(), "verdict": "rejected"}
    assert told.events == [("lost", fields)], "what ended before this process began was told by an earlier one"
    assert seats.at_rest(over)
    assert len(seats) == 0


def test_a_game_that_a_reorganisation_undid_is_left_and_its_claim_named(seats: GamePlayers) -> None:
    sat, undone = game(1), game(2)
    for g in (sat, undone):
        seats.join(g.id, g.claim, HELD)
    assert seats.leave_undone(view(sat)) == [undone.claim]
    assert len(seats) == 1
    assert seats.leave_undone(view(sat)) == []
