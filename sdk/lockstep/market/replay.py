"""Replays a claim from public data: base and payloads by CID, every state root compared with the published trace.

    inputs -> own S_0 -> S_1 .. S_T, stopped at the first that differs -> Replay

A verifier audits every claim with it, `lockstep replay` a single one. The module does not access a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from lockstep.base.cache import MemoryCache, bytes_of
from lockstep.execution.jobs import (
    CarryIn,
    ClaimRun,
    Job,
    State,
    Tensors,
    carry_of,
    checkpoint_of,
    merge_run,
    payload_of,
    slot_run,
    trace_root,
)
from lockstep.execution.merging import base_checkpoint, fetch_carry, fetch_payload, stored_payload, wrong_leaves
from lockstep.execution.rounds import Payload
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import ClaimRecord, JobLedger, RoundLedger
from lockstep.protocol import merkle
from lockstep.protocol.errors import (
    BlobMissing,
    Crashed,
    Inconclusive,
    LockstepError,
    Mismatch,
    PayloadInvalid,
    Unreachable,
)
from lockstep.protocol.market.availability import WANTED
from lockstep.protocol.types import StateRoot

if TYPE_CHECKING:
    from lockstep.numerics.trace import StepTrace
    from lockstep.protocol.dispute.moves import Finding
    from lockstep.storage import ContentStore
    from lockstep.storage.payload import Checkpoint

ROOT_BYTES = 32

UNAVAILABLE = (BlobMissing, Unreachable, Mismatch)
"""Errors of `PublicData.run_of` and `audit` for unavailable public data, which decide neither way."""


UNDECIDED = (*UNAVAILABLE, Crashed)
"""Errors that decide neither way when a user requests the replay; they include that a job's Programs kill their
process.
"""


def undecided(error: LockstepError) -> Inconclusive:
    """Returns the error that a user sees for one of `UNDECIDED`."""
    if isinstance(error, Crashed):
        return Inconclusive(
            f"the claim cannot be replayed here: {error.message}", hint="another machine or build may replay it"
        )
    return Inconclusive(
        f"the claim's public data is unavailable: {error.message}", hint=error.hint or "try another --storage"
    )


class WrongSource(Mismatch):
    """A carry or payload can neither be fetched nor recomputed, because the claim that produced it is wrong."""

    def __init__(self, record: ClaimRecord) -> None:
        super().__init__(
            f"slot {record.slot} of round {record.round} does not produce its claimed output, and that is not stored",
            hint="challenge that claim",
        )
        self.record = record
        """The wrong claim."""


OnTransition = Callable[[int, StateRoot], None]
"""Called with (t, S_t) after each transition; may raise to stop."""

Hold = Callable[[ClaimRun, Sequence[StateRoot]], HeldClaim]
"""Wraps a computation and its trace for use in games."""


@dataclass(frozen=True)
class Replay:
    """The result of replaying a claim."""

    matches: bool
    t: int | None
    """The first transition that differs; None if none does, or if only the trace root shows that one must."""
    held: HeldClaim
    """The claim as replayed. After t its trace continues with the published roots, which are unverified."""
    published: tuple[StateRoot, ...] | None
    """S_1 .. S_T as claimed; None if no list with the claim's trace root is available."""
    final: State | None = field(default=None, repr=False)
    """The tensors of S_T, if the replay reached them."""


