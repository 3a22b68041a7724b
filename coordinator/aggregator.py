"""The aggregator's work on one job: checks payloads, computes merges, archives claims so that they can be defended.

This module does I/O and arithmetic; `decide` makes the decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.reading import hex32
from lockstep.base.cache import MemoryCache, bytes_of
from lockstep.base.files import write_atomically
from lockstep.base.lines import event
from lockstep.chain.game_table import GameTable
from lockstep.disputes.game_queue import DefenceQueue
from lockstep.disputes.player import PlannedMove
from lockstep.execution import jobs, merging
from lockstep.execution.jobs import ClaimRun, Job, Tensors
from lockstep.execution.merging import ComputedMerge
from lockstep.execution.rounds import Payload, RoundRecord
from lockstep.market.held import HeldClaim
from lockstep.protocol.errors import LockstepError, Mismatch
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.types import Cid, ClaimId, GameId, Seconds, StateRoot
from lockstep.runtime import merges
from lockstep.runtime.guard.memory import RecordKey
from lockstep.storage.payload import F32_FORMAT, Checkpoint, blob_length, decoded, encoded, format_of
from lockstep.storage.tensors import head_line, read_tensors

if TYPE_CHECKING:
    from coordinator.parts import CoordinatorParts

HEAD = 8
"""The most bytes at the start of a variable-length tensor in which its format states its length."""


class Aggregator:
    """One loaded and checked job, with its fetched data."""

    def __init__(self, job: Job, parts: CoordinatorParts, cache: MemoryCache) -> None:
        """`cache` holds the claims and payloads of all jobs in memory."""
        party = parts.party
        table = GameTable(party.contracts.game, party.addresses.block)
        self.job = job
        self.defence = DefenceQueue(table, party.outbox, cache, _tell_move)
        self._store = party.store
        self._guard = parts.guard
        self._cache = cache
        self._archive = parts.settings.home / "claims"
        """The material of merge claims."""
        self._archive.mkdir(parents=True, exist_ok=True)

    def judge(self, ref: Payload) -> tuple[Report, str]:
        """Fetches and decodes a revealed payload; returns (report, reason)."""
        return merging.judge(lambda: self._payload(ref))

    def merge(self, place: RecordKey, records: Sequence[RoundRecord]) -> tuple[StateRoot, StateRoot, Cid]:
        """Returns (out, out2, checkpoint's CID) of the last round's merge, bound in the guard and archived before it is
        published.

        Raises the store's errors, Mismatch if the inputs differ from those that the contract froze, GuardRefused.
        """
        base, payloads = self._inputs(records)
        other = Mismatch(
            f"the payloads of round {records[-1].number} do not hash to mergeIn",
            hint="run `lockstep coordinator reindex`",
        )

        def keep(done: ComputedMerge) -> None:
            self.defence.hold(place.claim, done.run, [done.root])
            write_atomically(self._start_file(place.claim), _start_file(self.job, place.base, base, payloads))

        run = self.merge_run(base, payloads, records[-1])
        done, cid = merges.compute(run, place, self._guard, self._store, keep, other)
        return StateRoot(done.out), StateRoot(done.out2), cid

    def held(self, place: RecordKey, records: Sequence[RoundRecord]) -> HeldClaim:
        """Returns a merge claim of this account, recomputed from its archive, or else from public data."""
        run = self._archived_run(place, records[-1])
        if run is None or run.root(0, run.start) != place.base:
            run = self.merge_run(*self._inputs(records), records[-1])
        return self.defence.hold(place.claim, run, [merging.finish(run).root])

    def forget(self, claim: ClaimId) -> None:
        """Drops the archive of a claim that can no longer be challenged."""
        self.defence.drop(claim)
        self._start_file(claim).unlink(missing_ok=True)

    def merge_run(self, base: Checkpoint, payloads: Sequence[Tensors | None], r: RoundRecord) -> ClaimRun:
        """Returns the computation of a round's merge."""
        return jobs.merge_run(self.job, base, payloads, r.seed, r.number)

    def _inputs(self, records: Sequence[RoundRecord]) -> tuple[Checkpoint, list[Tensors | None]]:
        base = merging.base_checkpoint(self.job, self._store, records[:-1])
        return base, [None if ref is None else self._payload(ref) for ref in records[-1].payloads]

    def _payload(self, ref: Payload) -> Tensors:
        # By its CID too: what one slot stored says nothing about another's, even if they claim the same.
        key = ("payload", self.job.id, ref.cid, ref.out)
        known: Tensors | None = self._cache.get(key)
        if known is None:
            known = merging.fetch_payload(self.job, self._store, ref)
            self._cache.put(key, known, bytes_of(known))
        return known

    def _start_file(self, claim: ClaimId) -> Path:
        return self._archive / f"{claim.hex()}.start"

    def _archived_run(self, place: RecordKey, r: RoundRecord) -> ClaimRun | None:
        """Returns a merge's computation from its archive; None if that is lost or damaged."""
        own = self._start_file(place.claim)
        try:
            # INVARIANT: whatever id the chain has given a merge of ours, it is defended by what it was made from.
            for path in [] if own.exists() else sorted(self._archive.glob("*.start")):
                if _merge_in(path) == place.base:
                    path.replace(own)
                    break
            head, body = read_tensors(own)
            return self.merge_run(*_read_start(self.job, head["formats"], body), r)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, LockstepError):
            return None


def _tell_move(now: Seconds, game: GameId, due: PlannedMove, _: float) -> None:
    event("defending", time=now, game=hex32(game), move=type(due.move).__name__)


def _start_file(
    job: Job, merge_in: bytes, base: Checkpoint, payloads: Sequence[Tensors | None]
) -> Iterator[bytes | memoryview]:
    """Yields the file of a merge's S_0: its root in the first line, then each payload in its wire format."""
    formats = [None if tensors is None else format_of(tensors, job.wire_format) for tensors in payloads]
    yield head_line({"formats": formats, "merge_in": merge_in.hex()})
    yield from encoded((*base.shared, *base.outer), F32_FORMAT)
    for tensors, wire_format in zip(payloads, formats, strict=True):
        if tensors is not None and wire_format is not None:
            yield from encoded(tensors, wire_format)


def _merge_in(path: Path) -> bytes | None:
    """Returns the root of S_0 that a file names; None if it names none."""
    try:
        return bytes.fromhex(read_tensors(path)[0]["merge_in"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_start(job: Job, formats: Sequence[str | None], body: memoryview) -> tuple[Checkpoint, list[Tensors | None]]:
    """Parses the body of `_start_file` into (base, payloads); raises ValueError."""
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

    layout, sections = job.programs.merge.output_layout, job.params.sections
    base = Checkpoint(read(layout[sections.shared], F32_FORMAT), read(layout[sections.outer], F32_FORMAT))
    payloads: list[Tensors | None] = []
    for wire_format in formats:
        if wire_format not in (None, F32_FORMAT, job.wire_format):
            raise ValueError(f"format {wire_format!r}")
        payloads.append(None if wire_format is None else read(job.payload_layout, wire_format))
    return base, payloads
