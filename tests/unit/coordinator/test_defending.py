"""Games about our merges: what is in memory is played first, and what goes wrong about one keeps no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator import aggregator as module
from coordinator.aggregator import _tell_move
from coordinator.merging import Aggregators
from lockstep.base.cache import MemoryCache
from lockstep.disputes.game_queue import DefenceQueue
from lockstep.disputes.player import GamePlayer
from lockstep.market.held import NotCached
from lockstep.protocol.dispute.moves import GamePhase
from lockstep.protocol.errors import ChainError, Unreachable
from lockstep.protocol.types import ClaimId, Seconds
from lockstep.runtime.party import Head
from tests.support.coordinating import JOB, Held, game
from tests.unit.coordinator.test_decide import DECIDER, PARAMS

NOW = DECIDER.now
HEAD = Head(DECIDER.block, NOW)


class Chain:
    """In the place of games and of an outbox: what is sent is mined once it is waited for, and moves its game."""

    def __init__(self) -> None:
        self.deadlines: dict[int, int] = {}
        self.keys: list[str] = []
        self.mined: list[str] = []
        self.reverts: set[str] = set()

    def game(self, own: bytes) -> Any:
        n = number(own)
        return SimpleNamespace(
            phase=GamePhase.DEFEND, deadline=NOW + self.deadlines.get(n, n), standing=f"move/{n}" in self.mined, t=0
        )

    def submit(self, call: object, key: str) -> None:
        assert not self.mined, "all are sent before any is waited for"
        self.keys.append(key)

    def wait(self, key: str, timeout: float) -> None:
        if key in self.reverts:
            raise ChainError("a rule of the game", "")
        self.mined.append(key)

    def receipt(self, key: str) -> Any:
        return SimpleNamespace(succeeded=key not in self.reverts)

    def forget(self, key: str) -> None:
        """Lets a key go whose transaction reverted: it may be sent again."""


@pytest.fixture
def chain() -> Chain:
    return Chain()


@pytest.fixture
def aggregators(parts: Any, chain: Chain) -> Any:
    made: Any = Aggregators(parts)
    held: Any = Held()
    held.defence = DefenceQueue(chain, chain, MemoryCache(), _tell_move)  # type: ignore[arg-type]
    held.defence._cached = held.cached
    made._made[JOB] = held
    return made


def number(own: bytes) -> int:
    return own[0] - 0x80


def move(n: int) -> Any:
    standing = SimpleNamespace(standing=False)
    return SimpleNamespace(call=None, key=f"move/{n}", move=SimpleNamespace(call="defend"), state=standing)


def test_moves_at_hand_come_first_then_the_earliest_deadline_and_a_failure_keeps_no_other(
    aggregators: Any, chain: Chain, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.deadlines = {1: 10, 2: 40, 3: 30, 4: 20}
    games += [game(n) for n in (1, 2, 3, 4, 5)]
    aggregator = aggregators._made[JOB]
    aggregator.far = {ClaimId(bytes([1]) * 32), ClaimId(bytes([3]) * 32)}
    played: list[int] = []
    stored = chain.game

    def game_of(own: bytes) -> Any:
        if number(own) == 5:
            raise ChainError("a node that lost it", "")
        return stored(own)

    def due(seat: GamePlayer, now: Seconds, state: Any) -> Any:
        n = number(seat.game)
        if getattr(seat.held, "known", True) is None:
            raise NotCached
        if n == 4:
            raise RuntimeError("a defect")
        played.append(n)
        return move(n)

    monkeypatch.setattr(chain, "game", game_of)
    monkeypatch.setattr(GamePlayer, "due", due)
    assert aggregators.defend(JOB, PARAMS, HEAD)
    assert played == [2, 1, 3], "at hand; then by deadline what had to be made"
    assert len(aggregator.defence.needs()) == 5
    assert chain.keys == ["move/2", "move/1", "move/3"]
    games.clear()
    assert not aggregators.defend(JOB, PARAMS, HEAD)


def test_what_goes_wrong_is_told_once_a_game_and_names_it(
    aggregators: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    games += [game(n) for n in (1, 2)]

    def due(seat: GamePlayer, now: Seconds, state: Any) -> Any:
        raise ChainError("a move that the chain refuses", "")

    monkeypatch.setattr(GamePlayer, "due", due)
    with capture_logs() as logs:
        for _ in range(2):
            assert not aggregators.defend(JOB, PARAMS, HEAD)
    assert ["0x" + line["game"] for line in logs] == [row.id for row, _ in games]


def test_without_a_chain_no_game_goes_on(aggregators: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    games += [game(n) for n in (1, 2)]
    asked: list[bytes] = []

    def due(seat: GamePlayer, now: Seconds, state: Any) -> Any:
        asked.append(seat.game)
        raise Unreachable("nobody", "")

    monkeypatch.setattr(GamePlayer, "due", due)
    with pytest.raises(Unreachable):
        aggregators.defend(JOB, PARAMS, HEAD)
    assert len(asked) == 1


def test_a_game_in_which_nothing_is_due_is_no_move(
    aggregators: Any, chain: Chain, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    games.append(game(1))
    monkeypatch.setattr(GamePlayer, "due", lambda *_: None)
    assert not aggregators.defend(JOB, PARAMS, HEAD)
    assert chain.keys == []


def test_a_move_that_reverts_is_no_move_and_a_store_that_is_gone_keeps_no_other(
    aggregators: Any, chain: Chain, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    games += [game(n) for n in (1, 2, 3)]
    aggregator = aggregators._made[JOB]
    aggregator.far, chain.reverts = {ClaimId(bytes([1]) * 32)}, {"move/2"}

    def due(seat: GamePlayer, now: Seconds, state: Any) -> Any:
        if getattr(seat.held, "known", True) is None:
            raise NotCached
        return move(number(seat.game))

    def held(*_: Any) -> Any:
        raise Unreachable("a store that is gone", "")

    monkeypatch.setattr(GamePlayer, "due", due)
    monkeypatch.setattr(aggregator, "held", held)
    told: list[Any] = []
    monkeypatch.setattr(module, "event", lambda name, **fields: told.append((name, fields)))
    assert aggregators.defend(JOB, PARAMS, HEAD)
    assert chain.keys == ["move/2", "move/3"]
    made = {"time": NOW, "game": games[2][0].id, "move": "SimpleNamespace"}
    assert told == [("defending", made)], "of what was mined alone"