class PublicData:
    """A job's checkpoints and payloads, fetched and checked, or recomputed."""

    def __init__(self, job: Job, store: ContentStore, cache: MemoryCache | None = None) -> None:
        """`cache` stores checkpoints and payloads for further claims."""
        self.job = job
        self.store = store
        self._cache = MemoryCache() if cache is None else cache

    def run_of(self, ledger: JobLedger, round_: RoundLedger, claim: ClaimRecord) -> ClaimRun:
        """Returns the `ClaimRun` that recomputes a claim from public data.

        Raises the store's error or Mismatch if a public input can neither be fetched nor recomputed.
        """
        base = self.base(ledger, round_)
        if not claim.is_merge:
            carried = self.carried(ledger, round_, claim.slot)
            return slot_run(self.job, base, round_.seed, round_.number, claim.slot, carried)
        refs = round_.accepted(self.job.params.role.slots)
        payloads = [None if ref is None else self._accepted(ledger, round_, s, ref) for s, ref in enumerate(refs)]
        run = merge_run(self.job, base, payloads, round_.seed, round_.number)
        # INVARIANT: a replayed merge starts from the payloads that the contract froze.
        if round_.merge_in is not None and run.root(0, run.start) != round_.merge_in:
            raise Mismatch(
                "the payloads do not hash to the merge's input on chain",
                hint="fetch them from another store: --storage",
            )
        return run

    def carried(self, ledger: JobLedger, round_: RoundLedger, slot: int) -> CarryIn | None:
        """Returns the carry that a slot starts from, or None if it starts from zeros.

        A carry that is unavailable, or differs from the claimed one, is recomputed: its owner's claims are replayed
        from the last zero carry on, at most carry_period - 1 of them. Raises Mismatch if one of these is wrong.
        """
        behind = ledger.carry_behind(round_, slot, self.job.params.role.carry_period)
        if behind is None:
            return None
        before, record = behind
        return CarryIn(record.body, self._carry(ledger, before, record))

    def lacks_carry(self, ledger: JobLedger, round_: RoundLedger, slot: int) -> bool:
        """Returns True if a slot starts from a carry that is neither cached nor stored, so that it would have to be
        replayed."""
        behind = ledger.carry_behind(round_, slot, self.job.params.role.carry_period)
        return behind is not None and self._stored_carry(behind[1]) is None

    def _carry(self, ledger: JobLedger, round_: RoundLedger, record: ClaimRecord) -> Tensors:
        """Returns the carry that a slot's claim produced."""
        stored = self._stored_carry(record)
        # INVARIANT: a carry that its owner withholds stops nobody: its claim computes it again.
        return self._replayed(ledger, round_, record)[1] if stored is None else stored

    def _stored_carry(self, record: ClaimRecord) -> Tensors | None:
        known: Tensors | None = self._cache.get(("carry", record.out2))
        if known is not None:
            return known
        try:
            carry = fetch_carry(self.job, self.store, record.payload)
        except (*UNAVAILABLE, PayloadInvalid):
            return None
        self._keep(("carry", record.out2), carry)
        return carry

    def _replayed(self, ledger: JobLedger, round_: RoundLedger, record: ClaimRecord) -> tuple[Tensors, Tensors]:
        """Replays a slot's claim and returns its (payload, carry); raises Mismatch if the claim is wrong."""
        run = self.run_of(ledger, round_, record)
        final = run.advance(run.transitions, run.state_before(run.transitions))
        found = payload_of(self.job, final), carry_of(self.job, final)
        # INVARIANT: what is computed again is what was claimed; from a wrong claim nothing can be.
        if self.job.payload_roots(*found) != (record.out, record.out2):
            raise WrongSource(record)
        self._keep(("payload", record.out), found[0])
        self._keep(("carry", record.out2), found[1])
        return found

    def base(self, ledger: JobLedger, round_: RoundLedger) -> Checkpoint:
        """Returns the checkpoint that a round starts from."""
        key = round_.base, round_.outer
        checkpoint: Checkpoint | None = self._cache.get(("checkpoint", *key))
        if checkpoint is None:
            checkpoint = self._fetched_base(ledger, round_)
            # INVARIANT: what is replayed starts where the chain says.
            if self.job.checkpoint_roots(checkpoint) != key:
                raise Mismatch(
                    f"the checkpoint of round {round_.number} does not hash to its roots on chain",
                    hint="fetch it from another store: --storage",
                )
            self._keep_checkpoint(key, checkpoint)
        return checkpoint

    def _fetched_base(self, ledger: JobLedger, round_: RoundLedger) -> Checkpoint:
        """Returns the base by CID or from stored payloads; if these are lost too, by replaying the merge and its
        slots."""
        try:
            return base_checkpoint(self.job, self.store, ledger.records_behind(round_, self.job.params.role.slots))
        except UNAVAILABLE:
            behind = ledger.merge_behind(round_)
            if behind is None:
                raise
            run = self.run_of(ledger, *behind)
            return checkpoint_of(self.job, run.advance(1, run.start))

    def payload(self, ref: Payload) -> Tensors:
        """Returns a slot's payload: its own replay's if there was one, otherwise the stored one."""
        known = self._known_payload(ref.out)
        return self._fetched_payload(ref) if known is None else known

    def keep(self, claim: ClaimRecord, final: State) -> None:
        """Caches the outputs of a claim that was replayed and found right."""
        if claim.is_merge:
            self._keep_checkpoint((claim.out, claim.out2), checkpoint_of(self.job, final))
        else:
            self._keep(("payload", claim.out), payload_of(self.job, final))
            self._keep(("carry", claim.out2), carry_of(self.job, final))

    def fault_of_payload(self, claim: ClaimRecord) -> str | None:
        """Returns the error code of a slot's stored payload; None if it decodes to the claimed one.

        The stored payload then replaces a computed one in the cache: a mapped file is memory that processes share.
        """
        try:
            self._fetched_payload(claim.payload)
        except LockstepError as error:
            return error.code
        return None

    def wrong_leaves(self, claim: ClaimRecord) -> tuple[tuple[int, int], ...]:
        """Returns (tensor, leaf) of the first leaves in which a slot's stored payload differs from its replay; empty if
        nothing comparable is stored."""
        own = self._known_payload(claim.out)
        if own is None:
            return ()
        try:
            stored = stored_payload(self.job, self.store, claim.payload)
        except LockstepError:
            return ()
        return tuple(islice(wrong_leaves(own, stored), WANTED))

    def _accepted(self, ledger: JobLedger, round_: RoundLedger, slot: int, ref: Payload) -> Tensors:
        """Returns an accepted payload; one that is unavailable is recomputed by replaying its slot."""
        try:
            return self.payload(ref)
        except UNAVAILABLE:
            return self._replayed(ledger, round_, round_.claims[slot])[0]

    def _fetched_payload(self, ref: Payload) -> Tensors:
        payload = fetch_payload(self.job, self.store, ref)
        self._keep(("payload", ref.out), payload)
        return payload

    def _known_payload(self, out: bytes) -> Tensors | None:
        known: Tensors | None = self._cache.get(("payload", out))
        return known

    def _keep_checkpoint(self, key: tuple[bytes, bytes], checkpoint: Checkpoint) -> None:
        self._cache.put(("checkpoint", *key), checkpoint, bytes_of((*checkpoint.shared, *checkpoint.outer)))

    def _keep(self, key: tuple[str, bytes], tensors: Tensors) -> None:
        self._cache.put(key, tensors, bytes_of(tensors))


