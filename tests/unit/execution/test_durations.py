"""Times of rounds and jobs: the windows' sum at the latest, the work and the blocks at the earliest."""

from __future__ import annotations

from lockstep.execution import durations
from lockstep.execution.jobs import Job
from tests.support.params import amended


def test_a_job_is_its_rounds_and_the_last_challenge_window(toy: Job) -> None:
    p = toy.params
    one = durations.longest_round(p)
    windows = p.windows.join_seconds + p.role.train_seconds + p.role.reveal_seconds + p.role.attest_seconds
    assert one == windows + (1 + p.role.slots) * p.merge.turn_seconds, "the aggregator's turn, then each slot's"
    assert durations.longest_job(p) == p.schedule.rounds * one + p.windows.challenge_seconds
    assert durations.prompt_round(p, 3.0, 2.0) == 3.0 + 8 * 2.0
    assert durations.prompt_job(p, 3.0, 2.0) < durations.longest_job(p)


def test_a_carry_holds_stakes_to_the_end_of_its_period(toy: Job) -> None:
    p = toy.params
    assert durations.longest_hold(p) == p.windows.challenge_seconds
    carrying = amended(p, carry_period=3)
    assert durations.longest_hold(carrying) == 2 * durations.longest_round(p) + p.windows.challenge_seconds
