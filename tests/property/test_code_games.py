"""Random games about codes, scales, groups and partials on the pure rules: whoever is honest wins."""

from __future__ import annotations

from random import Random

import pytest

from lockstep.protocol.dispute.game import MoveRefused
from lockstep.protocol.dispute.moves import ProveAlias, ProveOp, ProvePadding, Verdict, Wrong
from lockstep.protocol.programs.program import Kind
from lockstep.protocol.types import Seed
from tests.support import codejob, games
from tests.support.games import CHALLENGER, WORKER, Lie, Match, PlainClaim

SEED = Seed(bytes(range(32)))
STEP, ENCODE = codejob.step_program(), games.encode_program()
OF_CODES = [i for i, op in enumerate(STEP.ops) if op.kind == Kind.QUANT or op.is_qdot]


def held(lie: Lie | None = None) -> PlainClaim:
    return PlainClaim(
        (STEP, ENCODE), games.start_state(), games.dataset(), SEED, 3, 1, lie_at=0 if lie is None else 1, lie=lie
    )


HONEST = held()


def any_lie(seed: int) -> Lie:
    """A wrong word anywhere in what quantises and multiplies; of several groups, in any of them."""
    random = Random(seed)
    index = random.choice(OF_CODES)
    op = STEP.ops[index]
    chunk = random.randrange(op.chunks) if op.chunks > 1 else None
    return Lie(index, random.randrange(op.header.elements), 1 << random.randrange(32), chunk)


def convicts(lie: Lie) -> None:
    """The lie is found where it is; the same lie as a challenge is refused at its proof."""
    liar = held(lie)
    match = Match(games.claim_of(liar))
    ended = match.run(games.open_at(match.claim, liar, 1), games.defends(liar), games.challenges(HONEST))
    assert (ended.verdict, ended.winner) == (Verdict.FRAUD, CHALLENGER)
    found = match.finding
    assert found is not None
    assert (found.wrong, found.position, found.element, found.chunk) == (Wrong.OP, lie.op, lie.element, lie.chunk or 0)
    assert len(match.played) <= 16

    match, points = Match(games.claim_of(HONEST)), games.challenges(liar)
    with pytest.raises(MoveRefused, match="EqualBits"):
        match.run(games.open_at(match.claim, HONEST, 1), games.defends(HONEST), points)
    assert match.state is not None
    assert not match.state.defender_moves, "the challenger's clock goes on"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(16))
def test_a_lie_about_codes_anywhere_is_convicted_and_as_a_challenge_refused(seed: int) -> None:
    convicts(any_lie(seed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_lies_about_codes_are_convicted_and_as_challenges_refused() -> None:
    told = {any_lie(seed).op for seed in range(500)}
    assert told == set(OF_CODES)
    for seed in range(500):
        convicts(any_lie(seed))


@pytest.mark.parametrize("part", range(4))
def test_random_challengers_never_convict_an_honest_claim(part: int) -> None:
    proofs = 0
    for seed in range(50 * part, 50 * (part + 1)):
        match = Match(games.claim_of(HONEST))
        choose = games.random_challenger(Random(seed), HONEST, concede=0.0)
        last: list[object] = []

        def challenger(state, log, choose=choose, last=last, match=match):  # type: ignore[no-untyped-def]
            move = choose(state, log)
            if isinstance(move, ProveOp | ProveAlias | ProvePadding):
                with pytest.raises(MoveRefused, match="EqualBits"):
                    match.play(move, CHALLENGER)
                last.append(move)
                return None
            return move

        ended = match.run(games.open_at(match.claim, HONEST, 1), games.defends(HONEST), challenger)
        assert (ended.verdict, ended.winner) == (Verdict.REJECTED, WORKER)
        proofs += len(last)
    assert proofs == 50
