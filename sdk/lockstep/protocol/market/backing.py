"""Backing (slashable coverage): counts the later rounds whose pay a merger's stake covers, so that they may start.

A round starts only if every unsettled merge below it covers its pay (`rounds.start_round`): if such a merge is
convicted, its stake pays for the work based on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.protocol.jobs import NOTHING, JobParams
from lockstep.protocol.types import Wei


def wanted(params: JobParams, r: int) -> int:
    """Returns the number of rounds after `r` that can start before round r is settled."""
    return max(0, min(params.schedule.max_lead, params.schedule.rounds - r) - 1)


def affordable(params: JobParams, free: int, most: int, kept: Wei = NOTHING) -> int:
    """Returns the number of rounds, at most `most`, that a merger with `free` stake backs.

    The merger retains `kept` of its stake if possible: a slot's stake, so that a worker can join those rounds.
    """
    if most <= 0:
        return 0
    spare = max(0, free - kept) // params.round_pay
    return min(most, max(spare, min(1, free // params.round_pay)))


def blocked_by(leads: Iterable[tuple[int, int]], started: int) -> list[int]:
    """Returns the unsettled merged rounds (number, rounds backed) that prevent the next round from starting."""
    return [r for r, backed in leads if r + backed < started]


def stake(params: JobParams) -> Wei:
    """Returns the stake that backs, for every round in flight, all rounds that may start before it is settled."""
    return Wei(cover(params) * params.round_pay)


def cover(params: JobParams, first: int = 0) -> int:
    """Returns the total number of rounds that the merges of all rounds in flight, from `first` on, back."""
    return sum(wanted(params, r) for r in range(first, min(first + params.schedule.max_lead, params.schedule.rounds)))
