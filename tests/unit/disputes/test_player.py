"""Seats: the two sides of a game play it from what the chain shows, each its own moves and no other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest

from lockstep.base.cache import MemoryCache
from lockstep.chain.contracts import Call
from lockstep.disputes.player import Side
from lockstep.execution.jobs import ClaimRun, Job, State, slot_run, trace_root
from lockstep.market.held import CachedClaim, HeldClaim, NotCached
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import ChainError, NotFoundError
from lockstep.protocol.types import Address, GameId, Seconds
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from tests.support.court import LIE, Court, in_memory

DEFENDERS_CALLS = ("defend", "reveal", "revealTensor", "postLeaf", "postPartials")


@pytest.fixture(scope="module")
def court() -> Iterator[Court]:
    made = in_memory()
    yield made
    made.arena.stop()


def test_two_seats_play_a_lie_to_its_conviction(court: Court) -> None:
    game = court.open(0, court.held(0, LIE))
    sides = [
        court.seat(game, Side.DEFENDER, court.held(0, LIE)),
        court.seat(game, Side.CHALLENGER, court.held(0)),
    ]
    played: list[str] = []
    for _ in range(40):
        for seat in sides:
            move = seat.turn(court.arena.now())
            if move is not None:
                assert (move.call in DEFENDERS_CALLS) == (seat.side is Side.DEFENDER), move.call
                played.append(move.call)
    assert sides[0].verdict is Verdict.FRAUD
    assert played[-1] == "proveOp"
    assert len(court.keys) == len(set(court.keys)) == len(played), "one key a move"
    assert sides[1].turn(court.arena.now()) is None, "nothing is due at a closed game"


def test_challenger_with_nothing_to_prove_makes_no_move_and_loses_by_its_clock(court: Court) -> None:
    truth = court.held(1)
    game = court.open(1, truth)
    defender, challenger = court.seat(game, Side.DEFENDER, truth), court.seat(game, Side.CHALLENGER, truth)
    first = defender.turn(court.arena.now())
    assert isinstance(first, moves.Defend)
    assert challenger.turn(court.arena.now()) is None
    assert defender.turn(court.arena.now()) is None, "its clock still runs"
    deadline = defender.table.game(game).deadline
    court.arena.devnet.advance(Seconds(deadline - court.arena.now() + 1))
    assert challenger.turn(court.arena.now()) is None, "one's own clock has run out: nothing can be done"
    assert isinstance(defender.turn(court.arena.now()), moves.Resolve)
    assert defender.verdict is Verdict.REJECTED


def test_move_that_comes_too_late_is_no_error_and_any_other_revert_is(court: Court) -> None:
    truth = court.held(1)
    game = court.open(1, truth)
    defender = court.seat(game, Side.DEFENDER, truth)
    due = defender.due(court.arena.now())
    assert due is not None

    def somebody_was_faster(call: Call, key: str) -> object:
        court.arena.send(call, court.arena.worker)
        raise ChainError("StandingStale", code="chain.StandingStale")

    defender.send = somebody_was_faster
    assert defender.turn(court.arena.now()) is None

    other = court.seat(court.open(1, truth), Side.DEFENDER, truth)

    def refused(call: Call, key: str) -> object:
        raise ChainError("Unauthorized", code="chain.Unauthorized")

    other.send = refused
    with pytest.raises(ChainError, match="Unauthorized"):
        other.turn(court.arena.now())


def test_game_whose_claim_was_decided_elsewhere_is_resolved_at_once_and_the_bond_comes_back(court: Court) -> None:
    vault, me = court.arena.contracts.vault, Address(court.arena.challenger.address)
    first, second = (court.open(2, court.held(2, LIE)) for _ in range(2))
    bonded = vault.free(me)
    sides = [court.seat(first, Side.DEFENDER, court.held(2, LIE)), court.seat(first, Side.CHALLENGER, court.held(2))]
    while sides[0].verdict is Verdict.NONE:
        assert [seat.turn(court.arena.now()) for seat in sides] != [None, None]
    waiting = court.seat(second, Side.CHALLENGER, court.held(2), watched=True)
    assert isinstance(waiting.turn(court.arena.now()), moves.Resolve)
    assert waiting.verdict is Verdict.VOID
    assert vault.free(me) == bonded + 2 * court.arena.contracts.market.params(court.arena.last_job()).prices.bond


def test_game_that_is_not_on_chain_is_not_found(court: Court) -> None:
    seat = court.seat(GameId(bytes(32)), Side.CHALLENGER, court.held(1))
    with pytest.raises(NotFoundError):
        seat.due(court.arena.now())


# -- what a party holds ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return toyjob.load(DirectoryStore(tmp_path_factory.mktemp("toy")))


def test_held_claim_materialises_each_step_as_it_was_computed(job: Job) -> None:
    run = slot_run(job, job.genesis, toyjob.SEED, 0, 0)
    held = HeldClaim.of(run)
    assert held.state_zero == run.root(0, run.start)
    assert len(held.trace) == run.transitions
    for t in Random(0).sample(range(1, run.transitions + 1), 3):
        step = held.step(t)
        assert step.root == held.trace[t - 1], f"step {t}"  # type: ignore[attr-defined]
        assert held.whole(t) is held.whole(t), "kept"
    assert honest.trace_levels(held.trace)[-1][0] == trace_root(held.trace)


def test_a_step_that_had_to_go_leaves_its_tree_and_is_made_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one step alone: what lies in the tree is answered without its tensors."""
    held = HeldClaim.of(slot_run(job, job.genesis, toyjob.SEED, 0, 0))
    held.cache = MemoryCache(1)
    first = held.step(1)
    held.step(2)
    again, advanced = held.step(1), counted(monkeypatch)
    assert again is not first
    assert again.graph == first.graph
    assert again.prev == first.prev
    assert not held.has(1), "its tensors went"
    with pytest.raises(NotCached):
        CachedClaim(held).step(1).output(0)
    assert again.output(3).levels == first.output(3).levels
    assert CachedClaim(held).step(1).output(3).levels == first.output(3).levels, "in memory again"
    assert advanced == [], "no replay: S_0 is there"


