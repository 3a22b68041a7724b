"""Every wait has a default: wherever a job stands, it ends and every stake comes home when nobody acts any more."""

from __future__ import annotations

import pytest

from lockstep.protocol.errors import LockstepError
from lockstep.protocol.jobs import ZERO_ADDRESS, ClaimStatus, JobStatus, Phase
from lockstep.protocol.market.types import Keeper
from lockstep.protocol.types import Seconds
from tests.support import histories
from tests.support.histories import REQUESTER, GamingPlayer

CRANKS = ("seal", "freeze", "finalize", "release")
"""What anyone may call on a round."""


def _end_games(player: GamingPlayer, *, convict: bool) -> None:
    """The clocks run out: a game on a live claim ends by timeout, any other is void."""
    market = player.market
    for claim, challenger, key in list(player.games):
        if not market.live(claim):
            market.books.unlock(key, Keeper.GAME)
        elif convict:
            market.on_convicted(player.block, claim, 0, (challenger,), ())
            market.books.unlock(key, Keeper.GAME)
        else:
            market.on_rejected(claim)
            market.books.take_bond(key, market.claims[claim].worker)
    player.games.clear()


def _crank(player: GamingPlayer) -> None:
    """One look at every round, a window later, by somebody who only calls what anyone may call."""
    player.pass_time(61, 2)
    for r in range(player.params.schedule.rounds):
        for verb in CRANKS:
            try:
                if verb == "freeze":
                    player.market.freeze(player.block, player.job, r, player.bodies(r))
                elif verb == "release":
                    player.market.release(player.job, r)
                else:
                    getattr(player.market, verb)(player.block, player.job, r)
            except LockstepError:
                continue


@pytest.mark.sampled(4)
@pytest.mark.parametrize("convict", [False, True], ids=["defenders answered", "defenders were silent"])
@pytest.mark.parametrize("length", [8, 20, 45, 90])
@pytest.mark.parametrize("seed", range(12))
def test_a_job_that_everybody_leaves_ends_with_nothing_held(seed: int, length: int, *, convict: bool) -> None:
    player = histories.history(10_000 + 100 * length + seed, length)
    market = player.market
    for _ in range(12 * player.params.schedule.rounds):
        _end_games(player, convict=convict)
        _crank(player)
    job = market.jobs[player.job]
    assert job.settled == job.started, (
        f"round {job.settled} sticks: {player.market.phase(player.block, player.job, job.settled).name}"
    )
    # Duties are settled by the witnesses' contract, each in its own time.
    while job.fees_due:
        market.on_witnessed(player.job, ZERO_ADDRESS)
        job = market.jobs[player.job]
    if job.status == JobStatus.ACTIVE:
        market.cancel(REQUESTER, player.job)
    if job.status != JobStatus.DONE:
        market.finish(player.job)
    for r in range(player.params.schedule.rounds):
        if market.phase(player.block, player.job, r) == Phase.VOID:
            market.release(player.job, r)
    job = market.jobs[player.job]
    held = {claim.hex()[:8]: market.claims[claim].status.name for claim in market.claims if claim in market.books.locks}
    assert not held, "a stake is locked for ever"
    assert not market.books.locks, "a bond is locked for ever"
    assert market.books.total_escrow == 0, "escrow is left"
    assert job.escrow == job.paid + job.refunded, "to the wei"
    assert not any(c.open_games for c in market.claims.values() if c.status != ClaimStatus.VOID)


def test_windows_of_these_histories_are_shorter_than_a_look() -> None:
    """`_crank` passes every window at once."""
    p = histories.history(1, 1).params
    assert max(
        p.windows.join_seconds, p.role.train_seconds, p.windows.challenge_seconds, p.merge.turn_seconds
    ) <= Seconds(60)
