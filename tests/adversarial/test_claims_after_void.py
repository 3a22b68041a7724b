"""A claim of a void job is judged no more.

The accomplice waits for `finish` to win its game by timeout; the claim stays void for good.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.chain import games
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.types import GameId
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where
from tests.support.games import open_at

ROW = 5
"""Nobody posts it: that voids the job, whose claims are right."""


def play(court: Court, opened_late: bool) -> Ended:
    """A game on an honest claim of a job that is voided and done; `opened_late`: once the job is
    void."""
    claims = court.claim()
    opening = open_at(court.known(claims[0]), court.held[claims[0]], 0)
    market, demands, game = court.contracts.market, court.contracts.demands, court.contracts.game
    court.send(demands.demand_row(court.job_id, ROW), "verifier")
    opened = GameId(bytes(32)) if opened_late else court.begin(opening, "accomplice")
    court.advance(court.params.windows.answer_seconds + 1)
    court.send(demands.void_for_row(court.job_id, ROW), "verifier")

    def over() -> None:
        assert market.job(court.job_id).status.name == "DONE"
        assert not any(market.live(claim) for claim in claims), "void for good"
        late = replace(opening, nonce=1)
        assert court.refused(games.call(game, late, opened), "accomplice") == "WindowClosed"
        if not opened_late:
            # The owner has gone home: it owes nobody an answer.
            court.advance(games.read(game, opened).deadline - court.now() + 1)
            court.send(games.call(game, moves.Resolve(games.read(game, opened).standing), opened), "accomplice")
            assert court.verdict(opened) == Verdict.VOID
            assert game.defending(court.address("worker-0")) == 0

    court.settle_void("verifier", over)
    assert not any(court.convicted(claim) for claim in claims)
    return Ended("void", Where(rule="claim"), Where(rule="claim"))


CHEAT = Cheat(
    "claims after the end of a void job", "void",
    {
        "a game that was open": lambda court: play(court, False),
        "a game opened too late": lambda court: play(court, True),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_void_job_that_is_done_convicts_nobody(court: Court, form: str) -> None:
    run(court, CHEAT, form)