def test_nothing_is_at_hand_before_it_was_made(job: Job) -> None:
    held = HeldClaim.of(slot_run(job, job.genesis, toyjob.SEED, 0, 0))
    assert CachedClaim(held).trace == held.trace
    assert CachedClaim(held).state_zero == held.state_zero
    with pytest.raises(NotCached):
        CachedClaim(held).step(2)
    with pytest.raises(NotCached):
        _ = CachedClaim(None).trace


def test_a_replay_can_be_done_in_slices(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldClaim.of(slot_run(job, job.genesis, toyjob.SEED, 0, 0))
    advanced = counted(monkeypatch)
    ticks = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    slices = 1
    while held.approach(5, seconds=1.5) is None:
        slices += 1
    assert slices > 2
    assert advanced == [1, 2, 3, 4], "each transition once, whatever was cut where"


def test_games_on_many_steps_replay_the_claim_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a game adds to the defender's clock is one materialised step: no move may cost a replay."""
    held = HeldClaim.of(slot_run(job, job.genesis, toyjob.SEED, 0, 0))
    advanced = counted(monkeypatch)
    for _ in range(3):
        for t in range(1, held.run.transitions + 1):
            assert held.step(t).root == held.trace[t - 1], f"step {t}"  # type: ignore[attr-defined]
    assert advanced == list(range(1, held.run.transitions)), "each transition once"


def test_held_claim_goes_on_from_the_nearest_state_that_it_keeps(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldClaim.of(slot_run(job, job.genesis, toyjob.SEED, 0, 0))
    held.step(3)
    advanced = counted(monkeypatch)
    held.step(5)
    held.step(2)
    assert advanced == [3, 4], "S_1 was left on the way"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The transitions that are computed from here on."""
    advanced: list[int] = []
    plain = ClaimRun.advance

    def advance(run: ClaimRun, t: int, state: State) -> State:
        advanced.append(t)
        return plain(run, t, state)

    monkeypatch.setattr(ClaimRun, "advance", advance)
    return advanced
