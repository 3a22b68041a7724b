"""Effects of the market's events on jobs, rounds and slots' claims: one table for every reader of events.

The ledger (`market/ledger.py`) and the coordinator's rows (`coordinator/projections.py`) both apply it, and add what
only one of them stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.protocol.jobs import ClaimStatus, JobStatus, Phase
from lockstep.protocol.market import events


@dataclass(frozen=True)
class Effect:
    """The change that an event makes."""

    state: JobStatus | Phase | ClaimStatus
    """New status of the job, the round, or the slot's claim; its type tells which of them."""
    kept: tuple[str, ...] = ()
    """Names of the event's arguments that the record stores."""
    claims: Mapping[ClaimStatus, ClaimStatus] = field(default_factory=dict)
    """Status changes of the round's claims; a revealed claim is accepted if the round's mask names its slot."""

    def stored(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that the record stores."""
        return {name: args[name] for name in self.kept}

    def becomes(self, status: ClaimStatus, named: bool) -> ClaimStatus:
        """Returns the new status of a claim in the round; `named` states that the round's mask has its slot."""
        after = self.claims.get(status, status)
        left_out = after is ClaimStatus.ACCEPTED is not status and not named
        return ClaimStatus.EXCLUDED if left_out else after


_JUDGED = (ClaimStatus.ACCEPTED, ClaimStatus.EXCLUDED, ClaimStatus.MISSING)
_FREEZE = {
    ClaimStatus.JOINED: ClaimStatus.ABSENT,
    ClaimStatus.COMMITTED: ClaimStatus.ABSENT,
    ClaimStatus.REVEALED: ClaimStatus.ACCEPTED,
}

EFFECTS: Mapping[type[events.Logged], Effect] = {
    events.JobCreated: Effect(JobStatus.ACTIVE, ("requester", "spec_digest")),
    events.JobCancelled: Effect(JobStatus.CANCELLED, ("refunded",)),
    events.JobVoid: Effect(JobStatus.VOID),
    events.JobDone: Effect(JobStatus.DONE, ("paid", "refunded")),
    events.RoundStarted: Effect(Phase.JOINING, ("attempt", "base", "outer")),
    events.Sealed: Effect(Phase.TRAINING, ("seed",)),
    events.Frozen: Effect(Phase.MERGING, ("merge_in", "mask"), _FREEZE),
    events.Merged: Effect(Phase.LEAD),
    events.RoundFinal: Effect(Phase.FINAL, claims=dict.fromkeys(_JUDGED, ClaimStatus.FINAL)),
    # If the round has a seed, its freeze has already decided each claim.
    events.RoundFailed: Effect(Phase.FAILED, claims={ClaimStatus.JOINED: ClaimStatus.VOID}),
    events.RoundVoid: Effect(
        Phase.VOID, claims={each: ClaimStatus.VOID for each in ClaimStatus if each is not ClaimStatus.CONVICTED}
    ),
    events.Joined: Effect(ClaimStatus.JOINED, ("worker",)),
    events.Committed: Effect(ClaimStatus.COMMITTED, ("commitment",)),
    events.Revealed: Effect(ClaimStatus.REVEALED, ("trace_root", "out", "out2", "trace_cid", "payload_cid")),
}
"""Effects by event. Events not listed change no status, or one that depends on more than the event."""
