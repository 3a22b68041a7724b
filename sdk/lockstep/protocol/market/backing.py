"""Backing: how many later rounds a merger's stake answers for, so that they may start on its merge.

A round starts only if every unsettled merge below it covers its pay (`rounds.start_round`): if the merge is convicted,
the work that stood on it is paid from that stake.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.protocol.jobs import NOTHING, JobParams
from lockstep.protocol.types import Wei


def wanted(params: JobParams, r: int) -> int:
    """Rounds after `r` that can start before round r is settled."""
    return max(0, min(params.schedule.max_lead, params.schedule.rounds - r) - 1)


def affordable(params: JobParams, free: int, most: int, kept: Wei = NOTHING) -> int:
    """Returns the number of rounds, at most `most`, that a merger with `free` stake backs.

    It keeps `kept` if it can: a slot's stake, so that a worker can work in the rounds that it lets start.
    """
    if most <= 0:
        return 0
    spare = max(0, free - kept) // params.round_pay
    return min(most, max(spare, min(1, free // params.round_pay)))


def blocked_by(leads: Iterable[tuple[int, int]], started: int) -> list[int]:
    """Returns those of the unsettled merged rounds (number, rounds backed) that keep the next round from starting."""
    return [r for r, backed in leads if r + backed < started]


def stake(params: JobParams) -> Wei:
    """Returns the stake that backs, for every round in flight, all rounds that may start on it before it is settled."""
    return Wei(cover(params) * params.round_pay)


def cover(params: JobParams, first: int = 0) -> int:
    """Returns the sum of the rounds that the merges of all rounds in flight, from `first` on, back."""
    return sum(wanted(params, r) for r in range(first, min(first + params.schedule.max_lead, params.schedule.rounds)))
