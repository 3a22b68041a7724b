"""A delegate defends the claims of another account, and nothing that it computes otherwise; on a market in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.base.lines import event
from lockstep.base.settings import Settings
from lockstep.chain import games
from lockstep.chain.game_table import GameTable
from lockstep.chain.outbox import Outbox
from lockstep.disputes.delegate import Delegate
from lockstep.disputes.manual import Known, ManualPlayer
from lockstep.disputes.player import GamePlayer, Side
from lockstep.protocol.dispute import honest
from lockstep.protocol.dispute.game import game_id
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import ChainError, Mismatch, UsageError
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import GameId
from lockstep.runtime.party import Party
from lockstep.storage.directory import DirectoryStore
from tests.support.constant import ConstantClaim, Lie
from tests.support.world import World

DEFENDER, DELEGATE, LIAR = "worker-0", "mallory", "verifier"
SECONDS = 20.0


class Kept:
    """A claim of which everything is in memory."""

    wanted: frozenset[int] = frozenset()

    def __init__(self, claim: ConstantClaim) -> None:
        self._claim = claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)

    def has(self, t: int) -> bool:
        return True

    def cached(self, t: int) -> Any:
        return self._claim.step(t)


@pytest.fixture
def world() -> World:
    found = World.start()
    found.to(Phase.ATTESTING)
    return found


@pytest.fixture
def party(world: World, tmp_path: Path) -> Iterator[Party]:
    settings = Settings("", "", "", str(tmp_path), "", "", 1, 0, disk_mib=1)
    outbox = Outbox(tmp_path / "outbox.sqlite", world.devnet.w3, world.accounts[DELEGATE])
    store = DirectoryStore(tmp_path / "blocks")
    addresses = world.contracts.addresses
    with Party(settings, addresses, world.devnet.w3, world.contracts, store, world.accounts[DELEGATE], outbox) as made:
        yield made


@pytest.fixture
def delegate(world: World, party: Party) -> Iterator[Delegate]:
    with pytest.raises(UsageError, match="not the delegate") as refused:
        Delegate(party, world.address(DEFENDER), event)
    assert "worker owner delegate" in refused.value.hint
    world.send(world.contracts.vault.set_delegate(party.address), DEFENDER)
    made = Delegate(party, world.address(DEFENDER), event)
    # A test's blocks come faster than any chain's: each look sees the latest.
    made._head_tracker = SimpleNamespace(poll=party.head)  # type: ignore[assignment]
    yield made
    made.close()


def look(world: World, delegate: Delegate) -> None:
    """A look at a new block, and what was begun beside it is over."""
    delegate.poll()
    executor, end = delegate._queue._executor, time.monotonic() + SECONDS
    while len(executor) > len(executor.finished()):
        assert time.monotonic() < end
        time.sleep(0.001)
    world.devnet.mine(1)


def attack(world: World) -> GamePlayer:
    """A false challenge of the defender's honest claim, by somebody who computes another value."""
    claim, game = world.claim_id(0), world.contracts.game
    made = world.held[claim]
    disputed = games.claim(world.contracts.market, claim, made.body)
    lying = replace(made, lie=Lie.VALUE)
    opening = honest.opening(disputed, lying, made.trace, 0)
    assert opening is not None
    id_ = GameId(game_id(claim, world.address(LIAR), 0))
    world.send(games.call(game, opening, id_), LIAR)
    table = GameTable(game, world.contracts.addresses.block)
    return GamePlayer(id_, Side.CHALLENGER, lying, table, lambda call, key: world.send(call, LIAR))


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


def test_a_false_challenge_is_answered_to_the_end_and_its_bond_is_the_account_s(
    world: World, delegate: Delegate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held: list[Side] = []

    def hold(player: ManualPlayer, known: Known, side: Side) -> Any:
        held.append(side)
        kept = player._cached[known[2].id] = Kept(world.held[known[2].id])  # type: ignore[assignment]
        return kept

    monkeypatch.setattr(ManualPlayer, "hold", hold)
    seat, vault, account = attack(world), world.contracts.vault, world.address(DEFENDER)
    before, stuck = vault.credits(account), False
    for _ in range(60):
        look(world, delegate)
        try:
            stuck = stuck or (not seat.table.game(seat.game).defender_moves and seat.turn(world.now) is None)
        except ChainError:
            # The contract computes what is claimed.
            stuck = True
        if stuck:
            world.pass_to(world.now + 2 * world.params.windows.clock_seconds)
        if seat.verdict is not Verdict.NONE:
            break
    look(world, delegate)
    assert seat.verdict is Verdict.REJECTED
    assert held == [Side.DEFENDER], "replayed once"
    assert vault.credits(account) > before, "the bond is the account's"
    assert vault.credits(world.address(DELEGATE)) == 0
    events = told(capsys)
    moved = [e["move"] for e in events if e["event"] == "defending"]
    assert len(moved) > 2, moved
    (end,) = [e for e in events if e["event"] == "resolved"]
    assert (end["game"], end["verdict"]) == (seat.game.hex(), "rejected")
    assert (delegate._games, delegate._player._cached) == ({}, {}), "nothing is kept of it"


def test_nothing_is_shown_of_a_claim_that_is_computed_otherwise(
    world: World, delegate: Delegate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[Known] = []

    def hold(player: ManualPlayer, known: Known, side: Side) -> Any:
        tried.append(known)
        raise Mismatch("the claim is not what this machine computes", "")

    monkeypatch.setattr(ManualPlayer, "hold", hold)
    seat = attack(world)
    for _ in range(3):
        look(world, delegate)
    assert tried, "it was looked at"
    assert seat.table.game(seat.game).defender_moves, "it is the defender's turn still"
    assert told(capsys) == []


def test_games_about_other_accounts_are_left_to_them(
    world: World, delegate: Delegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ManualPlayer, "hold", lambda *_: pytest.fail("it is no claim of the account"))
    delegate._account = world.address("worker-1")
    attack(world)
    look(world, delegate)
    assert delegate._games == {}
