"""Games that both of their sides have left: others end them, after a while, where a round waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.chain.outbox import Outbox
from lockstep.disputes.abandoned import Abandoned
from lockstep.market.turns import COURTESY_SECONDS, DRAWN, TURN_SECONDS
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.types import Address, ClaimId, Seconds
from lockstep.runtime.sender import Sender
from tests.adversarial.court import Court
from verifier.service import Verifier

LATE = Seconds(COURTESY_SECONDS + 1 + int((3 + DRAWN) * TURN_SECONDS))
"""After a clock: its sides' time is over, and that of everybody who comes first."""


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    running = Court.in_memory(tmp_path_factory.mktemp("market"))
    yield running
    running.stop()


@pytest.fixture
def claims(court: Court) -> list[ClaimId]:
    """A merged round of honest claims."""
    court.reset(rounds=1)
    claims = court.claim()
    court.merge()
    return claims


def test_a_game_that_nobody_plays_holds_up_no_round(court: Court, claims: list[ClaimId]) -> None:
    # Owner and challenger are one: neither moves, neither ends it.
    game = court.open_at(claims[0], 1, "mallory")
    deadline = court.table().game(game).deadline
    court.advance(deadline + LATE - court.now())
    abandoned = Abandoned(court.table(), court.address("worker-1"))
    assert not list(abandoned.due(court.ledger(), Seconds(deadline + COURTESY_SECONDS))), "its sides have time"
    ((key, end),) = abandoned.due(court.ledger(), court.now())
    assert [found for found, _ in abandoned.due(court.ledger(), court.now())] == [key], "until it is mined"
    court.send(end, "worker-1")
    assert court.verdict(game) == Verdict.TIMEOUT, "its owner made no move"
    assert court.contracts.market.claim(claims[0]).status == ClaimStatus.CONVICTED
    assert not list(abandoned.due(court.ledger(), court.now()))


def test_sixteen_games_are_each_read_once_and_ended_once(court: Court, claims: list[ClaimId]) -> None:
    games = [court.open_at(claims[0], 1, "mallory", nonce) for nonce in range(16)]
    table = court.table()
    abandoned, asked = Abandoned(table, court.address("worker-1")), list[bytes]()
    whole = table.contract.read

    def counted(name: str, *arguments: object) -> object:
        asked.extend(a for a in arguments[:1] if name == "game" and isinstance(a, bytes))
        return whole(name, *arguments)

    table.contract.read = counted  # type: ignore[method-assign, assignment]
    try:
        for _ in range(3):
            assert not list(abandoned.due(court.ledger(), court.now()))
        assert sorted(asked) == sorted(games), "a running game is read once"
    finally:
        table.contract.read = whole  # type: ignore[method-assign]
    court.advance(table.game(games[-1]).deadline + LATE - court.now())
    due = list(abandoned.due(court.ledger(), court.now()))
    assert len({key for key, _ in due}) == 16
    court.send(due[0][1], "worker-1")
    assert not list(abandoned.due(court.ledger(), court.now())), "the verdict on one is the end of what they held up"


def test_a_verifier_ends_sixteen_games_without_waiting_for_a_block(
    court: Court, claims: list[ClaimId], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = [court.open_at(claims[0], 1, "mallory", nonce) for nonce in range(16)]
    court.advance(court.table().game(games[-1]).deadline + LATE - court.now())
    court.fund("verifier")
    waited: list[str] = []
    with closing(Outbox(tmp_path / "outbox", court.devnet.w3, court.accounts["verifier"])) as outbox:
        monkeypatch.setattr(outbox, "wait", lambda key, timeout: waited.append(key))
        abandoned = Abandoned(court.table(), court.address("verifier"))
        verifier = SimpleNamespace(_abandoned=abandoned, _sender=Sender(outbox))
        Verifier._end_abandoned(verifier, SimpleNamespace(ledger=court.ledger(), now=court.now()))  # type: ignore[arg-type]
    assert not waited, "its own games' moves come first"
    assert Verdict.TIMEOUT in {court.verdict(game) for game in games}


def test_own_games_and_those_of_rounds_that_are_over_are_left_alone(court: Court, claims: list[ClaimId]) -> None:
    game = court.open_at(claims[0], 1, "mallory")
    late = Seconds(court.table().game(game).deadline + LATE)
    for side in ("mallory", court.owner(0)):
        assert not list(Abandoned(court.table(), court.address(side)).due(court.ledger(), late)), "its queue plays it"
    other, ledger = Abandoned(court.table(), court.address("worker-1")), court.ledger()
    assert len(list(other.due(ledger, late))) == 1
    found = ledger.find(claims[0])
    assert found is not None
    found[1].phase = Phase.FINAL
    assert not list(other.due(ledger, late)), "nothing waits for it"


def test_of_sixteen_who_watch_one_ends_a_game(court: Court, claims: list[ClaimId]) -> None:
    game = court.open_at(claims[0], 1, "mallory")
    found = court.ledger()
    late, names = court.table().game(game).deadline + COURTESY_SECONDS, [f"watcher-{k}" for k in range(13)]
    watching = {court.devnet.account(name).address for name in names} | {
        court.address(court.owner(slot)) for slot in (1, 2)
    }
    each = [Abandoned(court.table(), Address(account)) for account in watching]
    by_turn = [sum(bool(list(one.due(found, Seconds(late + 1 + k)))) for one in each) for k in (0, 30, 10_000)]
    assert by_turn == [1, 2, 15], "the owners of the round one after the other, then everybody"
