"""Backing: how many later rounds a merger's stake answers for, so that they may start on its merge.

A round starts only if every unsettled merge below it covers its pay (`rounds.start_round`): if the merge is convicted,
the work that stood on it is paid from that stake.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Wei


def wanted(params: JobParams, r: int) -> int:
    """Rounds after `r` that can start before round r is settled."""
    return max(0, min(params.schedule.max_lead, params.schedule.rounds - r) - 1)


def affordable(params: JobParams, free: int, most: int) -> int:
    """How many rounds, at most `most`, a merger with `free` stake backs: it keeps one slot's stake if it can, so that
    it can work on what it lets start."""
    if most <= 0:
        return 0
    spare = max(0, free - params.role.slot_stake) // params.round_pay
    return min(most, max(spare, min(1, free // params.round_pay)))


def blocked_by(leads: Iterable[tuple[int, int]], started: int) -> list[int]:
    """Of unsettled merged rounds (number, rounds backed), those that keep the next round from starting."""
    return [r for r, backed in leads if r + backed < started]


def stake(params: JobParams) -> Wei:
    """What a merger of every round in flight locks to back all that may start on each before it is settled."""
    return Wei(cover(params) * params.round_pay)


def cover(params: JobParams, first: int = 0) -> int:
    """How many rounds the merges of all rounds in flight, from `first` on, back together."""
    return sum(wanted(params, r) for r in range(first, min(first + params.schedule.max_lead, params.schedule.rounds)))
