"""The aggregator's work on one job: payloads judged, merges computed, claims kept so that they can be defended.

I/O and arithmetic, no decisions: `decide` says what, this module does it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lockstep.base.cache import MemoryCache, bytes_of
from lockstep.base.files import write_atomically
from lockstep.execution import jobs, merging
from lockstep.execution.box import loading
from lockstep.execution.box.handle import Cancelled
from lockstep.execution.jobs import ClaimRun, Job, Tensors
from lockstep.execution.merging import ComputedMerge, RoundRecord
from lockstep.node.guard.memory import GuardMemory, Place, Promise
from lockstep.node.player import HeldClaim
from lockstep.protocol.errors import Crashed, LockstepError, Mismatch
from lockstep.protocol.jobs import Round
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.types import Cid, ClaimId, Seed, StateRoot, TraceRoot
from lockstep.storage import ContentStore
from lockstep.storage.payload import (
    F32_FORMAT,
    Checkpoint,
    blob_length,
    decoded,
    encoded,
    format_of,
    store_checkpoint,
)
from lockstep.storage.tensors import head_line, read_tensors

CLOCK_PARTS = 4
"""A merge takes no longer than one part in so many of a clock: a game about it computes it again."""
HEAD = 8
"""The first bytes of a tensor of varying length, in which its format states it, at most."""


class Aggregator:
    """One job, loaded and checked, with what was fetched for it."""

    def __init__(
        self, job: Job, store: ContentStore, guard: GuardMemory, archive: Path, cache: MemoryCache | None = None
    ) -> None:
        """`archive`: a folder for the material of merge claims. `cache`: what all jobs' claims and payloads take in
        memory."""
        self.job = job
        self._store = store
        self._guard = guard
        self._archive = archive
        self._cache = MemoryCache() if cache is None else cache
        self._in_game: frozenset[ClaimId] = frozenset()
        archive.mkdir(parents=True, exist_ok=True)

    def judge(self, ref: merging.Payload) -> tuple[Report, str]:
        """Fetch and decode a revealed payload: (report, reason)."""
        return merging.judge(lambda: self._payload(ref))

    def merge(
        self,
        claim: ClaimId,
        number: int,
        stored: Round,
        before: Sequence[RoundRecord],
        accepted: Sequence[merging.Payload | None],
    ) -> tuple[StateRoot, StateRoot, Cid]:
        """(out, out2, checkpoint's CID) of a round's merge, bound and archived before anybody may learn of it.

        Raises the store's errors, Mismatch if the inputs are not those that the contract froze, GuardRefused.
        """
        base = merging.base_checkpoint(self.job, self._store, before)
        payloads = [None if ref is None else self._payload(ref) for ref in accepted]
        run = self.merge_run(base, payloads, stored.seed, number)
        # INVARIANT: what is merged is what the contract froze.
        if run.root(0, run.start) != stored.merge_in:
            raise Mismatch(
                f"the payloads of round {number} do not hash to mergeIn", hint="run `lockstep coordinator reindex`"
            )
        merged = self._in_turn(run)
        trace = TraceRoot(jobs.trace_root([merged.root]))
        promise = Promise(trace, merged.out, merged.out2, bytes(32), Cid(""), Cid(""))
        # INVARIANT: the guard's row is on disk before anybody may learn of the merge.
        self._guard.bind(Place(claim, Seed(stored.seed), StateRoot(stored.merge_in)), promise)
        self._keep(claim, merged)
        write_atomically(self._start_file(claim), _start_file(self.job, base, payloads))
        cid = store_checkpoint(self._store, merged.checkpoint)
        return StateRoot(merged.out), StateRoot(merged.out2), cid

    def held(
        self, claim: ClaimId, number: int, stored: Round, before: Sequence[RoundRecord],
        accepted: Sequence[merging.Payload | None],
    ) -> HeldClaim:  # fmt: skip
        """A merge claim of ours as it was computed, to defend it; computed again if it is not in memory."""
        known = self.at_hand(claim)
        if known is None:
            run = self._archived_run(claim, number, stored)
            if run is None or run.root(0, run.start) != stored.merge_in:
                base = merging.base_checkpoint(self.job, self._store, before)
                payloads = [None if ref is None else self._payload(ref) for ref in accepted]
                run = self.merge_run(base, payloads, stored.seed, number)
            known = self._keep(claim, merging.finish(run))
        return known

    def at_hand(self, claim: ClaimId) -> HeldClaim | None:
        """A merge claim of ours, if it is in memory."""
        known: HeldClaim | None = self._cache.get((claim, "claim"))
        return known

    def need(self, claims: Collection[ClaimId]) -> None:
        """Say about which claims games are open: they are the last to leave the memory."""
        self._in_game = frozenset(claims)

    def forget(self, claim: ClaimId) -> None:
        """Drop the archive of a claim that can no longer be challenged."""
        self._cache.drop((claim, "claim"))
        self._start_file(claim).unlink(missing_ok=True)

    def merge_run(self, base: Checkpoint, payloads: Sequence[Tensors | None], seed: Seed, number: int) -> ClaimRun:
        """The computation of a round's merge."""
        return jobs.merge_run(self.job, base, payloads, seed, number)

    def _in_turn(self, run: ClaimRun) -> ComputedMerge:
        """A merge, or Crashed if it takes longer than its turn, or than a part of a game's clock: a later one is worth
        nothing, and one that could not be computed anew for a game costs its stake."""
        merge, windows = self.job.params.merge, self.job.params.windows
        seconds = max(loading.LEAST_SECONDS, min(merge.turn_seconds, windows.clock_seconds // CLOCK_PARTS))
        box = self.job.box
        if box is None:
            return merging.finish(run)
        late, merging_here = threading.Event(), threading.get_ident()

        def stop() -> None:
            late.set()
            box.stop(merging_here)

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            return merging.finish(run)
        except Cancelled:
            if not late.is_set():
                raise
            raise Crashed(
                f"its merge was ended: it was not done after {seconds:.0f} s", "a faster machine may do it in time"
            ) from None
        finally:
            timer.cancel()

    def _keep(self, claim: ClaimId, merged: ComputedMerge) -> HeldClaim:
        held = HeldClaim(merged.run, [merged.root], self._cache)
        self._cache.put((claim, "claim"), held, bytes_of(merged.run.start), lambda: claim in self._in_game)
        return held

    def _payload(self, ref: merging.Payload) -> Tensors:
        # By its CID too: what one slot stored says nothing about another's, even if they claim the same.
        key = ("payload", self.job.id, ref.cid, ref.out)
        known: Tensors | None = self._cache.get(key)
        if known is None:
            known = merging.fetch_payload(self.job, self._store, ref)
            self._cache.put(key, known, bytes_of(known))
        return known

    def _start_file(self, claim: ClaimId) -> Path:
        return self._archive / f"{claim.hex()}.start"

    def _archived_run(self, claim: ClaimId, number: int, stored: Round) -> ClaimRun | None:
        """From the archive; None if it is lost or damaged: public data gives it again."""
        try:
            head, body = read_tensors(self._start_file(claim))
            base, payloads = _read_start(self.job, head["formats"], body)
            return self.merge_run(base, payloads, stored.seed, number)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, LockstepError):
            return None


def _start_file(job: Job, base: Checkpoint, payloads: Sequence[Tensors | None]) -> Iterator[bytes | memoryview]:
    """S_0 of a merge as a file: each payload in the format in which it travels."""
    formats = [None if tensors is None else format_of(tensors, job.wire_format) for tensors in payloads]
    yield head_line({"formats": formats})
    yield from encoded((*base.shared, *base.outer), F32_FORMAT)
    for tensors, wire_format in zip(payloads, formats, strict=True):
        if tensors is not None and wire_format is not None:
            yield from encoded(tensors, wire_format)


def _read_start(job: Job, formats: Sequence[str | None], body: memoryview) -> tuple[Checkpoint, list[Tensors | None]]:
    """(base, payloads) of `_start_file`; raises ValueError."""
    at = 0

    def read(headers: Sequence[TensorHeader | None], wire_format: str) -> Tensors:
        nonlocal at
        tensors = []
        for header in headers:
            if header is not None:
                end = at + blob_length(header, wire_format, bytes(body[at : at + HEAD]))
                if end > len(body):
                    raise ValueError(f"{len(body)} bytes, at least {end} are due")
                tensors.append(decoded(body[at:end], header, wire_format))
                at = end
        return tuple(tensors)

    layout, quarter = job.programs.merge.output_layout, 1 << job.params.genesis.shared_depth
    base = Checkpoint(read(layout[:quarter], F32_FORMAT), read(layout[quarter:], F32_FORMAT))
    payloads: list[Tensors | None] = []
    for wire_format in formats:
        if wire_format is None:
            payloads.append(None)
        elif wire_format in (F32_FORMAT, job.wire_format):
            payloads.append(read(job.payload_layout, wire_format))
        else:
            raise ValueError(f"format {wire_format!r}")
    return base, payloads
