"""Games about codes, scales, groups and partials on a real chain, beside their Python twin: either side may lie."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from lockstep.chain import games as chain_games
from lockstep.numerics.validate import validate
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.game import Game, MoveRefused, game_id
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import ChainError
from lockstep.protocol.programs.program import CHUNK, Kind
from lockstep.protocol.types import Address, ClaimId, Seed, StateRoot
from tests.support import codejob, games
from tests.support.arena import Arena, Outcome, Terms
from tests.support.games import Lie, Match, PlainClaim, Policy

pytestmark = pytest.mark.chain

STEP, ENCODE = codejob.step_program(), games.encode_program()
MAX_TRANSACTIONS, MAX_GAS, MAX_TRANSACTION_GAS = 16, 1_600_000, 500_000

LIES = (
    Lie(codejob.SMALL_CODES, element=0, bits=1 << 3),
    Lie(codejob.SMALL_CODES, element=389, bits=1 << 31),
    Lie(codejob.SMALL_SCALES, element=131, bits=1 << 22),
    Lie(codejob.DICED_CODES, element=257, bits=1 << 8),
    Lie(codejob.DICED_SCALES, element=5),
    Lie(codejob.LONG, element=1, chunk=0),
    Lie(codejob.LONG, element=0, chunk=255, bits=1 << 20),
    Lie(codejob.LONG, element=1, chunk=389, bits=1 << 20),
    Lie(codejob.LARGE_CODES, element=64, bits=1 << 16),
    # Of the padding of the last group: the code of a term that is not there.
    Lie(codejob.LARGE_CODES, element=127, bits=1 << 24),
    Lie(codejob.LARGE_SCALES, element=1),
    Lie(codejob.POWER_CODES, element=3, bits=1 << 1),
    Lie(codejob.POWER_SCALES, element=0, bits=1 << 23),
    Lie(codejob.ALONE, element=0),
    Lie(codejob.ALONE, element=1, bits=1 << 31),
    Lie(codejob.PAIR, chunk=0),
    Lie(codejob.PAIR, chunk=1, bits=1 << 20),
    Lie(codejob.STRANGE, chunk=7, bits=1 << 20),
    Lie(codejob.STRANGE, chunk=0),
)


def claim_of(seed: Seed, slot: int, lie: Lie | None) -> PlainClaim:
    return PlainClaim(
        (STEP, ENCODE), games.start_state(), games.dataset(), seed, 0, slot, lie_at=0 if lie is None else 1, lie=lie
    )


@dataclass
class Stage:
    """A chain with an honest claim and one for each lie, the same job, another slot each."""

    arena: Arena
    claims: list[ClaimId]
    seed: Seed
    nonces: int = 0

    @cache  # noqa: B019 - lives as long as the module
    def held(self, slot: int, lie: Lie | None) -> PlainClaim:
        return claim_of(self.seed, slot, lie)

    def twin(self, slot: int) -> Match:
        claim = self.claims[slot]
        return Match(chain_games.claim(self.arena.contracts.market, claim, self.arena.bodies[claim]))

    def nonce(self) -> int:
        self.nonces += 1
        return self.nonces

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    arena = Arena.start(tmp_path_factory.mktemp("chain"))
    start, data = games.start_state(), games.dataset()
    step = claim_of(Seed(bytes(32)), 0, None).step(1)
    rows, length = data.header.shape
    terms = Terms(
        STEP, ENCODE, ENCODE, games.tensor_root(data), rows, length, StateRoot(step.prev[1][0]),
        StateRoot(merkle.EMPTY[1]), StateRoot(step.prev[1][2]), 1, 1, 1,
    )  # fmt: skip
    assert len(start) == len(STEP.inputs)
    made: list[PlainClaim] = []

    def trace(seed: Seed, slot: int) -> tuple[StateRoot, ...]:
        made.append(claim_of(seed, slot, LIES[slot - 1] if slot else None))
        return made[-1].trace

    def ends(slot: int) -> tuple[StateRoot, StateRoot]:
        last = made[slot].steps[-1].graph[1]
        return StateRoot(last[-2]), StateRoot(last[-1])

    claims = arena.claims(terms, len(LIES) + 1, trace, ends)
    yield Stage(arena, claims, arena.contracts.market.facts_of(claims[0], 1).seed)
    arena.stop()


def test_the_step_has_every_form_and_can_be_defended() -> None:
    validate(STEP)
    forms = {(op.kind, op.mode) for op in STEP.ops}
    assert {mode for kind, mode in forms if kind == Kind.QUANT} == {0, 1, 2, 3}
    groups = [op.chunks for op in STEP.ops if op.is_qdot]
    assert min(groups) == 1, "a group alone"
    assert max(groups) > CHUNK, "two levels of partials"
    assert {lie.op for lie in LIES} == {i for i, op in enumerate(STEP.ops) if op.kind == Kind.QUANT or op.is_qdot}


def within_limits(outcome: Outcome) -> None:
    assert len(outcome.spent) <= MAX_TRANSACTIONS, "transactions"
    assert outcome.gas <= MAX_GAS, "gas of the game"
    assert outcome.worst <= MAX_TRANSACTION_GAS, f"worst transaction: {max(outcome.spent, key=lambda s: s.gas)}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slot", range(1, len(LIES) + 1), ids=lambda slot: str(LIES[slot - 1]))
def test_a_lying_defender_is_convicted_where_it_lies(stage: Stage, slot: int) -> None:
    lie = LIES[slot - 1]
    held, truth, twin = stage.held(slot, lie), stage.held(slot, None), stage.twin(slot)
    outcome = stage.arena.convicted(lie, held, truth, twin, stage.nonce)
    within_limits(outcome)


def refused_at_the_proof(stage: Stage, twin: Match, opening: moves.Open, points: Policy, met: list[str]) -> Policy:
    """Plays on up to the proof, which chain and twin must refuse: its clock then runs out."""
    arena = stage.arena
    account = Address(arena.challenger.address)

    def choose(state: Game, log: Sequence[moves.GameEvent]) -> moves.Move | None:
        move = points(state, log)
        if not isinstance(move, moves.ProveOp | moves.ProveAlias | moves.ProvePadding):
            return move
        with pytest.raises(ChainError, match="EqualBits"):
            arena.send(
                chain_games.call(arena.contracts.game, move, game_id(opening.claim, account, opening.nonce)),
                arena.challenger,
            )
        with pytest.raises(MoveRefused, match="EqualBits"):
            twin.play(move, account)
        met.append(move.call)
        return None

    return choose


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_lying_challenger_is_refused_at_its_proof(stage: Stage, lie: Lie) -> None:
    held, twin, met = stage.held(0, None), stage.twin(0), list[str]()
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    mark = stage.arena.devnet.snapshot()
    points = games.challenges(stage.held(0, lie))
    outcome = stage.arena.play(
        opening, games.defends(held), refused_at_the_proof(stage, twin, opening, points, met), twin
    )
    assert met == ["proveOp"], "it comes as far as the arithmetic"
    assert outcome.verdict == Verdict.REJECTED
    assert stage.arena.contracts.market.live(stage.claims[0]), "the stake stays"
    stage.arena.devnet.revert(mark)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(20))
def test_an_honest_defender_wins_against_any_challenger(stage: Stage, seed: int) -> None:
    held, twin, met = stage.held(0, None), stage.twin(0), list[str]()
    opening = games.open_at(twin.claim, held, 1, stage.nonce())
    mark = stage.arena.devnet.snapshot()
    points = games.random_challenger(random.Random(seed), held, concede=0.0)
    outcome = stage.arena.play(
        opening, games.defends(held), refused_at_the_proof(stage, twin, opening, points, met), twin
    )
    assert len(met) == 1, "some proof is tried"
    assert outcome.verdict == Verdict.REJECTED
    stage.arena.devnet.revert(mark)
