"""The latest times at which a round's stakes come free and the next round opens, if nobody challenges.

Windows that are not begun yet count in full; a round that fails early or is made void frees its stakes earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.execution.durations import longest_hold
from lockstep.protocol.jobs import NEVER, Phase
from lockstep.protocol.types import Seconds

if TYPE_CHECKING:
    from lockstep.protocol.jobs import JobParams, Round


def merged_by(params: JobParams, r: Round, phase: Phase, now: Seconds) -> Seconds:
    """Returns the chain time, never past, by which a round is merged or failed and the next one can be started."""
    role = params.role
    attested = role.attest_seconds + (1 + role.slots) * params.merge.turn_seconds
    revealed = role.reveal_seconds + attested
    match phase:
        case Phase.JOINING:
            due = r.join_ends + role.train_seconds + revealed
        case Phase.SEALING:
            due = now + role.train_seconds + revealed
        case Phase.TRAINING:
            due = r.commit_ends + revealed
        case Phase.REVEALING:
            due = r.reveal_ends + attested
        case Phase.ATTESTING:
            due = r.attest_ends + (1 + role.slots) * params.merge.turn_seconds
        case Phase.FREEZING:
            due = now + (1 + role.slots) * params.merge.turn_seconds
        case Phase.MERGING:
            due = r.merge_opens + (r.accepted + 1) * params.merge.turn_seconds
        case _:
            due = now
    return Seconds(max(due, now))


def free_by(params: JobParams, r: Round, phase: Phase, now: Seconds) -> Seconds | None:
    """Returns the chain time by which the stakes of a round's claims are free; None while a game is open on one."""
    if r.open_games:
        return None
    if phase == Phase.LEAD or (phase == Phase.FAILED and r.merged_at != NEVER):
        return Seconds(max(r.merged_at + longest_hold(params), now))
    if phase in (Phase.NONE, Phase.FINAL, Phase.FAILED, Phase.VOID):
        return now
    return Seconds(merged_by(params, r, phase, now) + longest_hold(params))


def latest(times: list[Seconds | None]) -> Seconds | None:
    """Returns the latest of several times; None if one of them is unknown or there are none."""
    known = [time for time in times if time is not None]
    return max(known, default=NEVER) or None if len(known) == len(times) else None
