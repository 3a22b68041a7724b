"""Merges of one account: recorded in the guard before publication, and claimed only if the current merge has no other
outputs.

The aggregator and a slot's owner, who merges if the aggregator does not, use the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.execution.jobs import ClaimRun, trace_root
from lockstep.execution.merging import ComputedMerge, finish_in_turn
from lockstep.protocol import merkle
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.jobs import JobState, Phase
from lockstep.protocol.market import views
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, Cid, Digest, JobId, Seed, StateRoot, TraceRoot
from lockstep.runtime.guard.memory import GuardMemory, RecordKey, SigningRecord
from lockstep.storage.payload import store_checkpoint

if TYPE_CHECKING:
    from lockstep.market.acts import SeenRound
    from lockstep.storage import ContentStore


def place_of_merge(job: JobId, books: JobState, r: SeenRound) -> RecordKey:
    """Returns the signing key of a round's next merge, for the job's current attempt; others may raise the attempt
    before it is mined.
    """
    claim = claim_id(job, r.number, views.merge_attempt(books, r.phase), MERGE_SLOT)
    return RecordKey(claim, Seed(r.state.seed), StateRoot(r.state.merge_in))


def bind_merge(guard: GuardMemory, place: RecordKey, out: StateRoot, out2: StateRoot) -> None:
    """Records a merge's outputs before they are signed; raises GuardRefused if others are recorded."""
    trace = TraceRoot(trace_root([StateRoot(merkle.node(out, out2))]))
    guard.bind(place, SigningRecord(trace, Digest(out), Digest(out2), bytes(32), Cid(""), Cid("")))


def compute(
    run: ClaimRun, place: RecordKey, guard: GuardMemory, store: ContentStore, keep: Callable[[ComputedMerge], object],
    otherwise: LockstepError,
) -> tuple[ComputedMerge, Cid]:  # fmt: skip
    """Runs a merge within its turn, records it in the guard, lets `keep` store what its defence needs, and stores its
    checkpoint.

    Raises `otherwise` if it starts from other inputs than the contract froze, Crashed, GuardRefused and the store's
    errors.
    """
    # INVARIANT: what is merged is what the contract froze.
    if run.root(0, run.start) != place.base:
        raise otherwise
    done = finish_in_turn(run)
    # INVARIANT: the guard's row is on disk before anybody may learn of the merge.
    bind_merge(guard, place, StateRoot(done.out), StateRoot(done.out2))
    keep(done)
    return done, store_checkpoint(store, done.checkpoint)


def may_claim(guard: GuardMemory, place: RecordKey, r: SeenRound, out: StateRoot, out2: StateRoot) -> bool:
    """Returns True if a computed merge is recorded in the guard and may be claimed; False if the current merge has
    other outputs.
    """
    # INVARIANT: who merges again has computed what it claims, and false outputs are nobody's to back.
    if r.phase == Phase.LEAD and (out, out2) != (r.state.next_shared, r.state.next_outer):
        return False
    bind_merge(guard, place, out, out2)
    return True
