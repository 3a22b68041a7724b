"""A follower tells each move once, in order, whatever fails or is undone on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.disputes.following import Change, Follower, Sighting
from lockstep.disputes.progress import DisputeReader
from lockstep.protocol.errors import NotFoundError, Unreachable
from lockstep.protocol.types import GameId, Seconds
from tests.support.court import LIE, Court, in_memory


@pytest.fixture
def court() -> Iterator[Court]:
    made = in_memory()
    yield made
    made.arena.stop()


def calls(seen: list[Sighting]) -> list[tuple[str, str]]:
    return [(one.kind.value, one.move.call if one.move else one.dispute.verdict) for one in seen]


def test_moves_are_told_once_as_they_come_and_the_end_last(court: Court) -> None:
    game = court.open(0, court.held(0, LIE))
    follower = Follower(DisputeReader(court.arena.contracts), game)
    assert calls(follower.poll()) == [("moved", "open")]
    assert follower.poll() == []
    assert not follower.over
    court.play(game, 0, LIE, 2)
    second = follower.poll()
    assert calls(second) == [("moved", "defend"), ("moved", "pick")]
    assert [one.latest for one in second] == [False, True]
    assert "deadline" not in second[0].to_dict(Seconds(0))
    assert second[1].to_dict(Seconds(0))["mover"] == "defender"
    court.play(game, 0, LIE)
    rest = calls(follower.poll())
    assert rest[-2:] == [("moved", "proveOp"), ("resolved", "fraud")]
    assert follower.over
    assert follower.poll() == []


def test_what_a_reorganisation_undoes_is_told_and_what_comes_instead(court: Court) -> None:
    game = court.open(0, court.held(0, LIE))
    follower = Follower(DisputeReader(court.arena.contracts), game)
    follower.poll()
    mark = court.arena.devnet.snapshot()
    court.play(game, 0, LIE, 2)
    follower.poll()
    court.arena.devnet.revert(mark)
    court.arena.devnet.mine(1)
    undone = follower.poll()
    assert calls(undone) == [("undone", "pick"), ("undone", "defend")]
    court.play(game, 0, LIE, 2)
    assert calls(follower.poll()) == [("moved", "defend"), ("moved", "pick")]


def test_every_game_of_a_job_is_followed_and_no_other(court: Court) -> None:
    job = court.arena.last_job()
    follower = Follower(DisputeReader(court.arena.contracts), job=job)
    assert follower.poll() == []
    assert not follower.over, "the job goes on"
    first, second = court.open(0, court.held(0, LIE)), court.open(2, court.held(2, LIE))
    assert [one.dispute.id for one in follower.poll()] == [first, second]
    court.play(first, 0, LIE)
    assert {one.dispute.id for one in follower.poll()} == {first}
    court.play(second, 2, LIE)
    assert calls(follower.poll())[-1] == ("resolved", "fraud")
    other = Follower(DisputeReader(court.arena.contracts), job=type(job)(bytes(32)))
    assert other.poll() == []


def test_what_was_seen_before_a_poll_failed_is_told_by_the_next(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    games = [court.open(0, court.held(0, LIE)), court.open(2, court.held(2, LIE))]
    reader = DisputeReader(court.arena.contracts)
    follower, plain = Follower(reader, job=court.arena.last_job()), DisputeReader.read

    def failing(self: DisputeReader, game: GameId) -> object:
        if game == games[1]:
            raise Unreachable("nobody answers", hint="ask again")
        return plain(self, game)

    monkeypatch.setattr(DisputeReader, "read", failing)
    with pytest.raises(Unreachable):
        follower.poll()
    monkeypatch.setattr(DisputeReader, "read", plain)
    assert [(one.kind, one.dispute.id) for one in follower.poll()] == [(Change.MOVED, game) for game in games]


def test_a_game_that_is_not_there_is_not_found(court: Court) -> None:
    with pytest.raises(NotFoundError):
        Follower(DisputeReader(court.arena.contracts), GameId(bytes(32))).poll()
