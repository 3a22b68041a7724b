"""Merges a round: fetches and checks its payloads, runs the merge Program, returns the checkpoint.

It is used by the aggregator, by slot owners that merge in its place, and by parties that recompute a missing checkpoint
from the payloads: equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lockstep.execution.box import loading
from lockstep.execution.jobs import ClaimRun, Job, Tensors, checkpoint_of, fetch_checkpoint, merge_run
from lockstep.execution.rounds import Payload, RoundRecord
from lockstep.protocol.errors import (
    BlobCorrupt,
    BlobMissing,
    LockstepError,
    Mismatch,
    PayloadInvalid,
    Unreachable,
    UsageError,
)
from lockstep.protocol.market.receipts import FINAL_REPORTS, Report
from lockstep.protocol.merkle import LEAF_ELEMENTS
from lockstep.protocol.types import Cid, Digest, Seed, StateRoot
from lockstep.storage import payload as wire
from lockstep.storage.payload import Checkpoint

if TYPE_CHECKING:
    from lockstep.storage import ContentStore

COMPARED = 1 << 20
"""Words compared at a time: whole leaves."""
CLOCK_PARTS = 4
"""A merge on this machine may take at most one part in this many of a clock: a game about it recomputes it."""


@dataclass(frozen=True)
class ComputedMerge:
    """A computed merge: its claimed roots and its checkpoint."""

    run: ClaimRun
    root: StateRoot
    """S_1 = node(out, out2)."""
    out: Digest
    """The shared tensors' root."""
    out2: Digest
    """The outer tensors' root."""
    checkpoint: Checkpoint


def store_payload(job: Job, store: ContentStore, payload: Tensors, carry: Tensors = ()) -> Cid:
    """Stores a payload, in the job's format if that is lossless, and its carry.

    Returns the payload's CID, which is revealed and links to the carry.
    """
    beside = wire.store_carry(store, carry) if job.params.role.carries else None
    return wire.store_payload(store, payload, job.wire_format, beside)


def fetch_payload(job: Job, store: ContentStore, payload: Payload) -> Tensors:
    """Fetches a slot's payload, decoded and checked against the claim's first output.

    Raises the store's BlobMissing, BlobCorrupt or Unreachable, and PayloadInvalid if it differs from the claim.
    """
    for fresh in (False, True):
        tensors = stored_payload(job, store, payload, fresh=fresh)
        # INVARIANT: what is merged is what was claimed, bit for bit.
        if job.payload_root(tensors) == payload.out:
            return tensors
    raise PayloadInvalid("a payload does not hash to its claim's root", hint="leave the slot out of the merge")


def fetch_carry(job: Job, store: ContentStore, payload: Payload) -> Tensors:
    """Fetches a slot's carry, checked against the claim's second output; raises as `fetch_payload`."""
    for fresh in (False, True):
        with _named(payload.cid):
            tensors = wire.load_carry(
                store, payload.cid, job.payload_layout, job.carry_layout, wire_format=job.wire_format, fresh=fresh
            )
        # INVARIANT: what a slot starts from is what was claimed, bit for bit.
        if job.carry_root(tensors) == payload.out2:
            return tensors
    raise PayloadInvalid("a carry does not hash to its claim's root", hint="replay the claim that produced it")


def stored_payload(job: Job, store: ContentStore, payload: Payload, *, fresh: bool = False) -> Tensors:
    """Returns the decoded tensors of a payload's CID, without comparing them with the claim. Raises the store's errors,
    and PayloadInvalid if they do not decode.

    `fresh` is as in `storage.payload.load_payload`.
    """
    with _named(payload.cid):
        return wire.load_payload(
            store,
            payload.cid,
            job.payload_layout,
            wire_format=job.wire_format,
            carries=job.params.role.carries,
            fresh=fresh,
        )


