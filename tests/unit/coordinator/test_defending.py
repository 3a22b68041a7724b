"""Games about our merges: what is in memory is played first, and what goes wrong about one keeps no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.defending import MergeDefence
from coordinator.loading import Aggregators
from lockstep.node.player import NotAtHand, Seat
from lockstep.protocol.errors import ChainError, Unreachable
from lockstep.protocol.types import ClaimId, Seconds
from tests.support.coordinating import JOB, Held, Sent, game
from tests.unit.coordinator.test_decide import DECIDER, PARAMS


@pytest.fixture
def aggregators(parts: Any) -> Any:
    made: Any = Aggregators(parts)
    made._made[JOB] = Held()
    return made


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def defence(parts: Any, sent: Sent, aggregators: Any) -> Any:
    made: Any = MergeDefence(parts, sent, aggregators)  # type: ignore[arg-type]
    made._table = SimpleNamespace(game=lambda own: SimpleNamespace(deadline=own[0]))
    return made


def number(own: bytes) -> int:
    return own[0] - 0x80


def move(n: int) -> Any:
    return SimpleNamespace(call=None, key=f"move/{n}", move=SimpleNamespace())


def test_moves_at_hand_come_first_then_the_earliest_deadline_and_a_failure_keeps_no_other(
    defence: Any, aggregators: Any, sent: Sent, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines = {1: 10, 2: 40, 3: 30, 4: 20}
    games += [game(n) for n in (1, 2, 3, 4, 5)]
    aggregator = aggregators._made[JOB]
    aggregator.far = {ClaimId(bytes([1]) * 32), ClaimId(bytes([3]) * 32)}
    played: list[int] = []

    def stored(own: bytes) -> Any:
        if number(own) == 5:
            raise ChainError("a node that lost it", "")
        return SimpleNamespace(deadline=deadlines[number(own)])

    def due(seat: Seat, now: Seconds, state: Any) -> Any:
        n = number(seat.game)
        if getattr(seat.held, "known", True) is None:
            raise NotAtHand
        if n == 4:
            raise RuntimeError("a defect")
        played.append(n)
        return move(n)

    defence._table = SimpleNamespace(game=stored)
    monkeypatch.setattr(Seat, "due", due)
    assert defence.defend(JOB, PARAMS, DECIDER.now)
    assert played == [2, 1, 3], "at hand; then by deadline what had to be made"
    assert len(aggregator.needed) == 5
    assert sent.keys == ["move/2", "move/1", "move/3"]
    games.clear()
    assert not defence.defend(JOB, PARAMS, DECIDER.now)


def test_what_goes_wrong_is_told_once_a_game_and_names_it(
    defence: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    games += [game(n) for n in (1, 2)]

    def due(seat: Seat, now: Seconds, state: Any) -> Any:
        raise ChainError("a move that the chain refuses", "")

    monkeypatch.setattr(Seat, "due", due)
    with capture_logs() as logs:
        for _ in range(2):
            assert not defence.defend(JOB, PARAMS, DECIDER.now)
    assert [line["game"] for line in logs] == [row.id for row, _ in games]


def test_without_a_chain_no_game_goes_on(defence: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    games += [game(n) for n in (1, 2)]
    asked: list[bytes] = []

    def due(seat: Seat, now: Seconds, state: Any) -> Any:
        asked.append(seat.game)
        raise Unreachable("nobody", "")

    monkeypatch.setattr(Seat, "due", due)
    with pytest.raises(Unreachable):
        defence.defend(JOB, PARAMS, DECIDER.now)
    assert len(asked) == 1


def test_a_game_in_which_nothing_is_due_is_no_move(
    defence: Any, sent: Sent, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    games.append(game(1))
    monkeypatch.setattr(Seat, "due", lambda *_: None)
    assert not defence.defend(JOB, PARAMS, DECIDER.now)
    assert sent.keys == []
