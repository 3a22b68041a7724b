"""Random games on the pure rules: a sample of them, the whole count behind `slow`, and a hundred at once."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.types import Address, Seconds
from tests.property import games
from tests.property.actors import DISHONEST, Honest, Liar, Silent
from tests.property.table import START, Table
from tests.support import letters

CHALLENGER = Address("0x" + "22" * 20)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_honest_side_wins_and_the_money_adds_up(part: int) -> None:
    met, played = Counter[tuple[str, str]](), 0
    for number in range(500 * part, 500 * (part + 1)):
        history = games.play(number)
        played += len(history.table.records)
        met.update((type(history.defender).__name__, type(s.actor).__name__) for s in history.seats.values())
    assert played >= 500
    for actor in DISHONEST:
        assert met["Honest", actor.__name__] > 0, f"an honest defender met {actor.__name__}"
        assert met[actor.__name__, "Honest"] > 0, f"{actor.__name__} met an honest challenger"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_games() -> None:
    played, number = 0, 0
    while played < 100_000:
        played += len(games.play(number).table.records)
        number += 1
    assert played >= 100_000


@pytest.mark.slow
def test_every_move_and_every_verdict_is_met() -> None:
    records = [record for number in range(400) for record in games.play(number).table.records.values()]
    assert {record.state.verdict for record in records} == set(Verdict) - {Verdict.NONE}
    assert {type(move) for record in records for move in record.played} == {moves.Open, moves.Resolve, *answers()}


def answers(kind: type[moves.Answer] = moves.Answer) -> set[type[moves.Answer]]:
    """Every kind of answer."""
    return {leaf for direct in kind.__subclasses__() for leaf in answers(direct) or {direct}}


@pytest.mark.parametrize("count", [10, 100])
def test_many_games_at_once_do_not_starve_a_defender_that_materialises_one_step_at_a_time(count: int) -> None:
    """tau for each game open before is the time of one step materialised: a defender that needs it all answers."""

    class OneAtATime(Honest):
        ready = int(START)

        def wait(self, left: int) -> int:  # type: ignore[override]
            if left == letters.CLOCK + letters.STEP_SECONDS * self.opened:
                self.opened += 1
                self.ready += letters.STEP_SECONDS
                return self.ready - int(START)
            return 0

        opened = 0

    dice, truth = Random(count), letters.truth(5)
    table = Table(letters.claim_of(truth))
    history = games.History(0, table, OneAtATime(dice, truth), truth, dice)
    for i in range(count):
        account = Address(f"0x{0x2200 + i:040x}")
        table.seat(account)
        seat = games.Seat(account, Liar(dice, games.lying(dice, 5, 3, 0x61)))
        history.opens(seat, letters.open_at(table.claim, truth, 1 + i % 5, i), START)
    history.run()
    history.check()
    assert len(table.records) == count
    assert all(record.state.verdict == Verdict.REJECTED for record in table.records.values())


def test_accomplices_that_lose_on_purpose_do_not_hold_up_an_honest_challenger() -> None:
    dice, truth = Random(1), letters.truth(3)
    held = letters.LetterClaim(3, lie_at=2, lie=letters.Lie(letters.LETTER_OP))
    table = Table(letters.claim_of(held))
    history = games.History(0, table, Liar(dice, held), truth, dice)
    for i in range(20):
        seat = games.Seat(Address(f"0x{0x2200 + i:040x}"), Silent(dice, held))
        table.seat(seat.account)
        history.opens(seat, letters.open_at(table.claim, held, 2, i), START)
    history.run()
    assert [record.state.verdict for record in table.records.values()] == [Verdict.REJECTED] * 20
    last = games.Seat(CHALLENGER, Honest(dice, truth))
    table.seat(CHALLENGER)
    history.opens(last, letters.open_at(table.claim, held, 2, 0), Seconds(START + 1_000))
    history.run()
    history.check()
    assert table.convicted_by is not None
    assert table.records[table.convicted_by].challenger == CHALLENGER
