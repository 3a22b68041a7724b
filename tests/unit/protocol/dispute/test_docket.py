"""Who shares a prize: the convicting game's challenger and the two earliest other live games, by 2 : 1 : 1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.protocol.dispute.docket import SCAN, Docket
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import GamePhase, Resolve
from lockstep.protocol.market.types import BURN
from lockstep.protocol.types import Address, GameId, Seconds, Wei
from tests.property.table import START, Table
from tests.support import letters
from tests.support.ledger import Books

KEY = b"claim"
WORKER, REQUESTER = letters.WORKER, Address("0x" + "99" * 20)


def challenger(i: int) -> Address:
    return Address(f"0x{0x2200 + i:040x}")


def id_of(i: int) -> GameId:
    return GameId(i.to_bytes(32, "big"))


def docket_of(closed: str) -> tuple[Docket, dict[GameId, Game]]:
    """One game for each letter: "x" closed, "." live."""
    claim = letters.claim_of(letters.truth(2))
    table = Table(claim)
    games = {}
    for i, mark in enumerate(closed):
        table.seat(challenger(i))
        opened = letters.open_at(claim, letters.truth(2), 1, i)
        table.play(id_of(i), opened, challenger(i), START)
        state = replace(table.records[id_of(i)].state, spent=1_000 + i)
        games[id_of(i)] = replace(state, phase=GamePhase.CLOSED) if mark == "x" else state
    return Docket(list(games)), games


@pytest.mark.parametrize(
    ("closed", "others"),
    [
        ("x", []),
        ("x.", [1]),
        ("x..", [1, 2]),
        ("...x", [0, 1]),
        ("xx.x.x.", [2, 4]),
        ("x" * SCAN + "..", []),
        ("x" * (SCAN - 1) + "..", [SCAN - 1]),
    ],
)
def test_the_two_earliest_live_games_within_the_scan_share(closed: str, others: list[int]) -> None:
    docket, games = docket_of(closed)
    award = docket.award(games, WORKER, 77)
    assert award.winners == (WORKER, *(challenger(i) for i in others))
    live = [i for i in range(min(SCAN, len(closed))) if closed[i] == "."]
    assert award.gas == ((WORKER, 77), *((challenger(i), 1_000 + i) for i in live)), "gas of every live game"


def test_closed_games_at_the_front_are_skipped_some_at_a_time() -> None:
    docket, games = docket_of("x" * (SCAN + 2) + ".x.")
    docket.skip_closed(games)
    assert docket.first_live == SCAN
    docket.skip_closed(games)
    assert docket.first_live == SCAN + 2, "up to the first live one"
    docket.skip_closed(games)
    assert docket.first_live == SCAN + 2
    assert docket.award(games, WORKER, 0).winners == (WORKER, challenger(SCAN + 2), challenger(SCAN + 4))


def books(stake: int) -> Books:
    held = Books.of(Seconds(0))
    held.deposit(WORKER, Wei(stake))
    held.lock(WORKER, KEY, Wei(stake))
    return held


@pytest.mark.parametrize("stake", [1, 7, 100, 999, 1_000_003])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("gas", [0, 1, 10**9])
def test_at_least_half_is_burned_and_nothing_is_lost(stake: int, count: int, gas: int) -> None:
    held = books(stake)
    winners = [challenger(i) for i in range(count)]
    held.slash(KEY, Wei(0), winners, [(winner, Wei(gas)) for winner in winners], REQUESTER)
    assert held.owed == held.tokens == stake
    assert 2 * held.credits[BURN] >= stake
    prize = stake * 30 // 100
    shares = [prize * weight // (count + 1) for weight in (2, 1, 1)[:count]]
    refunds = sum(held.credits[winner] for winner in winners) - sum(shares)
    assert 0 <= refunds <= stake * 10 // 100
    assert held.credits[REQUESTER] == stake * 20 // 100 - refunds


def test_a_void_game_takes_no_share() -> None:
    """A conviction closes what is left of the docket: the others get their bonds back, no more."""
    held = letters.LetterClaim(2, lie_at=1, lie=letters.Lie(letters.LETTER_OP))
    table = Table(letters.claim_of(held))
    for i in range(2):
        table.seat(challenger(i))
        table.play(id_of(i), letters.open_at(table.claim, held, 1, i), challenger(i), START)
    late = Seconds(START + letters.CLOCK + letters.STEP_SECONDS + 1)
    table.play(id_of(0), Resolve(table.records[id_of(0)].state.standing), challenger(0), late)
    table.play(id_of(1), Resolve(table.records[id_of(1)].state.standing), challenger(1), late)
    prize = letters.STAKE * 30 // 100
    assert [table.books.credits[challenger(i)] for i in range(2)] == [prize * 2 // 3, prize // 3]