def wrong_leaves(own: Tensors, stored: Tensors) -> Iterator[tuple[int, int]]:
    """Yields (tensor, leaf) of every leaf in which a stored payload differs from a replay's."""
    for ordinal, (ours, theirs) in enumerate(zip(own, stored, strict=True)):
        mine, other = (np.ascontiguousarray(t).reshape(-1).view(np.uint32) for t in (ours, theirs))
        for first in range(0, mine.size, COMPARED):
            differs = np.flatnonzero(mine[first : first + COMPARED] != other[first : first + COMPARED])
            for leaf in np.unique((first + differs) // LEAF_ELEMENTS):
                yield ordinal, int(leaf)


def judge(fetch: Callable[[], object]) -> tuple[Report, str]:
    """Fetches a payload and returns (report, reason). `fetch` raises as `fetch_payload` does."""
    try:
        fetch()
    except Unreachable as error:
        return Report.UNREACHABLE, error.message
    except (BlobMissing, BlobCorrupt) as error:
        return Report.MISSING, error.message
    except LockstepError as error:
        # The content of the CID exists but is not what was claimed; this is final, because a CID's content never
        # changes.
        return Report.REFUSED, error.message
    return Report.DECODED, ""


def judge_payloads(
    job: Job, store: ContentStore, payloads: Mapping[int, Payload], known: Mapping[int, Report]
) -> Iterator[tuple[int, Report, str]]:
    """Yields (slot, report, reason) of every revealed payload without a final report in `known`."""
    for slot, payload in payloads.items():
        if known.get(slot) not in FINAL_REPORTS:
            report, why = judge(partial(fetch_payload, job, store, payload))
            yield slot, report, why


def fetch_payloads(job: Job, store: ContentStore, payloads: Sequence[Payload | None]) -> list[Tensors | None]:
    """Fetches a round's accepted payloads in slot order, None = not accepted; raises as `fetch_payload`."""
    return [None if p is None else fetch_payload(job, store, p) for p in payloads]


def merge_round(
    job: Job, base: Checkpoint, payloads: Sequence[Tensors | None], seed: Seed, round_: int
) -> ComputedMerge:
    """Runs the merge Program over a round's accepted payloads, in slot order, None = not accepted."""
    return finish(merge_run(job, base, payloads, seed, round_))


def merged_again(job: Job, store: ContentStore, records: Sequence[RoundRecord]) -> Checkpoint:
    """Recomputes the merges of these rounds from the genesis, whatever was merged on chain.

    Raises the errors of `fetch_payload`.
    """
    checkpoint = job.genesis
    for r in records:
        checkpoint = merge_round(job, checkpoint, fetch_payloads(job, store, r.payloads), r.seed, r.number).checkpoint
    return checkpoint


def finish(run: ClaimRun) -> ComputedMerge:
    """Runs a merge to its end."""
    final = run.advance(1, run.start)
    checkpoint = checkpoint_of(run.job, final)
    out, out2 = run.job.checkpoint_roots(checkpoint)
    run.job.turn_to(None)
    return ComputedMerge(run, run.root(1, final), out, out2, checkpoint)


def finish_in_turn(run: ClaimRun) -> ComputedMerge:
    """Runs a merge to its end. Raises Crashed if it takes longer than its turn, since a later one is worth nothing, or
    longer than a part of a game's clock, since a merge that cannot be recomputed for a game costs its stake."""
    params, box = run.job.params, run.job.box
    if box is None:
        return finish(run)
    seconds = max(loading.LEAST_SECONDS, min(params.merge.turn_seconds, params.windows.clock_seconds // CLOCK_PARTS))
    with box.within(seconds):
        return finish(run)


def load_checkpoint(job: Job, store: ContentStore, cid: Cid, shared: bytes, outer: bytes) -> Checkpoint:
    """Loads a checkpoint by CID. Raises Mismatch if its roots are not those on chain."""
    with _named(cid):
        return fetch_checkpoint(job, store, cid, shared, outer)


def base_checkpoint(job: Job, store: ContentStore, records: Sequence[RoundRecord]) -> Checkpoint:
    """Returns the base of the round after the last record; `records` has all rounds before it, in order.

    A checkpoint that is unavailable or wrong is recomputed from the payloads. Raises the store's error or Mismatch if
    that is impossible.
    """
    if not records:
        return job.genesis
    last, before = records[-1], records[:-1]
    if last.checkpoint is None:
        return base_checkpoint(job, store, before)
    try:
        return load_checkpoint(job, store, last.checkpoint, last.out, last.out2)
    except (BlobMissing, Unreachable, Mismatch, PayloadInvalid) as error:
        return _recomputed(job, store, before, last, error)


@contextmanager
def _named(cid: Cid) -> Iterator[None]:
    """Translates an invalid CID, published by a claimant, to BlobMissing: nothing can be fetched for it."""
    try:
        yield
    except UsageError as error:
        raise BlobMissing(
            f"{cid!r} is not a content identifier",
            hint="the claim's owner published no valid one: its payload cannot be fetched",
        ) from error


def _recomputed(
    job: Job, store: ContentStore, before: Sequence[RoundRecord], last: RoundRecord, why: LockstepError
) -> Checkpoint:
    try:
        payloads = fetch_payloads(job, store, last.payloads)
        merged = merge_round(job, base_checkpoint(job, store, before), payloads, last.seed, last.number)
    except (BlobMissing, Unreachable):
        raise why from None
    # INVARIANT: nobody trains on a checkpoint that the chain does not name.
    if (merged.out, merged.out2) != (last.out, last.out2):
        raise Mismatch(
            f"the merge of round {last.number} is wrong: its payloads give another result",
            hint="a verifier can challenge it; the round is merged again once it is convicted",
        ) from why
    return merged.checkpoint