def published_trace(store: ContentStore, claim: ClaimRecord, transitions: int) -> tuple[StateRoot, ...] | None:
    """Returns S_1 .. S_T as published; None if the list is missing or does not hash to the claim's trace root.

    Raises Unreachable if the store does not answer, since then nothing is known.
    """
    if claim.trace_cid is None:
        return (StateRoot(merkle.node(claim.out, claim.out2)),)
    try:
        data = store.get(claim.trace_cid, max_bytes=ROOT_BYTES * transitions)
    except Unreachable:
        raise
    except LockstepError:
        # Missing, damaged, too long, or an invalid CID: the claimant has published no list.
        return None
    roots = tuple(StateRoot(data[i : i + ROOT_BYTES]) for i in range(0, len(data), ROOT_BYTES))
    # INVARIANT: a list that does not hash to the claim's trace root is no list.
    return roots if len(data) == ROOT_BYTES * transitions and trace_root(roots) == claim.trace_root else None


def audit(
    run: ClaimRun,
    claim: ClaimRecord,
    store: ContentStore,
    on_transition: OnTransition = lambda t, root: None,
    hold: Hold = HeldClaim,
) -> Replay:
    """Replays a claim against its published trace; the step that differs is materialised and held by what `hold`
    returns.

    Without a list the claim is replayed to its end, and the trace root decides. A store that answers neither before nor
    after the replay counts as having no list.
    """
    published = _trace_if_reachable(store, claim, run.transitions)
    own: list[StateRoot] = []
    state = run.start
    replay = run.states()
    for t, after, root in replay:
        own.append(root)
        on_transition(t, root)
        if published is not None and own[-1] != published[t - 1]:
            held = hold(run, [*own, *published[t:]])
            # The step is recomputed to be materialised, so the state after it is freed.
            replay.close()
            del after
            held.hold(t, state)
            return Replay(False, t, held, published)
        state = after
    held = hold(run, own)
    if trace_root(own) == claim.trace_root:
        return Replay(True, None, held, published, state)
    # INVARIANT: a lie whose list nobody has is challenged all the same, its replay done once.
    published = _trace_if_reachable(store, claim, run.transitions)
    return Replay(False, first_difference(published, own), held, published, state)


def computed_word(step: StepTrace, finding: Finding) -> int:
    """Returns this machine's value of the word that the contract computed in a finding: of an element, or of a fold's
    chunk.

    If only the combination of partial results is wrong, the contract combines what the defender showed. Of more than
    512 partials it combines one group and does not report which: then the result is the group whose combination equals
    the contract's word, if there is one.
    """
    op, chunk = step.program.ops[finding.position], finding.one_chunk
    if op.chunks > 1 and chunk is not None:
        return int(step.chunk_results(finding.position, finding.element)[chunk])
    words = np.ascontiguousarray(step.output(finding.position).array).reshape(-1).view(np.uint32)
    groups = step.partials(finding.position, finding.element) if op.is_grouped else []
    return finding.contract_word if finding.contract_word in groups else int(words[finding.element])


def first_difference(published: Sequence[StateRoot] | None, own: Sequence[StateRoot]) -> int | None:
    """Returns t of the first root that differs; None without a list."""
    return next((t for t, (a, b) in enumerate(zip(published or (), own, strict=False), 1) if a != b), None)


def _trace_if_reachable(store: ContentStore, claim: ClaimRecord, transitions: int) -> tuple[StateRoot, ...] | None:
    try:
        return published_trace(store, claim, transitions)
    except Unreachable:
        return None
