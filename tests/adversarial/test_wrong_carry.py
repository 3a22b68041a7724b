"""Wrong carry-in: a slot starts from moments of its own instead of from those that the contract puts into its S_0.

Without a carry these are zeros. With one they are what the slot's owner put out in the merged round before, so that
stale ones, another slot's, none and invented ones are as wrong, and what is right starts the next round undisputed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from lockstep.execution.jobs import ClaimRun, carry_of
from lockstep.node.player import Side
from lockstep.protocol.dispute import honest as honest_play
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import ChainError
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies.sparseloco import SparseLoCo
from tests.adversarial.cheat import Cheat, Ended, convict, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named
from tests.support import games as games_of_tests
from tests.support import own_models

FIRST_MOMENT, SECOND_MOMENT = 4, 5
"""Entries of the state's carry quarter."""
CARRYING: Mapping[str, object] = {"carry": 1, "rounds": 3, "max_lead": 4}


def play(court: Court, entry: int, reader: str) -> Ended:
    """The moments that the slot had at the end of its last round, kept though carry is off."""
    honest = court.run(0)
    start = list(honest.start)
    start[entry] = np.full_like(honest.start[entry], 0.25)
    declared = Where(1, named(honest.program(1), reader), 0, rule="op")
    return convict(court, replace(honest, start=start), declared)


def rounds(court: Court, count: int) -> None:
    """Honest rounds, merged, and the next one sealed."""
    for r in range(count):
        court.claim(r=r)
        court.merge(r=r)
        court.seal(r + 1)


def with_moments(honest: ClaimRun, first: np.ndarray, second: np.ndarray) -> ClaimRun:
    """The run from other moments."""
    start = list(honest.start)
    start[FIRST_MOMENT], start[SECOND_MOMENT] = first, second
    return replace(honest, start=start)


def stale(court: Court) -> ClaimRun:
    """Those that the slot had a round earlier."""
    honest, earlier = court.run(0, 2), court.run(0, 1)
    return with_moments(honest, earlier.start[FIRST_MOMENT], earlier.start[SECOND_MOMENT])


def anothers(court: Court) -> ClaimRun:
    """Those of the slot beside it."""
    theirs = court.run(1, 2)
    return with_moments(court.run(0, 2), theirs.start[FIRST_MOMENT], theirs.start[SECOND_MOMENT])


def from_zero(court: Court, r: int = 2) -> ClaimRun:
    """Zeros, as if the round before had failed."""
    honest = court.run(0, r)
    return with_moments(honest, *(np.zeros_like(honest.start[k]) for k in (FIRST_MOMENT, SECOND_MOMENT)))


def invented(court: Court) -> ClaimRun:
    """The right first moment, and a second one that lets the first step leap."""
    honest = court.run(0, 2)
    return with_moments(honest, honest.start[FIRST_MOMENT], honest.start[SECOND_MOMENT] * np.float32(1e-3))


def from_other(court: Court, lie: Callable[[Court], ClaimRun], reader: str) -> Ended:
    """Round 2 from another carry than the contract's; the challenger shows the claim that the right one comes from."""
    rounds(court, 2)
    liar = lie(court)
    claims = court.claim({0: liar}, r=2)
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(1, named(liar.program(1), reader), 0, rule="op"))


def kept_after_exclusion(court: Court) -> Ended:
    """A slot that was convicted before it could be accepted goes on with the moments of its own payload."""
    honest = court.run(0)
    liar = with_moments(honest, *(np.full_like(honest.start[k], 0.25) for k in (FIRST_MOMENT, SECOND_MOMENT)))
    first = court.claim({0: liar})
    court.audit_and_play()
    assert court.convicted(first[0])
    court.merge()
    court.seal(1)
    assert court.run(0, 1).carried is None, "what was excluded is not carried"
    *_, (_, final, _) = liar.states()
    own = carry_of(court.job, final)
    claims = court.claim({0: with_moments(court.run(0, 1), *own)}, r=1)
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    court.merge(r=1)
    court.seal(2)
    court.claim(r=2)
    court.settle()
    court.balance({"worker-0": 2 * court.params.role.slot_stake})
    return ended(court, game, Where(1, named(honest.program(1), "m"), 0, rule="op"))


