"""What programs ask before they send a call is what the call requires: in random histories both say the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from lockstep.protocol.jobs import ZERO_ADDRESS, JobState, JobStatus, Phase, Round
from lockstep.protocol.market import views
from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.transition import execute
from lockstep.protocol.types import JobId, Seconds
from tests.support.market.history import History
from tests.support.market.twin import ACCOUNTS, PARAMS


def ask(history: History, said: Counter[tuple[str, bool]]) -> None:
    """Asks of every verb whether it would be taken, and tries it on a state that is thrown away."""
    s, block = history.state, history.block
    for job, p in s.params.items():
        assert p is not None
        j = s.jobs[job]
        rounds = {r: (views.phase(s, block, job, r), s.rounds[job, r]) for r in range(j.started)}

        def same(verb: str, expected: bool, *args: int, job: JobId = job) -> None:
            try:
                execute(s, block, MarketCall("JobMarket", verb, ACCOUNTS["poor"], (job, *args)))
                taken = True
            except Reverted:
                taken = False
            assert taken == expected, f"{verb} {args} after {len(history.acts)} acts"
            said[verb, expected] += 1

        leads = [(r, ro) for r, (phase, ro) in rounds.items() if phase == Phase.LEAD]
        same("startRound", views.round_startable(p, j, rounds[j.started - 1][0] if j.started else Phase.NONE, leads),
             j.started)  # fmt: skip
        same("finish", views.finishable(p, j))
        for r, (phase, ro) in rounds.items():
            if phase == Phase.LEAD:
                same("finalize", views.finalizable(p, j, r, {k: at for k, (_, at) in rounds.items()}, block.time), r)
            if phase == Phase.MERGING and not j.lingering:
                same("finalize", views.turns_over(p, ro, block.time), r)


@pytest.mark.slow
def test_what_a_verb_would_take_is_what_it_takes() -> None:
    said: Counter[tuple[str, bool]] = Counter()
    for seed in range(16):
        history = History.of(seed)
        history.play(200, lambda history=history: ask(history, said))  # type: ignore[misc]
    for verb in ("startRound", "finish", "finalize"):
        assert min(said[verb, True], said[verb, False]) > 0, f"{verb} was taken, and was refused: {said}"


def test_leads_below_the_settled_round_keep_nothing_from_starting() -> None:
    j = JobState(ZERO_ADDRESS, JobStatus.ACTIVE, started=3, settled=1)
    leads = [(0, Round(backed=0)), (1, Round(backed=1)), (2, Round(backed=1))]
    assert views.unbacked(j, leads) == [1]


@pytest.mark.parametrize("status", JobStatus)
def test_a_job_that_is_done_or_was_never_made_is_not_finished(status: JobStatus) -> None:
    j = JobState(ZERO_ADDRESS, status, started=PARAMS.schedule.rounds, settled=PARAMS.schedule.rounds)
    live = status in (JobStatus.ACTIVE, JobStatus.CANCELLED, JobStatus.VOID)
    assert views.finishable(PARAMS, j) == live
    assert not views.finishable(PARAMS, replace(j, settled=0)), "a round is in flight"


def test_a_round_in_lead_is_final_at_the_windows_last_second_and_not_before() -> None:
    j, ro = JobState(ZERO_ADDRESS, JobStatus.ACTIVE, started=2, settled=1), Round(Phase.LEAD, merged_at=Seconds(1_000))
    over = Seconds(1_000 + PARAMS.windows.challenge_seconds)
    assert views.finalizable(PARAMS, j, 1, {1: ro}, over)
    assert not views.finalizable(PARAMS, j, 1, {1: ro}, Seconds(over - 1)), "the window is open"
    assert not views.finalizable(PARAMS, j, 1, {1: replace(ro, open_games=1)}, over), "a game is open"
    assert not views.finalizable(PARAMS, replace(j, settled=0), 1, {1: ro}, over), "its base is not final"
