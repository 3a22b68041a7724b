"""Durations of a round and of a job: if all parties are prompt, and if every window is used up.

A round runs from its start to its merge, when the next one starts; its challenge window overlaps with the next rounds.
"""

from __future__ import annotations

from lockstep.protocol.jobs import JobParams

ROUND_TRANSACTIONS = 8
"""Consecutive transactions of a round: start, join, seal, commit, reveal, attest, freeze, merge."""


def prompt_round(params: JobParams, work_seconds: float, block_seconds: float) -> float:
    """Returns the seconds from start to merge if all slots are taken at once and each takes `work_seconds`."""
    return work_seconds + ROUND_TRANSACTIONS * block_seconds


def longest_round(params: JobParams) -> int:
    """Returns the longest time from a round's start to the next one's, in seconds: every window and merge turn used
    up."""
    role, turns = params.role, 1 + params.role.slots
    return (
        params.windows.join_seconds
        + role.train_seconds
        + role.reveal_seconds
        + role.attest_seconds
        + turns * params.merge.turn_seconds
    )


def longest_hold(params: JobParams) -> int:
    """Returns the longest time in seconds from a round's merge until its stakes are unlocked, if there is no challenge.

    No claim is final before the windows of its whole carry period are over.
    """
    later = max(params.role.carry_period - 1, 0)
    return later * longest_round(params) + params.windows.challenge_seconds


def prompt_job(params: JobParams, work_seconds: float, block_seconds: float) -> float:
    """Returns the seconds from the creation of a job until everything is paid, if every slot's steps have this pace."""
    rounds = params.schedule.rounds * prompt_round(params, work_seconds, block_seconds)
    return rounds + params.windows.challenge_seconds


def longest_job(params: JobParams) -> int:
    """Returns the longest duration of a job in seconds, if no round fails and no claim is convicted."""
    return params.schedule.rounds * longest_round(params) + params.windows.challenge_seconds
