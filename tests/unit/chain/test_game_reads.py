"""A game is read from its last event, and only where that hashes to what the contract stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.chain import game_table, games
from lockstep.chain.game_table import GameTable
from lockstep.disputes.player import Side
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import GamePhase, Verdict
from lockstep.protocol.errors import NotFoundError, TryLater
from lockstep.protocol.types import GameId
from tests.support.court import LIE, Court, in_memory


@pytest.fixture
def court() -> Court:
    return in_memory()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each scan of the log gave."""
    made: list[int] = []
    real = games._logs

    def counted(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        made.append(len(found))
        return found

    monkeypatch.setattr(games, "_logs", counted)
    return made


def played(court: Court, game: GameId, count: int) -> None:
    """So many moves, by both sides."""
    sides = [court.seat(game, Side.DEFENDER, court.held(0, LIE)), court.seat(game, Side.CHALLENGER, court.held(0))]
    for n in range(count):
        assert sides[n % 2].turn(court.arena.now()) is not None


def test_a_game_stands_where_its_last_event_says_and_the_contract_stores_the_hash(court: Court) -> None:
    game, seen = court.open(0, court.held(0, LIE)), list[Game]()
    for _ in range(40):
        found = games.read(court.arena.contracts.game, game)
        assert court.arena.contracts.game.read("game", game) == found.stored
        if found.phase == GamePhase.CLOSED:
            break
        assert games.as_it_stands(found.standing, found.challenger).standing == found.standing
        seen.append(found)
        played_by = Side.DEFENDER if found.defender_moves else Side.CHALLENGER
        held = court.held(0, LIE) if found.defender_moves else court.held(0)
        assert court.seat(game, played_by, held).turn(court.arena.now()) is not None
    assert len({one.standing for one in seen}) == len(seen) >= 6, "no two moves leave the same"
    assert (found.verdict, found.claim, found.challenger) == (Verdict.FRAUD, court.claims[0], seen[0].challenger)
    assert games.verdict(court.arena.contracts.game, game) is Verdict.FRAUD


def test_a_game_that_stands_still_is_one_request(court: Court, scans: list[int]) -> None:
    game = court.open(0, court.held(0, LIE))
    table = GameTable(court.arena.contracts.game, 0)
    first = table.game(game)
    del scans[:]
    assert table.game(game) == first
    assert not scans, "the stored word says that nothing has happened"
    played(court, game, 1)
    assert table.game(game) != first
    assert len(scans) > 0


def test_a_table_remembers_the_games_that_were_read_last(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_table, "KEPT", 2)
    table = GameTable(court.arena.contracts.game, 0)
    opened = [court.open(0, court.held(0, LIE)) for _ in range(3)]
    for game in (*opened, opened[1]):
        table.game(game)
    assert list(table._read) == [opened[2], opened[1]]


def test_what_was_spent_is_the_contracts_own_word(court: Court) -> None:
    game = court.open(0, court.held(0, LIE))
    table = GameTable(court.arena.contracts.game, 0)
    spent = [table.game(game).spent]
    for _ in range(2):
        played(court, game, 2)
        spent.append(table.game(game).spent)
    assert spent == sorted(set(spent))
    assert spent[0] > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("behind", [1, 100], ids=["by one move", "with nothing at all"])
def test_a_log_that_is_not_as_far_as_the_state_is_read_later(
    court: Court, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    game = court.open(0, court.held(0, LIE))
    played(court, game, 2)
    real, asked = games._logs, list[int]()

    def late(*given: Any, latest: bool = False, **more: Any) -> Sequence[Any]:
        asked.append(1)
        return real(*given, **more)[:-behind]

    monkeypatch.setattr(games, "_logs", late)
    with pytest.raises(TryLater, match="behind the game"):
        games.read(court.arena.contracts.game, game)
    assert len(asked) == (games.READS if behind == 1 else 1)


def test_a_move_between_the_two_requests_is_seen_by_the_next(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    game = court.open(0, court.held(0, LIE))
    real, asked = games._logs, list[int]()

    def with_a_move(*given: Any, **more: Any) -> Any:
        if not asked:
            asked.append(1)
            monkeypatch.setattr(games, "_logs", real)
            played(court, game, 1)
        return real(*given, **more)

    monkeypatch.setattr(games, "_logs", with_a_move)
    assert games.read(court.arena.contracts.game, game).phase == GamePhase.GRAPH_PICK


def test_an_event_of_another_game_is_no_standing(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that lies about the log is not believed: what it says does not hash to the stored word."""
    game, other = court.open(0, court.held(0, LIE)), court.open(0, court.held(0, LIE))
    played(court, other, 1)
    real = games._logs
    monkeypatch.setattr(
        games, "_logs",
        lambda contract, begin, topics, **more: real(contract, begin, [None, "0x" + other.hex()], **more),
    )  # fmt: skip
    with pytest.raises(TryLater):
        games.read(court.arena.contracts.game, game)


def test_a_game_that_nobody_opened_is_not_found(court: Court) -> None:
    with pytest.raises(NotFoundError, match="no game"):
        games.read(court.arena.contracts.game, GameId(bytes(32)))


def test_a_stale_move_is_told_from_a_wrong_one(court: Court) -> None:
    """A move about a game that stands elsewhere by now is over, whichever of its words has changed."""
    game = court.open(0, court.held(0, LIE))
    seat = court.seat(game, Side.DEFENDER, court.held(0, LIE))
    due = seat.due(court.arena.now())
    assert due is not None
    assert not seat.moved_on(due)
    state = due.state
    later = moves.GameState(*state.standing)._replace(turn=state.standing.turn + (1 << 16))
    assert seat.moved_on(type(due)(due.move, due.call, due.key, games.as_it_stands(later, state.challenger)))