def of_the_demo(court: Court, name: str, r: int) -> Ended:
    """A lie of `lockstep demo` in a job of SparseLoCo, in a round in which there is something to lie about."""
    court.forget()
    strategy = SparseLoCo(AdamW(learning_rate=1e-2, warmup=1), own_models.STEPS)
    terms = replace(own_models.TERMS, max_lead=6)
    court.hire(own_models.job(own_models.spare(), strategy, rounds=r + 2, terms=terms))
    court.seal()
    rounds(court, r)
    cheat = cheat_of(name, court.job.programs, court.job.params, 0, DEVNET_CHAIN_ID)
    claims = court.claim({0: cheat.run(court.run(0, r))}, r=r)
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    court.merge(r=r)
    court.seal(r + 1)
    assert [court.run(slot, r + 1).carried is not None for slot in range(3)] == [False, True, True], "it is excluded"
    court.claim(r=r + 1)
    court.merge(r=r + 1)
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(cheat.expectation.step, cheat.expectation.op_index, rule="op"))


CHEATS = (
    Cheat(
        "wrong carry-in", "fraud",
        {
            "first moment": lambda court: play(court, FIRST_MOMENT, "m"),
            "second moment": lambda court: play(court, SECOND_MOMENT, "v"),
        },
    ),
    Cheat(
        "wrong carry-in, carry published", "fraud",
        {
            "of the round before": lambda court: from_other(court, stale, "m"),
            "another slot's": lambda court: from_other(court, anothers, "m"),
            "none": lambda court: from_other(court, from_zero, "m"),
            "invented": lambda court: from_other(court, invented, "v"),
            "of a payload that was excluded": kept_after_exclusion,
        },
        CARRYING,
    ),
    Cheat(
        "wrong carry of a residual", "fraud",
        {
            "what a payload lacks, ten times": lambda court: of_the_demo(court, "tampered-residual", 0),
            "none, said to be the last": lambda court: of_the_demo(court, "stale-carry", 1),
        },
    ),
)  # fmt: skip


@pytest.mark.parametrize(("cheat", "form"), [(cheat, form) for cheat in CHEATS for form in cheat.forms])
def test_a_carry_of_ones_own_is_convicted_where_it_is_read(court: Court, cheat: Cheat, form: str) -> None:
    run(court, cheat, form)


def test_whoever_carries_honestly_is_never_convicted(court: Court) -> None:
    """Three rounds that carry: every audit matches, a challenge of an invented state is rejected, all are paid."""
    court.reset(**CARRYING)
    rounds(court, 2)
    claims = court.claim(r=2)
    assert court.audits() == {}
    assert all(court.run(slot, 2).carried is not None for slot in range(3))
    game = court.open_at(claims[1], 1, "mallory")
    assert court.play(game, court.defender(game)) == Verdict.REJECTED, "mallory has nothing to point at"
    court.settle()
    court.balance({"mallory": court.params.prices.bond})


def test_a_first_step_is_argued_from_the_words_of_the_claim_before_and_from_no_others(court: Court) -> None:
    court.reset(**CARRYING)
    rounds(court, 1)
    claims = court.claim({0: from_zero(court, 1)}, r=1)
    opening = games_of_tests.open_at(court.known(claims[0]), court.held[claims[0]], 1, 0)
    for words in ((), opening.transition.prev_proof[:2], court.run(1, 1).carried.words):  # type: ignore[union-attr]
        wrong = replace(opening, transition=replace(opening.transition, prev_proof=words))
        with pytest.raises(ChainError, match="CommitmentMismatch"):
            court.begin(wrong, "verifier")
    # The words alone make no S_0: what starts from zeros starts nowhere.
    liar = from_zero(court, 1)
    other = replace(opening.transition, prev=liar.root(0, liar.start))
    with pytest.raises(ChainError, match="ProofInvalid"):
        court.begin(replace(opening, transition=other), "verifier")


def test_a_game_that_descends_to_the_first_step_starts_from_the_carry(court: Court) -> None:
    """Without the list of roots the game begins at the trace; its first step is argued from the same words."""
    court.reset(**CARRYING)
    rounds(court, 1)
    claims = court.claim({0: from_zero(court, 1)}, r=1)
    (found,) = court.audits().values()
    opening = honest_play.opening(court.known(claims[0]), found.held, None, 0)
    assert opening is not None
    assert opening.t == 0
    game = court.begin(opening, "verifier")
    seat = court.seat(game, Side.CHALLENGER, found.held, "verifier")
    court.play(game, court.defender(game), seat.turn)
    assert court.convicted(claims[0])
    assert court.found(game).t == 1
