"""Games as the court stores and pays them: clocks, bonds, the docket, verdicts handed to the market."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.protocol import merkle
from lockstep.protocol.dispute import game
from lockstep.protocol.dispute.moves import NO_TRANSITION, GamePhase, Verdict
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus
from lockstep.protocol.market.types import BURN
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import Address, ClaimId, GameId, StateRoot, Wei
from tests.support.params import amended
from tests.unit.protocol.market.test_rounds import CHALLENGER, HONEST, PARAMS, REQUESTER, WORKERS, Scene

GAS = 50_000
"""Of an opening, as a chain would meter it."""
OTHERS = tuple(Address(f"0x{0x7700 + i:040x}") for i in range(3))
PRICED = amended(PARAMS, gas_price=Wei(1), fee_cap=10**9, slot_stake=Wei(2 * 10**7), merge_stake=Wei(2 * 10**7))


def court(params: object = PARAMS) -> tuple[Scene, ClaimId]:
    """A scene whose slots are revealed; challengers have stakes."""
    rich = Wei(10**9)
    scene = Scene(params)  # type: ignore[arg-type]
    for account in (CHALLENGER, *OTHERS, *WORKERS):
        scene.market.books.deposit(Address(account), rich)
    scene.to_revealed()
    return scene, scene.claim(0)


def opens(scene: Scene, claim: ClaimId, challenger: str, nonce: int = 0, gas: int = 0) -> GameId:
    """A game on the whole trace."""
    said = (claim, scene.body(claim), nonce, 0, StateRoot(bytes(32)), (), NO_TRANSITION)
    id_: GameId = scene.market.ledger.do("DisputeGame", "open", Address(challenger), *said, block=scene.block, gas=gas)
    return id_


def resolves(scene: Scene, id_: GameId) -> None:
    standing = stored(scene, id_).standing
    scene.market.ledger.do("DisputeGame", "resolve", Address(REQUESTER), id_, standing, block=scene.block)


def stored(scene: Scene, id_: GameId) -> game.Game:
    return scene.market.ledger.state.games[id_]


def events(scene: Scene) -> list[str]:
    return [event.name for event in scene.market.ledger.events]


def test_a_game_is_opened_once_and_locks_the_bond() -> None:
    scene, claim = court()
    before = scene.market.books.free[Address(CHALLENGER)]
    id_ = opens(scene, claim, CHALLENGER, gas=GAS)
    assert id_ == game.game_id(claim, Address(CHALLENGER), 0)
    paid = before - scene.market.books.free[Address(CHALLENGER)]
    assert scene.market.books.locks[id_].amount == PARAMS.prices.bond == paid
    assert (stored(scene, id_).phase, stored(scene, id_).spent) == (GamePhase.TRACE_REVEAL, 21_000 + GAS)
    assert events(scene) == ["Opened", "Locked"]
    with pytest.raises(Reverted, match="GameExists"):
        opens(scene, claim, CHALLENGER)
    assert scene.market.claims[claim].open_games == 1, "the second was none"


def test_an_opening_whose_bond_is_not_there_leaves_nothing() -> None:
    scene, claim = court()
    before = scene.market.ledger.state
    with pytest.raises(Reverted, match="StakeTooLow"):
        opens(scene, claim, Address("0x" + "99" * 20))
    assert scene.market.ledger.state == before, "neither the game, nor its count at the market, nor the defender's"


def test_every_game_lengthens_the_defenders_next_clock() -> None:
    scene, claim = court()
    clocks = [stored(scene, opens(scene, claim, CHALLENGER, i)).left_defender for i in range(3)]
    other = stored(scene, opens(scene, scene.claim(1), CHALLENGER)).left_defender
    assert clocks == [PARAMS.windows.clock_seconds + i * PARAMS.windows.step_seconds for i in range(3)]
    assert other == PARAMS.windows.clock_seconds, "another defender's"


def test_a_silent_defender_is_convicted_and_the_earliest_three_share() -> None:
    scene, claim = court(PRICED)
    challengers = (Address(CHALLENGER), *OTHERS)
    games = [opens(scene, claim, who, gas=GAS) for who in challengers]
    spent = [stored(scene, id_).spent for id_ in games]
    scene.later(PRICED.windows.clock_seconds + 4)
    scene.block = replace(scene.block, base_fee=PRICED.prices.fee_cap)
    resolves(scene, games[2])
    won = scene.market.books.credits
    prize, stake = PRICED.role.slot_stake * 30 // 100, PRICED.role.slot_stake
    refunds = min(sum(spent), stake * 10 // 100)
    assert scene.market.status(claim) == ClaimStatus.CONVICTED
    shares = {challengers[2]: 2, challengers[0]: 1, challengers[1]: 1, challengers[3]: 0}
    for at, who in enumerate(challengers):
        assert won[who] == prize * shares[who] // 4 + spent[at], f"the share of challenger {at}, and its gas"
    assert won[Address(REQUESTER)] == stake * 20 // 100 - refunds
    for id_ in (games[0], games[1], games[3]):
        resolves(scene, id_)
        assert stored(scene, id_).verdict == Verdict.VOID, "too late, and it costs nothing"
    assert not set(games) & set(scene.market.books.locks), "every bond is back"
    assert scene.market.ledger.state.defending[Address(HONEST)] == 0


def test_a_challenger_who_does_not_point_loses_its_bond() -> None:
    scene, claim = court()
    id_ = opens(scene, claim, CHALLENGER)
    opened = scene.opened(claim)
    levels = merkle.levels([*_leaves(scene, claim)])
    assert levels[-1][0] == opened.body.trace_root
    scene.market.ledger.do(
        "DisputeGame", "reveal", Address(HONEST), id_, stored(scene, id_).standing, levels[0], block=scene.block
    )
    assert stored(scene, id_).phase == GamePhase.TRACE_PICK
    with pytest.raises(Reverted, match="ClockRunning"):
        resolves(scene, id_)
    scene.later(PARAMS.windows.clock_seconds + 1)
    resolves(scene, id_)
    assert (stored(scene, id_).phase, stored(scene, id_).verdict) == (GamePhase.CLOSED, Verdict.REJECTED)
    won = PARAMS.prices.bond * 60 // 100
    assert scene.market.books.credits[Address(HONEST)] == won
    assert scene.market.books.credits[BURN] == PARAMS.prices.bond - won
    assert events(scene) == ["Resolved", "BondTaken", "Credited"]
    assert scene.market.ledger.state.first_live[claim] == 1, "the docket begins after it"


def test_the_defender_or_its_delegate_answers_and_nobody_else() -> None:
    scene, claim = court()
    id_ = opens(scene, claim, CHALLENGER)
    levels = merkle.levels([*_leaves(scene, claim)])
    answer = ("DisputeGame", "reveal")
    for stranger in (CHALLENGER, OTHERS[0]):
        with pytest.raises(Reverted, match="Unauthorized"):
            scene.market.ledger.do(
                *answer, Address(stranger), id_, stored(scene, id_).standing, levels[0], block=scene.block
            )
    scene.market.books.delegate(Address(HONEST), OTHERS[0])
    scene.market.ledger.do(*answer, OTHERS[0], id_, stored(scene, id_).standing, levels[0], block=scene.block)
    assert events(scene) == ["Revealed"]


def _leaves(scene: Scene, claim: ClaimId) -> list[bytes]:
    """Of the trace that `Scene.opened` makes up."""
    body = scene.body(claim)
    return [merkle.leaf(keccak(claim + bytes([t]))) for t in range(3)] + [merkle.leaf(merkle.node(body.out, body.out2))]
